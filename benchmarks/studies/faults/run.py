"""A short run that can be interrupted anywhere, continued, and compared with an unbroken one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_dco import (
    DCOCompPlugin,
    DCOPlugin,
    maybe_load_checkpoint,
    save_checkpoint,
    seed_everything,
)
from avalanche_dco.logging import PandasLogger, read_log
from avalanche_dco.metrics import error_metrics
from avalanche_dco.persistence.files import checksum
from benchmarks.streams.tensors import tensor_benchmark, tensor_dataset

Report = Callable[[str], None]
"""Tells the parent process of an event, in one line."""
EXPERIENCES = 6
_SAMPLES, _INPUTS, _CLASSES = 48, 8, 3
_QUICK: dict[str, Any] = {
    "k": 12,
    "directions": "trained",
    "couple_layers": True,
    "penalty_every": 1,
    "push_epochs": 2,
    "averaged_points": 2,
    "gradients_per_update": 8,
    "autoencoder_updates": 12,
}

_report: Report = lambda event: None  # noqa: E731 - replaced in the processes that report


class _Phases:
    """Tells when a step of the algorithm begins."""

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        _report("step 1")
        super().before_training_exp(strategy, **kwargs)  # type: ignore[misc]

    def _push_into_cone(self, *args: Any) -> Any:
        _report("step 2")
        return super()._push_into_cone(*args)  # type: ignore[misc]

    def _learn_directions(self, *args: Any) -> Any:
        _report("step 3")
        return super()._learn_directions(*args)  # type: ignore[misc]


class _DCO(_Phases, DCOPlugin):
    pass


class _DCOComp(_Phases, DCOCompPlugin):
    pass


METHODS = {"DCO": lambda: _DCO(**_QUICK), "DCO-COMP": lambda: _DCOComp(**_QUICK)}


def make_strategy(method: str, log: Path | None = None) -> SupervisedTemplate:
    """A strategy with momentum and dropout, seeded."""
    seed_everything(4)
    model = nn.Sequential(nn.Linear(_INPUTS, 10), nn.ReLU(), nn.Dropout(0.1), nn.Linear(10, 3))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")
        evaluator = EvaluationPlugin(
            error_metrics(), loggers=[] if log is None else [PandasLogger(log)]
        )
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=16,
        train_epochs=4,
        eval_mb_size=64,
        plugins=[METHODS[method]()],
        evaluator=evaluator,
    )


def make_benchmark() -> Any:
    """Random clusters, other ones in every experience."""
    generator = torch.Generator().manual_seed(9)
    datasets = []
    for _ in range(EXPERIENCES):
        y = torch.arange(_SAMPLES) % _CLASSES
        centres = 2 * torch.randn(_CLASSES, _INPUTS, generator=generator)
        datasets.append(
            tensor_dataset(centres[y] + torch.randn(_SAMPLES, _INPUTS, generator=generator), y)
        )
    return tensor_benchmark(train=datasets, test=datasets)


def fingerprint(strategy: SupervisedTemplate) -> str:
    """A hash of all that decides how the run goes on."""
    return checksum(_parts(strategy))


def _parts(strategy: SupervisedTemplate) -> Iterator[bytes]:
    for tensor in strategy.model.state_dict().values():
        yield tensor.numpy().tobytes()
    for state in strategy.optimizer.state_dict()["state"].values():
        yield state["momentum_buffer"].numpy().tobytes()
    yield strategy.plugins[0].state_dict()["checksum"].encode()
    yield repr(sorted(vars(strategy.clock).items())).encode()
    yield torch.get_rng_state().numpy().tobytes()


@dataclass
class Reference:
    """An uninterrupted run: its fingerprint and the plugin's state after each experience."""

    method: str
    benchmark: Any = field(default_factory=make_benchmark)
    fingerprints: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    logged: pd.DataFrame = field(default_factory=pd.DataFrame)

    def make(self, folder: Path) -> Reference:
        """Run it."""

        def take(strategy: SupervisedTemplate) -> None:
            self.fingerprints.append(fingerprint(strategy))
            self.states.append(strategy.plugins[0].state_dict()["checksum"])

        fresh = make_strategy(self.method)
        self.states.append(fresh.plugins[0].state_dict()["checksum"])
        self.fingerprints.append("")
        run(self, folder, after_experience=take)
        self.logged = _logged(folder)
        return self

    def logged_as_in(self, folder: Path) -> bool:
        """Whether a finished run has logged what this one has."""
        return bool(self.logged.equals(_logged(folder)))


def _logged(folder: Path) -> pd.DataFrame:
    """What the run has logged since it last started without a checkpoint."""
    frame = read_log(folder / "run.csv")
    latest = frame[frame["start"] == frame["start"].max()]
    return latest[["name", "value", "x", "trained"]].reset_index(drop=True)


def run(
    reference: Reference,
    folder: Path,
    report: Report = lambda event: None,
    after_experience: Callable[[Any], None] = lambda strategy: None,
) -> None:
    """Go on from the checkpoint in a folder, or start, and run to the end.

    :param report: called for every step, and for every checkpoint begun or finished.
    """
    global _report  # noqa: PLW0603
    _report = report
    strategy, first = maybe_load_checkpoint(
        make_strategy(reference.method, folder / "run.csv"), folder / "run.ckpt"
    )
    try:
        for experience in reference.benchmark.train_stream[first:]:
            strategy.train(experience)
            strategy.eval(reference.benchmark.test_stream)
            report("write")
            save_checkpoint(strategy, folder / "run.ckpt")
            report("finished")
            after_experience(strategy)
    except KeyboardInterrupt:
        finished = strategy.clock.train_exp_counter
        report(f"stopped {strategy.plugins[0].state_dict()['checksum']} {finished}")
        raise


def restored(reference: Reference, folder: Path) -> tuple[int, str]:
    """What a new process finds."""
    strategy, finished = maybe_load_checkpoint(make_strategy(reference.method), folder / "run.ckpt")
    return finished, "" if finished == 0 else fingerprint(strategy)
