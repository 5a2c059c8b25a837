"""One run: a network learns one stream of experiences with one method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd
import torch
from avalanche.benchmarks import CLScenario
from avalanche.evaluation.metric_definitions import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_dco import seed_everything
from avalanche_dco.errors import DataError
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import error_metrics
from avalanche_dco.metrics.names import MetricName, NameParts
from benchmarks.methods import DIRECTION_CONSTRAINED, Method, get_method
from benchmarks.runs.before_push import ErrorsBeforePush, errors_before_push
from benchmarks.runs.cost import (
    GradientBudget,
    count_gradients,
    dco_gradients,
    gradient_evaluations,
    kept_bytes,
    listening_to_gradients,
    peak_megabytes,
)
from benchmarks.runs.jobs import ENDED_AFTER, Job
from benchmarks.runs.training import Training
from benchmarks.streams.catalogue import TASKS, classes_of
from benchmarks.streams.data_path import TensorBatches
from benchmarks.streams.tensors import first_experiences, held_out

OnProgress = Callable[[float, int], None]

_UNTIL_STOPPED = 10**9  # epochs of a training that ends by its budget


class Checkpoints(Protocol):
    """Keeps a run's state between experiences, the metrics recorded so far included."""

    def load(self, strategy: SupervisedTemplate) -> tuple[SupervisedTemplate, int]:
        """The strategy to continue with, and how many trainings it has finished."""

    def save(self, strategy: SupervisedTemplate) -> None:
        """Keep the state after a training."""


class TrainingCost(PluginMetric):
    """Emits seconds, gradient evaluations and peak memory of every training."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Start to measure."""
        self._seconds, self._gradients = time.perf_counter(), gradient_evaluations()

    def result(self) -> dict[str, float]:
        """What has been spent since training began."""
        return {
            "TrainingSeconds": time.perf_counter() - self._seconds,
            "GradientEvaluations": gradient_evaluations() - self._gradients,
            "PeakMegabytes": peak_megabytes(),
        }

    def before_training(self, strategy: SupervisedTemplate) -> None:
        self.reset()

    def after_training(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        return [
            MetricValue(
                self, MetricName(NameParts(name, "train")), value, strategy.clock.train_iterations
            )
            for name, value in self.result().items()
        ]


@dataclass(frozen=True)
class Outcome:
    """What a run has shown.

    :param metrics: what the logger recorded: errors, as fractions, and costs.
    :param memory_bytes: what the method keeps between experiences.
    :param ended_after: the experiences learned, if the run was not worth finishing.
    """

    metrics: pd.DataFrame
    memory_bytes: int
    ended_after: int | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """Average, FWI and BWT error in %, what it cost, and the errors before DCO's push."""
        values = self.metrics.groupby("metric")["value"].agg(list)
        gradients = [int(count) for count in values["GradientEvaluations"]]
        return {
            "average": 100 * values["AverageError"][-1],
            "fwi": 100 * values["FWIError"][-1],
            "bwt": 100 * values["BWTError"][-1],
            "seconds": sum(values["TrainingSeconds"]),
            "memory_bytes": self.memory_bytes,
            "peak_megabytes": max(values["PeakMegabytes"]),
            "gradient_evaluations": sum(gradients),
            "gradient_evaluations_by_experience": gradients,
            **errors_before_push(self.metrics),
            **({} if self.ended_after is None else {ENDED_AFTER: self.ended_after}),
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
    """The strategy of a method, trained the way all benchmarks train."""
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
    of_push = [ErrorsBeforePush(stream.test_stream)] if _pushes(job) else []
    strategy = make_strategy(
        method,
        job.settings,
        network,
        job.training,
        evaluator=EvaluationPlugin(
            error_metrics(matrix=True), TrainingCost(), *of_push, loggers=[PandasLogger()]
        ),
        plugins=[] if job.training.matched_to is None else [GradientBudget(expected)],
    )
    strategy, done = checkpoints.load(strategy)
    for metric in strategy.evaluator.metrics:
        if isinstance(metric, ErrorsBeforePush):
            metric.stream = stream.test_stream
    train_inputs = method.train_inputs(stream.train_stream)

    def report() -> None:
        share = (gradient_evaluations() - evaluations) / expected[min(done, len(expected) - 1)]
        on_progress(done + min(share, 1.0), len(train_inputs))

    evaluations = gradient_evaluations()
    on_progress(done, len(train_inputs))
    with listening_to_gradients(report):
        for train_input in train_inputs[done:]:
            for group in strategy.optimizer.param_groups:
                group["lr"] = job.training.lr_of(done)
            evaluations = gradient_evaluations()
            strategy.train(train_input)
            done += 1
            # A search only asks what has become of the tasks learned so far.
            few = job.split == "validation" and not method.whole_stream
            values = strategy.eval(stream.test_stream[:done] if few else stream.test_stream)
            on_progress(done, len(train_inputs))
            if done < len(train_inputs):
                if _is_hopeless(job, done, values):
                    break
                checkpoints.save(strategy)
    (logger,) = strategy.evaluator.loggers
    metrics = logger.to_frame()
    return Outcome(
        metrics[metrics["value"].notna()],
        kept_bytes(method, strategy),
        ended_after=None if done == len(train_inputs) else done,
    )


def _is_hopeless(job: Job, done: int, values: Mapping[str, Any]) -> bool:
    """Whether the errors so far are too large; after one experience nothing is forgotten yet."""
    if job.give_up_above is None or done < 2:
        return False
    (average,) = (value for name, value in values.items() if name.startswith("AverageError/"))
    return 100 * average > job.give_up_above


def _pushes(job: Job) -> bool:
    """Whether the method changes the weights once an experience has been trained."""
    settings = job.settings
    return job.method in DIRECTION_CONSTRAINED and settings["push_epochs"] * settings["theta"] > 0


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
