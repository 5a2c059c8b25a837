"""Beside replay: the plugins do not undo it, and their default strength is lower."""

from functools import partial

import pytest
import torch
from avalanche.training.plugins import MIRPlugin, ReplayPlugin
from avalanche.training.supervised import ER_ACE

from avalanche_dco import DCOCompPlugin, DCOKronPlugin, DCOPlugin
from avalanche_dco.plugins.support.compatibility import replays
from benchmarks.streams.digits import split_digits
from tests.support.learning import blobs, digit_accuracy, naive, small_mlp

TRAINED = {"k": 32, "gradients_per_update": 8, "autoencoder_updates": 30, "push_epochs": 10}
TRAINED |= {"directions": "trained", "penalty_every": 1, "couple_layers": True}


@pytest.fixture(scope="module")
def beside_replay():
    """The mean accuracy over three seeds on class-incremental digits, beside replay."""
    digits = split_digits(5)

    def mean_accuracy(make_plugins):
        plugins = ([ReplayPlugin(100), *make_plugins()] for _ in range(3))
        return sum(digit_accuracy(seed, own, digits) for seed, own in enumerate(plugins)) / 3

    return mean_accuracy


@pytest.fixture(scope="module")
def replay_alone(beside_replay):
    return beside_replay(list)


@pytest.mark.parametrize(
    "plugin",
    [
        partial(DCOPlugin, **TRAINED),
        partial(DCOPlugin, k=200),
        partial(DCOCompPlugin, k=200),
        partial(DCOCompPlugin, **TRAINED),
        DCOKronPlugin,
    ],
    ids=["trained and pushed", "DCO", "DCO-COMP", "DCO-COMP, trained and pushed", "DCO-KRON"],
)
def test_it_leaves_replay_its_effect(plugin, beside_replay, replay_alone):
    """docs/decisions.md tells the figures."""
    accuracy = beside_replay(lambda: [plugin()])
    print(f"replay {replay_alone:.3f}, with the plugin {accuracy:.3f}")
    assert accuracy > replay_alone - 0.02


class TestDefaultStrength:
    @pytest.mark.parametrize(
        ("plugin", "alone", "beside"),
        [
            (DCOPlugin, 3, 0.01),
            (DCOCompPlugin, 3, 0.01),
            (partial(DCOCompPlugin, directions="sampled"), 100, 0.1),
            (DCOKronPlugin, 100, 3),
        ],
    )
    def test_it_is_lower_beside_replay(self, plugin, alone, beside):
        for others, expected in (([], alone), ([ReplayPlugin(10)], beside)):
            one = plugin()
            assert one.dco_lambda == alone
            naive(small_mlp(), [*others, one], train_epochs=1).train(blobs(1).train_stream[0])
            assert one.dco_lambda == expected

    def test_replay_by_a_strategy_or_beside_the_loader(self):
        model = small_mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert replays(ER_ACE(model=model, optimizer=optimizer))
        assert replays(naive(model, [MIRPlugin(10, subsample=4)]))
        assert not replays(naive(model, []))

    @pytest.mark.parametrize("plugin", [DCOPlugin, DCOKronPlugin])
    def test_a_strength_that_is_given_or_assigned_is_kept(self, plugin):
        given, assigned = plugin(dco_lambda=100), plugin()
        assigned.dco_lambda = 7
        for one, expected in ((given, 100), (assigned, 7)):
            strategy = naive(small_mlp(), [ReplayPlugin(10), one], train_epochs=1)
            strategy.train(blobs(1).train_stream[0])
            assert one.dco_lambda == expected
