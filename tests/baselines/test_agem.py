"""A-GEM: what is wrong in Avalanche's, and right in ours."""

from typing import Any

import pytest
import torch
from avalanche.training import plugins

from avalanche_dco.baselines import AGEMPlugin
from avalanche_dco.errors import SettingError
from benchmarks.streams.digits import permuted_digits

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
