"""LwF: what is wrong in Avalanche's, and right in ours."""

from types import SimpleNamespace
from typing import Any

import pytest
from avalanche.benchmarks.utils import as_taskaware_classification_dataset
from avalanche.training import plugins

from avalanche_dco.baselines import LwFPlugin
from benchmarks.streams.digits import permuted_digits, split_digits
from tests.support.small_runs import MultiHeadMLP, mlp, same_weights, trained

PERMUTED = list(permuted_digits(2).train_stream)
SPLIT = list(split_digits().train_stream)[:3]


def after(plugin: Any, experiences: list[Any]) -> Any:
    """The plugin after experiences on which nothing was learned."""
    strategy = SimpleNamespace(model=mlp(0.5).train(), clock=plugins.clock.Clock())
    for experience in experiences:
        # Avalanche's own reads the classes through task_set, which this kind of dataset has.
        dataset = as_taskaware_classification_dataset(experience.dataset)
        strategy.experience = SimpleNamespace(dataset=dataset)
        plugin.after_training_exp(strategy)
    return plugin


def test_avalanches_teacher_is_in_train_mode_and_ours_in_eval_mode() -> None:
    theirs, ours = after(plugins.LwFPlugin(), SPLIT[:1]), after(LwFPlugin(), SPLIT[:1])
    assert all(module.training for module in theirs.lwf.prev_model.modules())
    assert not any(module.training for module in ours.lwf.prev_model.modules())


def test_without_task_labels_avalanches_knows_the_classes_of_task_0_only() -> None:
    theirs, ours = after(plugins.LwFPlugin(), SPLIT), after(LwFPlugin(), SPLIT)
    assert theirs.lwf.prev_classes_by_task[0] == {0, 1}
    assert ours.lwf.prev_classes_by_task[0] == {0, 1, 2, 3, 4, 5}


def test_datasets_without_a_task_set_fail_there_and_work_here() -> None:
    with pytest.raises(AttributeError, match="task_set"):
        trained(mlp, plugins.LwFPlugin(), PERMUTED)
    ours = trained(mlp, LwFPlugin(), PERMUTED)
    assert not same_weights(ours, trained(mlp, None, PERMUTED))


def test_multi_head_models_keep_the_classes_by_task() -> None:
    plugin = LwFPlugin([1, 1, 2, 2])
    trained(MultiHeadMLP, plugin, SPLIT)
    assert dict(plugin.lwf.prev_classes_by_task) == {0: {0, 1}, 1: {2, 3}, 2: {4, 5}}
    assert plugin.lwf.expcount == 3
