"""Runs of the benchmarks small enough for tests, made in this process."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.commands import arguments
from benchmarks.runs.execution import RunOptions
from benchmarks.runs.jobs import Job
from benchmarks.runs.planning import Assignment, Plan, Request
from benchmarks.runs.provenance import provenance
from benchmarks.runs.runners import Event, Runner, report_run

TINY = {"k": 4, "push_epochs": 1}
TINY |= {"directions": "trained", "gradients_per_update": 2, "autoencoder_updates": 2}


def tiny_flags(*methods: str) -> list[str]:
    """Command line that makes runs of DCO short."""
    return [
        part
        for method in methods
        for name, value in TINY.items()
        for part in ("--set", f"{method}.{name}={value}")
    ]


def quick_job(method: str = "naive", seed: int = 1, *, epochs: int = 1, **request: object) -> Job:
    """One short run on Split Digits."""
    tiny = [Assignment(None, name, value) for name, value in TINY.items()]
    settings = request.pop("settings", tiny if method.startswith("dco") else [])
    split = request.pop("split", "test")
    plan = Plan(
        Request(
            "split-digits",
            [method],
            training=[Assignment(None, "epochs", epochs)],
            settings=settings,  # type: ignore[arg-type]
            **request,  # type: ignore[arg-type]
        )
    )
    return plan.job(method, seed, split=split)  # type: ignore[arg-type]


def run_options(out: Path) -> RunOptions:
    return RunOptions(out, 1, provenance(1))


def in_this_process(count: int) -> Runner:
    """What ``in_processes`` does, without the seconds it takes to start processes."""

    def run(jobs: Sequence[Job], where: RunOptions) -> Iterator[Event]:
        for number, job in enumerate(jobs):
            yield Event(number, "started")
            events: list[Event] = []
            report_run(
                job,
                where,
                lambda kind, content, n=number, to=events: to.append(Event(n, kind, content)),
            )
            yield from events

    return run


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "in_processes", in_this_process)
