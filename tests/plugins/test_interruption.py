"""Ctrl-C in the middle of an experience: what the plugin, the model and the checkpoint are then."""

from __future__ import annotations

import pytest
import torch

from avalanche_dco import maybe_load_checkpoint, save_checkpoint
from avalanche_dco.baselines import gpm
from avalanche_dco.errors import CheckpointError
from avalanche_dco.plugins import dco_comp, dco_kron
from avalanche_dco.plugins.support import gradients, push
from tests.support.checkpointed import fingerprint, finish, make_strategy, short_digits
from tests.support.learning import weights_of

pytestmark = pytest.mark.filterwarnings("ignore:.*Plugin does not protect", "ignore:k=6 is less")


@pytest.fixture(scope="module")
def digits():
    return short_digits(3)


def interrupt(after: int, function):
    """The function, but Ctrl-C is pressed when it has been called some times."""
    calls = [0]

    def interrupted(*args, **kwargs):
        calls[0] += 1
        if calls[0] > after:
            raise KeyboardInterrupt
        return function(*args, **kwargs)

    return interrupted


PLACES = {
    "step 1": (torch.optim.Adam, "step", 3),
    "step 2": (push, "criterion_gradients", 2),
    "step 3": (gradients.TrajectorySampler, "sample", 1),
    "step 4": (dco_comp, "compress", 0),
    "reporting of step 4": (dco_comp, "publish", 2),
    "reporting of free directions": (dco_kron, "publish", 1),
    "extension of the bases": (gpm, "extended_basis", 1),
}


@pytest.mark.parametrize(
    ("method", "place"),
    [
        *(("dco", place) for place in ("step 1", "step 2", "step 3")),
        *(("dco-comp", place) for place in ("step 1", "step 2", "step 3", "step 4")),
        ("dco-comp", "reporting of step 4"),
        *(("dco-kron", place) for place in ("step 1", "reporting of free directions")),
        *(("gpm", place) for place in ("step 1", "extension of the bases")),
    ],
)
def test_everything_is_as_of_the_last_finished_experience(
    method, place, digits, tmp_path, monkeypatch
):
    path = tmp_path / "run.ckpt"
    whole = make_strategy(method)
    finish(whole, digits, 0, 3)
    expected = fingerprint(whole)

    strategy = make_strategy(method)
    finish(strategy, digits, 0, 2, path)
    state = strategy.plugins[0].state_dict()["checksum"]
    owner, name, after = PLACES[place]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupt(after, getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            strategy.train(digits.train_stream[2])
    assert strategy.plugins[0].state_dict()["checksum"] == state
    assert strategy.clock.train_exp_counter == 2
    with pytest.raises(CheckpointError, match="in the middle of an experience, or was interrupted"):
        save_checkpoint(strategy, path)

    continued, first = maybe_load_checkpoint(make_strategy(method), path)
    assert first == 2
    finish(continued, digits, first, 3)
    assert fingerprint(continued) == expected


@pytest.mark.parametrize("place", ["step 2", "step 3", "step 4"])
def test_the_weights_are_those_that_training_ended_with(place, digits, monkeypatch):
    strategy = make_strategy("dco-comp" if place == "step 4" else "dco")
    owner, name, after = PLACES[place]
    trained = []
    snapshot = gradients.snapshot

    def noting(parameters):
        if not trained:
            trained.append(weights_of(strategy.model))
        return snapshot(parameters)

    strategy.plugins[0].gamma_1 = 0.0  # takes no snapshot of its own
    monkeypatch.setattr(gradients, "snapshot", noting)
    monkeypatch.setattr(owner, name, interrupt(after, getattr(owner, name)))
    with pytest.raises(KeyboardInterrupt):
        strategy.train(digits.train_stream[0])
    assert torch.equal(weights_of(strategy.model), trained[0])
