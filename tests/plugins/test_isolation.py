"""After an experience nothing of the strategy has changed but the weights."""

import copy
import random

import numpy as np
import pytest
import torch
from avalanche.core import SupervisedPlugin
from torch import nn

from avalanche_dco import DCOPlugin
from tests.support.learning import QUICK, blobs, naive, small_mlp, weights_of


def fingerprint(strategy):
    """Everything but the weights, comparable by ==; tensors as lists, objects by identity."""
    optimizer, model = strategy.optimizer, strategy.model
    return {
        "identity": [
            id(getattr(strategy, name))
            for name in ("model", "optimizer", "dataloader", "mbatch", "mb_output", "loss")
        ],
        "batch": [part.tolist() for part in strategy.mbatch],
        "loss": strategy.loss.item(),
        "stop": strategy._stop_training,
        "experience": id(strategy.experience),
        "state": [
            {key: v.tolist() if torch.is_tensor(v) else v for key, v in state.items()}
            for state in optimizer.state.values()
        ],
        "owners": [id(p) for p in optimizer.state],
        "groups": copy.deepcopy(
            [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        ),
        "modes": [module.training for module in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
        "buffers": [b.tolist() for b in model.buffers()],
        "random": (random.random(), np.random.rand()),
        "clock": vars(strategy.clock).copy(),
    }


class Before(SupervisedPlugin):
    def after_training_exp(self, strategy, **kwargs):
        random.seed(5), np.random.seed(5)
        self.seen = fingerprint(strategy)
        random.seed(5), np.random.seed(5)


class After(Before):
    def after_training_exp(self, strategy, **kwargs):
        self.seen = fingerprint(strategy)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam], ids=["sgd", "adam"])
def test_nothing_is_changed_but_the_weights(make):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), small_mlp(8))
    model[3][0].bias.requires_grad_(False)
    before, after = Before(), After()
    strategy = naive(
        model,
        [before, DCOPlugin(**QUICK), after],
        optimizer=lambda p: make(
            p, lr=0.05, **({"momentum": 0.9} if make is torch.optim.SGD else {})
        ),
    )
    for experience in blobs().train_stream:
        strategy.train(experience)
        assert after.seen == before.seen


def test_modes_are_kept_as_the_user_set_them():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), small_mlp(8))

    class KeepsNormFixed(SupervisedPlugin):
        def before_training_epoch(self, strategy, **kwargs):
            strategy.model[1].eval()

    modes = []

    class Watching(DCOPlugin):
        def _learn_directions(self, strategy, *args):
            modes.extend(module.training for module in strategy.model.modules())
            return super()._learn_directions(strategy, *args)

    naive(model, [KeepsNormFixed(), Watching(**QUICK)]).train(blobs(1).train_stream[0])
    assert modes == [module is not model[1] for module in model.modules()]
    assert not model[1].training


def test_what_follows_does_not_depend_on_how_much_randomness_was_used():
    def next_number(**settings):
        torch.manual_seed(0)
        model = small_mlp()
        torch.manual_seed(1)
        naive(model, [DCOPlugin(**(QUICK | settings))]).train(blobs(1).train_stream[0])
        return torch.rand(()).item()

    assert next_number() == next_number(autoencoder_updates=9) == next_number(push_epochs=3)


def test_buffers_that_a_module_binds_anew_are_restored():
    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.register_buffer("mean", torch.zeros(6))
            self.register_buffer("seen", torch.zeros(0))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            self.seen = torch.cat([self.seen, x.mean()[None]])
            return self.linear(x - self.mean)

    model, before, after = Moving(), Before(), After()
    naive(model, [before, DCOPlugin(**QUICK), after]).train(blobs(1).train_stream[0])
    assert len(before.seen["buffers"][1]) == 6  # two epochs of three batches
    assert after.seen == before.seen


def test_two_experiences_do_not_see_the_same_random_numbers():
    drawn = []

    class Watching(DCOPlugin):
        def _learn_directions(self, *args):
            drawn.append(torch.rand(()).item())
            return super()._learn_directions(*args)

    strategy = naive(small_mlp(), [Watching(**QUICK)])
    for experience in blobs().train_stream:
        strategy.train(experience)
    assert drawn[0] != drawn[1]


def test_everything_is_restored_after_an_error_too():
    model = nn.Sequential(nn.BatchNorm1d(6), small_mlp())
    before = Before()

    class Fails(DCOPlugin):
        def _learn_directions(self, *args):
            raise RuntimeError("as arranged")

    strategy = naive(model, [before, Fails(**QUICK)])
    with pytest.raises(RuntimeError, match="as arranged"):
        strategy.train(blobs(1).train_stream[0])
    assert fingerprint(strategy) == before.seen
    assert torch.isfinite(weights_of(model)).all()
