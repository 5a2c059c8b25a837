"""Riemannian Walk: what is wrong in Avalanche's, and right in ours."""

from typing import Any

import pytest
from avalanche.training import plugins

from avalanche_dco.baselines import RWalkPlugin
from tests.support.small_runs import (
    PERMUTED,
    SPLIT,
    GrowingMLP,
    MultiHeadMLP,
    mlp,
    same_weights,
    trained,
)


class Modes(plugins.SupervisedPlugin):
    """Note the mode of each module whenever the model is about to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[bool]] = []

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        self.seen.append([module.training for module in strategy.model.modules()])


def seen_modes(plugin: plugins.SupervisedPlugin) -> list[list[bool]]:
    modes = Modes()
    trained(lambda: mlp(0.2), plugin, PERMUTED[:1], plugins=[plugin, modes])
    return modes.seen


def test_avalanches_own_trains_in_eval_mode_and_ours_in_train_mode() -> None:
    assert not any(any(modes) for modes in seen_modes(plugins.RWalkPlugin()))
    assert all(all(modes) for modes in seen_modes(RWalkPlugin()))


def test_a_module_kept_in_eval_mode_stays_there() -> None:
    class KeepsDropoutOff(plugins.SupervisedPlugin):
        def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
            strategy.model[2].eval()

    modes = Modes()
    rwalk = RWalkPlugin()
    trained(lambda: mlp(0.2), rwalk, PERMUTED[:1], plugins=[KeepsDropoutOff(), rwalk, modes])
    assert all(m == [True, True, True, False, True] for m in modes.seen)


def test_avalanches_own_fails_on_a_new_head_and_ours_protects_it() -> None:
    with pytest.raises(KeyError):
        trained(MultiHeadMLP, plugins.RWalkPlugin(), SPLIT)
    rwalk = RWalkPlugin(delta_t=2)
    trained(MultiHeadMLP, rwalk, SPLIT)
    assert rwalk.exp_penalties is not None
    assert rwalk.exp_penalties["classifier.classifiers.2.classifier.weight"].data.max() > 0
    assert rwalk.exp_scores is not None
    assert rwalk.exp_scores["classifier.classifiers.2.classifier.weight"].data.any()


def test_a_growing_head_is_trained() -> None:
    strategy = trained(GrowingMLP, RWalkPlugin(), SPLIT)
    assert all(parameter.isfinite().all() for parameter in strategy.model.parameters())


def test_experiences_shorter_than_the_interval_give_nan_there_and_numbers_here() -> None:
    theirs, ours = plugins.RWalkPlugin(delta_t=1000), RWalkPlugin(delta_t=1000)
    broken = trained(mlp, theirs, PERMUTED[:2])
    sound = trained(mlp, ours, PERMUTED[:2])
    assert any(parameter.isnan().any() for parameter in broken.model.parameters())
    assert all(parameter.isfinite().all() for parameter in sound.model.parameters())


def test_where_nothing_was_wrong_ours_is_avalanches_own() -> None:
    """No dropout, fixed parameters, and an interval that ends with the experience."""
    iterations = -(-len(PERMUTED[0].dataset) // 64)
    theirs = trained(mlp, plugins.RWalkPlugin(1.0, delta_t=iterations), PERMUTED[:2])
    ours = trained(mlp, RWalkPlugin(1.0, delta_t=iterations), PERMUTED[:2])
    assert same_weights(theirs, ours)
    assert not same_weights(trained(mlp, None, PERMUTED[:2]), ours)
