"""One run: a network learns one stream of experiences with one method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from avalanche.benchmarks import CLScenario
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_dco import seed_everything
from avalanche_dco.errors import DataError
from avalanche_dco.metrics import average_error, bwt_error, fwi_error
from benchmarks.methods import DIRECTION_CONSTRAINED, Method, get_method
from benchmarks.runs.cost import (
    GradientBudget,
    count_gradients,
    dco_gradients,
    gradient_evaluations,
    kept_bytes,
    peak_megabytes,
    told_of_gradients,
)
from benchmarks.runs.jobs import Job
from benchmarks.runs.training import Training
from benchmarks.streams.catalogue import TASKS, classes_of
from benchmarks.streams.data_path import TensorBatches
from benchmarks.streams.tensors import first_experiences
from benchmarks.streams.validation import held_out

OnProgress = Callable[[float, int], None]

_UNTIL_STOPPED = 10**9  # epochs of a training that ends by its budget


@dataclass
class Progress:
    """What a run has shown so far; every list has one entry per training.

    :param errors: the error (in %) on every experience after it. A method that trains on all
        experiences at once has one row.
    :param seconds: wall time of training, evaluation not counted.
    :param gradient_evaluations: batch gradients computed.
    :param peak_megabytes: the process' peak resident memory so far.
    """

    errors: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    gradient_evaluations: list[int] = field(default_factory=list)
    peak_megabytes: list[float] = field(default_factory=list)

    def first(self, count: int) -> Progress:
        """Only the first trainings."""
        return Progress(*(values[:count] for values in vars(self).values()))


class Checkpoints(Protocol):
    """Keeps a run's state between experiences."""

    def load(self, strategy: SupervisedTemplate) -> tuple[SupervisedTemplate, Progress]:
        """The strategy to go on with, and what it has shown: nothing at a fresh start."""

    def save(self, strategy: SupervisedTemplate, progress: Progress) -> None:
        """Keep the state after a training."""


@dataclass(frozen=True)
class Outcome:
    """What a run has shown.

    :param progress: errors and costs of every training.
    :param memory_bytes: what the method keeps between experiences.
    """

    progress: Progress
    memory_bytes: int

    @property
    def errors(self) -> list[list[float]]:
        """One row per training: the error (in %) on every experience after it."""
        return self.progress.errors

    @property
    def summary(self) -> dict[str, Any]:
        """Average, FWI and BWT error in %, and what it cost."""
        last = len(self.errors) - 1
        learned_at = {j: min(j, last) for j in range(len(self.errors[0]))}
        return {
            "average": average_error(self.errors, learned_at),
            "fwi": fwi_error(self.errors, learned_at),
            "bwt": bwt_error(self.errors, learned_at),
            "seconds": sum(self.progress.seconds),
            "memory_bytes": self.memory_bytes,
            "peak_megabytes": max(self.progress.peak_megabytes),
            "gradient_evaluations": sum(self.progress.gradient_evaluations),
            "gradient_evaluations_by_experience": self.progress.gradient_evaluations,
        }


def make_strategy(
    method: Method,
    settings: Mapping[str, Any],
    network: nn.Module,
    training: Training,
    *,
    evaluator: EvaluationPlugin,
    plugins: Sequence[SupervisedPlugin] = (),
) -> SupervisedTemplate:
    """The strategy of a method, trained the way all benchmarks train.

    :param method: the method.
    :param settings: its settings.
    :param network: the network.
    :param training: how it is trained.
    :param evaluator: collects the metrics.
    :param plugins: further plugins.
    """
    return method.make(
        settings,
        model=network,
        optimizer=torch.optim.SGD(
            network.parameters(), lr=training.lr, momentum=0.9, weight_decay=training.weight_decay
        ),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=training.batch_size,
        train_epochs=training.epochs if training.matched_to is None else _UNTIL_STOPPED,
        eval_mb_size=1024,
        plugins=[TensorBatches(), *plugins],
        evaluator=evaluator,
    )


def learn(job: Job, checkpoints: Checkpoints, on_progress: OnProgress) -> Outcome:
    """Train on the whole stream and evaluate on all experiences after each.

    Runs with the same seed start from the same weights and see the same batches in the same order,
    as far as the method draws no random numbers of its own in between.

    :param job: what to run.
    :param checkpoints: where the state between experiences is kept.
    :param on_progress: called with the experiences done, in fractions, and the number of all.
    """
    try:
        stream = TASKS[job.protocol].build(job.seed, job.data)
    except (ValueError, RuntimeError, IndexError) as error:  # of torchvision and Avalanche
        raise DataError(
            f"the data of {job.benchmark} cannot be split ({type(error).__name__}: {error})."
        ) from error
    if job.split == "validation":
        stream = held_out(stream, job.seed)
    classes = classes_of(stream)  # of all experiences, so that fewer have the same network
    if job.training.experiences is not None:
        stream = first_experiences(stream, job.training.experiences)
    seed_everything(job.seed)
    method = get_method(job.method)
    expected = _expected_gradients(job, stream)
    network = TASKS[job.protocol].model(classes, job.training.precision)
    count_gradients(network)
    strategy = make_strategy(
        method,
        job.settings,
        network,
        job.training,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
        plugins=[] if job.training.matched_to is None else [GradientBudget(expected)],
    )
    strategy, progress = checkpoints.load(strategy)
    lessons = method.lessons(stream.train_stream)

    def report() -> None:
        done = len(progress.errors)
        share = (gradient_evaluations() - evaluations) / expected[min(done, len(expected) - 1)]
        on_progress(done + min(share, 1.0), len(lessons))

    evaluations = gradient_evaluations()
    on_progress(len(progress.errors), len(lessons))
    with told_of_gradients(report):
        for index in range(len(progress.errors), len(lessons)):
            for group in strategy.optimizer.param_groups:
                group["lr"] = job.training.lr_of(index)
            evaluations, start = gradient_evaluations(), time.perf_counter()
            strategy.train(lessons[index])
            progress.seconds.append(time.perf_counter() - start)
            progress.gradient_evaluations.append(gradient_evaluations() - evaluations)
            progress.peak_megabytes.append(peak_megabytes())
            progress.errors.append(_errors(strategy.eval(stream.test_stream)))
            on_progress(index + 1, len(lessons))
            if index + 1 < len(lessons):
                checkpoints.save(strategy, progress)
    return Outcome(progress, kept_bytes(method, strategy))


def _expected_gradients(job: Job, stream: CLScenario) -> list[int]:
    """Gradient evaluations per training: the budget of a matched one, an estimate otherwise."""
    counted = job.training.matched_to
    if counted is None and job.method in DIRECTION_CONSTRAINED:
        counted = job.settings
    trained = {"epochs": job.training.epochs, "batch_size": job.training.batch_size}
    trained |= {name: n for name, n in (job.training.matched_to or {}).items() if name in trained}
    epochs, batch_size = trained["epochs"], trained["batch_size"]
    batches = [-(-len(experience.dataset) // batch_size) for experience in stream.train_stream]
    expected = [
        epochs * count if counted is None else dco_gradients(counted, epochs, count)
        for count in batches
    ]
    return [sum(expected)] if get_method(job.method).whole_stream else expected


def _errors(metrics: dict[str, Any]) -> list[float]:
    accuracies = {
        name.rsplit("/Exp", 1)[1]: value
        for name, value in metrics.items()
        if name.startswith("Top1_Acc_Exp/eval_phase/test_stream")
    }
    return [100 * (1 - accuracies[number]) for number in sorted(accuracies)]
