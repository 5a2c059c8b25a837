"""What a training step must not do, whatever the plugin, and compiled models."""

import functools

import pytest
import torch
from torch import Tensor

from avalanche_dco import DCOCompPlugin, DCOKronPlugin, DCOPlugin
from tests.support.learning import QUICK, blobs, naive, small_mlp, train, weights_of

PLUGINS = {
    "dco": lambda: DCOPlugin(k=8, penalty_every=2),
    "dco, coupled": lambda: DCOPlugin(
        k=8, penalty_every=2, directions="sampled", couple_layers=True
    ),
    "dco, pulled": lambda: DCOPlugin(k=8, gamma_1=0.01),
    "dco, gradient step": lambda: DCOPlugin(**QUICK, penalty_step="gradient"),
    "dco-comp": lambda: DCOCompPlugin(k=8, penalty_every=2),
    "dco-kron": lambda: DCOKronPlugin(damp_every=2),
}
CALLBACKS = (
    "before_training_iteration",
    "before_forward",
    "after_forward",
    "before_backward",
    "after_backward",
    "before_update",
    "after_update",
    "after_training_iteration",
)
LOOKS = (
    *("item", "tolist", "__float__", "__int__", "__bool__", "__index__", "__contains__"),
    *("cpu", "numpy", "nonzero", "equal", "allclose"),
)


@pytest.mark.parametrize("name", PLUGINS)
def test_no_number_is_looked_at_for_which_a_device_would_have_to_wait(name, monkeypatch):
    """In any iteration after the first of an experience, which prepares and checks."""
    plugin = PLUGINS[name]()
    strategy = naive(small_mlp(), [plugin], train_epochs=2)
    looks, called = [], set()

    def watched(callback, *args, **kwargs):
        if strategy.clock.train_exp_iterations < 2:
            return getattr(type(plugin), callback)(plugin, *args, **kwargs)
        called.add(callback)
        with monkeypatch.context() as patch:
            for look in LOOKS:
                original = getattr(Tensor, look)

                def noted(tensor, *given, look=look, original=original, callback=callback):
                    looks.append((callback, look))
                    return original(tensor, *given)

                patch.setattr(Tensor, look, noted)
            return getattr(type(plugin), callback)(plugin, *args, **kwargs)

    for callback in CALLBACKS:
        if hasattr(plugin, callback):
            setattr(plugin, callback, functools.partial(watched, callback))
    first, second = blobs(samples=80).train_stream
    strategy.train(first)
    strategy.train(second)
    assert called >= {"after_update"}
    assert looks == []


def test_a_look_would_be_seen():
    class Looks(DCOPlugin):
        def after_update(self, strategy, **kwargs):
            super().after_update(strategy, **kwargs)
            strategy.loss.item()

    PLUGINS["looks"] = lambda: Looks(k=8)
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(AssertionError, match="after_update"),
        ):
            test_no_number_is_looked_at_for_which_a_device_would_have_to_wait("looks", patch)
    finally:
        del PLUGINS["looks"]


@pytest.mark.parametrize("name", PLUGINS)
def test_a_compiled_model_learns_the_same(name):
    weights = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = small_mlp()
        wrapped = torch.compile(model, backend="eager") if compiled else model
        train(wrapped, blobs(), [PLUGINS[name]()])
        weights.append(weights_of(model))
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)
