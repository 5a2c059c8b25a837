"""LwF: what is wrong in Avalanche's, and right in ours."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from avalanche.benchmarks.utils import as_taskaware_classification_dataset
from avalanche.training import plugins
from torch import nn
from torch.nn import utils

from avalanche_dco.baselines import LwFPlugin
from avalanche_dco.errors import ModelError
from benchmarks.streams.tensors import tensor_benchmark, tensor_dataset
from tests.support.small_runs import (
    PERMUTED,
    SPLIT,
    MultiHeadMLP,
    TwoOutputs,
    mlp,
    naive,
    of_the_first,
    same_weights,
    trained,
)


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
        trained(mlp, plugins.LwFPlugin(), PERMUTED[:2])
    ours = trained(mlp, LwFPlugin(), PERMUTED[:2])
    assert not same_weights(ours, trained(mlp, None, PERMUTED[:2]))


def test_multi_head_models_keep_the_classes_by_task() -> None:
    plugin = LwFPlugin([1, 1, 2, 2])
    trained(MultiHeadMLP, plugin, SPLIT)
    assert dict(plugin.lwf.prev_classes_by_task) == {0: {0, 1}, 1: {2, 3}, 2: {4, 5}}
    assert plugin.lwf.expcount == 3


@pytest.mark.parametrize("ignored", [-1, 2])
def test_an_ignored_label_is_no_class(ignored: int) -> None:
    """With -1, a class of that number would be the last output."""
    x, y = torch.randn(2, 40, 64), torch.arange(40) % 10
    y[y == 2] = ignored
    data = [tensor_dataset(part, y) for part in x]
    plugin = LwFPlugin()
    criterion = nn.CrossEntropyLoss(ignore_index=ignored)
    trained(mlp, plugin, tensor_benchmark(data, data).train_stream, criterion=criterion)
    assert plugin.lwf.prev_classes_by_task == {0: {0, 1, 3, 4, 5, 6, 7, 8, 9}}


def test_old_style_weight_norm() -> None:
    def normed() -> nn.Module:
        model = mlp()
        utils.weight_norm(model[0])
        return model

    plugin = LwFPlugin()
    strategy = trained(normed, plugin, PERMUTED[:2])
    teacher, student = plugin.lwf.prev_model, strategy.model
    x = torch.randn(5, 64)
    assert torch.equal(teacher(x), student(x))
    with torch.no_grad():
        student[0].weight_g.mul_(2)
    assert not torch.allclose(teacher(x), student(x))


def test_several_outputs_are_refused_before_the_model_is_trained() -> None:
    strategy = naive(TwoOutputs(64, 10), LwFPlugin(), criterion=of_the_first)
    with pytest.raises(ModelError, match="one tensor, but this model returns tuple"):
        strategy.train(PERMUTED[0])
    assert strategy.clock.train_iterations == 0
