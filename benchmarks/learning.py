"""One run: a network learns one stream of experiences with one method."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin, EWCPlugin
from avalanche.training.supervised import Naive

from avalanche_dco import DCOCompPlugin, DCOPlugin
from benchmarks.presets import Preset
from benchmarks.tasks import TASKS

METHODS: dict[str, Callable[..., list[SupervisedPlugin]]] = {
    "naive": lambda: [],
    "ewc": lambda **settings: [EWCPlugin(**settings)],
    "dco": lambda **settings: [DCOPlugin(**settings)],
    "dco-comp": lambda **settings: [DCOCompPlugin(**settings)],
}


@dataclass(frozen=True)
class Outcome:
    """What a run has shown.

    :param errors: ``errors[i][j]`` is the test error (in %) on experience j after training on i.
    :param seconds: wall time of training, evaluation not counted.
    :param memory_bytes: what the method keeps between experiences, where it tells.
    :param peak_megabytes: the process' peak resident memory so far.
    """

    errors: list[list[float]]
    seconds: float
    memory_bytes: int
    peak_megabytes: float

    @property
    def average(self) -> float:
        """E^A_n, the mean error over all tasks at the end."""
        return sum(self.errors[-1]) / len(self.errors)

    @property
    def fwi(self) -> float:
        """E^FWI_n, the mean error on each task right after it was learned."""
        return sum(self.errors[j][j] for j in range(len(self.errors))) / len(self.errors)

    @property
    def bwt(self) -> float:
        """E^BWT_n, the mean rise of the error since a task was learned."""
        return self.average - self.fwi


def learn(
    task: str,
    method: str,
    preset: Preset,
    *,
    seed: int,
    data_root: Path | None = None,
    settings: dict[str, Any] | None = None,
    on_experience: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Train on the whole stream and test on all experiences after each.

    :param task: name of the benchmark.
    :param method: name of the method.
    :param preset: how to train.
    :param seed: seed of the weights, the order of the samples and the permutations.
    :param data_root: folder with the data, for benchmarks that are not embedded.
    :param settings: settings of the method instead of the preset's.
    :param on_experience: called with the number of experiences done and of all, for progress.
    """
    torch.manual_seed(seed)
    stream = TASKS[task].build(seed, data_root)
    network = TASKS[task].network()
    plugins = METHODS[method](**(preset.methods.get(method, {}) | (settings or {})))
    evaluator = EvaluationPlugin(accuracy_metrics(experience=True), loggers=[])
    strategy = Naive(
        model=network,
        optimizer=torch.optim.SGD(
            network.parameters(), lr=preset.lr, momentum=0.9, weight_decay=preset.weight_decay
        ),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=preset.batch_size,
        train_epochs=preset.epochs,
        eval_mb_size=1024,
        plugins=plugins,
        evaluator=evaluator,
    )
    seconds, errors = 0.0, []
    for experience in stream.train_stream:
        start = time.perf_counter()
        strategy.train(experience)
        seconds += time.perf_counter() - start
        errors.append(_errors(strategy.eval(stream.test_stream)))
        if on_experience is not None:
            on_experience(len(errors), len(stream.train_stream))
    memory = sum(getattr(plugin, "memory_bytes", 0) for plugin in plugins)
    return Outcome(errors, seconds, memory, _peak_megabytes())


def _errors(metrics: dict[str, Any]) -> list[float]:
    accuracies = {
        name.rsplit("/Exp", 1)[1]: value
        for name, value in metrics.items()
        if name.startswith("Top1_Acc_Exp/eval_phase/test_stream")
    }
    return [100 * (1 - accuracies[number]) for number in sorted(accuracies)]


def _peak_megabytes() -> float:
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
