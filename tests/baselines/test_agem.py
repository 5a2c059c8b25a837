"""A-GEM: what is wrong in Avalanche's, and right in ours."""

import random
from typing import Any

import pytest
import torch
from avalanche.training import plugins
from torch import nn

from avalanche_dco.baselines import AGEMPlugin, agem
from avalanche_dco.errors import SettingError
from benchmarks.streams.digits import permuted_digits
from tests.support.small_runs import trained

DATASETS = [experience.dataset for experience in permuted_digits(3).train_stream]


@pytest.mark.parametrize(
    ("plugin_class", "comes_back"), [(plugins.AGEMPlugin, True), (AGEMPlugin, False)]
)
def test_whether_the_same_batches_come_back_in_turn(plugin_class: Any, comes_back: bool) -> None:
    plugin = plugin_class(patterns_per_experience=40, sample_size=20)
    for dataset in DATASETS[:2]:
        plugin.update_memory(dataset)
    batches = [plugin.sample_from_memory()[0] for _ in range(8)]
    assert all(len(batch) == 20 for batch in batches)
    assert torch.equal(batches[0], batches[4]) == comes_back
    assert torch.equal(batches[1], batches[5]) == comes_back


def test_a_sample_smaller_than_the_number_of_experiences() -> None:
    theirs, ours = (cls(10, 2) for cls in (plugins.AGEMPlugin, AGEMPlugin))
    for dataset in DATASETS[:2]:
        theirs.update_memory(dataset)
        ours.update_memory(dataset)
    theirs.update_memory(DATASETS[2])
    with pytest.raises(ValueError, match="batch_size=0"):
        theirs.sample_from_memory()
    with pytest.raises(SettingError, match="sample_size of at least"):
        ours.update_memory(DATASETS[2])


def test_the_memory_holds_as_much_of_each_experience() -> None:
    plugin = AGEMPlugin(30, 10)
    for dataset in DATASETS:
        plugin.update_memory(dataset)
    assert [len(buffer) for buffer in plugin.buffers] == [30, 30, 30]


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


def test_weights_in_channels_last_layout() -> None:
    experiences = list(permuted_digits(2).train_stream)

    def channels_last() -> nn.Module:
        return convolutional().to(memory_format=torch.channels_last)

    with pytest.raises(RuntimeError, match="view size is not compatible"):
        trained(channels_last, plugins.AGEMPlugin(50, 20), experiences)

    def run(make_model: Any, plugin: Any) -> list[torch.Tensor]:
        random.seed(1)
        strategy = trained(make_model, plugin, experiences)
        return [parameter.detach() for parameter in strategy.model.parameters()]

    last, first = run(channels_last, AGEMPlugin(50, 20)), run(convolutional, AGEMPlugin(50, 20))
    naively = run(convolutional, None)
    assert not last[2].is_contiguous()
    assert not torch.allclose(first[2], naively[2], rtol=1e-3, atol=1e-3), "some are projected"
    for one, other in zip(last, first, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_the_projection_is_avalanches_own_where_that_works() -> None:
    def run(projection: Any) -> list[torch.Tensor]:
        plugin = AGEMPlugin(50, 20)
        random.seed(1)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("before_training_iteration", "after_backward"):
                patch.setattr(agem._AnyLayout, name, getattr(projection, name))
            strategy = trained(convolutional, plugin, list(permuted_digits(2).train_stream))
        return list(strategy.model.parameters())

    for one, other in zip(run(agem._AnyLayout), run(plugins.AGEMPlugin), strict=True):
        assert torch.equal(one, other)
