"""A validation split: part of the training data, held out to choose settings on."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from avalanche.benchmarks import CLScenario

from benchmarks.streams.tensors import tensor_benchmark

SHARE = 0.1
"""Share of each class of each experience that is held out."""


def held_out(benchmark: CLScenario, seed: int, share: float = SHARE) -> CLScenario:
    """A benchmark whose test stream is part of the given one's train stream.

    The test data of the given benchmark are not touched. Every class of every experience is
    divided alike; the same seed divides the same way.

    :param benchmark: the benchmark.
    :param seed: seed of the division.
    :param share: share of the training samples to hold out, at least one per class.
    """
    generator = torch.Generator().manual_seed(seed)
    kept, held = [], []
    for experience in benchmark.train_stream:
        dataset: Any = experience.dataset
        by_class: dict[int, list[int]] = defaultdict(list)
        for index, target in enumerate(dataset.targets):
            by_class[int(target)].append(index)
        training, validation = [], []
        for _, indices in sorted(by_class.items()):
            order = torch.randperm(len(indices), generator=generator).tolist()
            shuffled = [indices[i] for i in order]
            count = max(1, round(share * len(indices)))
            validation += shuffled[:count]
            training += shuffled[count:]
        kept.append(dataset.subset(sorted(training)))
        held.append(dataset.subset(sorted(validation)))
    return tensor_benchmark(train=kept, test=held)
