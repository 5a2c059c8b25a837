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
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin

from avalanche_dco.metrics import average_error, bwt_error, fwi_error
from benchmarks.data_path import TensorBatches
from benchmarks.methods import get_method
from benchmarks.presets import Preset
from benchmarks.tasks import TASKS

OnExperience = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    """What a run has shown.

    :param errors: one row per training: the test error (in %) on every experience after it. A
        method that trains on all experiences at once has one row.
    :param seconds: wall time of training, evaluation not counted.
    :param memory_bytes: what the method keeps between experiences, where it tells.
    :param peak_megabytes: the process' peak resident memory so far.
    """

    errors: list[list[float]]
    seconds: float
    memory_bytes: int
    peak_megabytes: float

    @property
    def summary(self) -> dict[str, float]:
        """Average, FWI and BWT error in %, time and memory."""
        last = len(self.errors) - 1
        learned_at = {j: min(j, last) for j in range(len(self.errors[0]))}
        return {
            "average": average_error(self.errors, learned_at),
            "fwi": fwi_error(self.errors, learned_at),
            "bwt": bwt_error(self.errors, learned_at),
            "seconds": self.seconds,
            "memory_bytes": self.memory_bytes,
            "peak_megabytes": self.peak_megabytes,
        }


def learn(
    task: str,
    method: str,
    preset: Preset,
    *,
    seed: int,
    settings: dict[str, Any],
    data_root: Path | None = None,
    on_experience: OnExperience | None = None,
) -> Outcome:
    """Train on the whole stream and test on all experiences after each.

    :param task: name of the benchmark.
    :param method: name of the method.
    :param preset: how to train.
    :param seed: seed of the weights, the order of the samples and the permutations.
    :param settings: settings of the method.
    :param data_root: folder with the data, for benchmarks that are not embedded.
    :param on_experience: called with the number of experiences done and of all.
    """
    torch.manual_seed(seed)
    stream = TASKS[task].build(seed, data_root)
    network = TASKS[task].network()
    how = get_method(method)
    strategy = how.make(
        settings,
        model=network,
        optimizer=torch.optim.SGD(
            network.parameters(), lr=preset.lr, momentum=0.9, weight_decay=preset.weight_decay
        ),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=preset.batch_size,
        train_epochs=preset.epochs,
        eval_mb_size=1024,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
        plugins=[TensorBatches()],
    )
    errors: list[list[float]] = []
    evaluation = 0.0

    def test(index: int) -> None:
        nonlocal evaluation
        begin = time.perf_counter()
        errors.append(_errors(strategy.eval(stream.test_stream)))
        evaluation += time.perf_counter() - begin
        if on_experience is not None:
            on_experience(index + 1, len(stream.train_stream))

    start = time.perf_counter()
    how.train(strategy, stream.train_stream, test)
    seconds = time.perf_counter() - start - evaluation
    memory = sum(getattr(plugin, "memory_bytes", 0) for plugin in strategy.plugins)
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
