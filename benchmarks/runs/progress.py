"""Follow runs while they are made: progress for people, lines of JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from avalanche_dco.errors import DCOError
from benchmarks.runs.execution import RunOptions
from benchmarks.runs.jobs import ENDED_AFTER, Job
from benchmarks.runs.runners import ENDS, Event, Runner


@dataclass(frozen=True)
class Result:
    """What became of a job.

    :param summary: what the run has shown; None if it failed.
    :param failure: what went wrong; None if nothing did.
    :param lost: whether its data or its process failed, which says nothing about its settings.
    """

    job: Job
    summary: dict[str, Any] | None = None
    failure: str | None = None
    lost: bool = False


def run_jobs(
    jobs: Sequence[Job], runner: Runner, options: RunOptions, *, as_json: bool = False
) -> list[Result]:
    """Make runs and show how they get on.

    :return: what became of each, in their order; a failed one does not keep others from running.
    """
    results: dict[int, Result] = {}
    bars = None if as_json else _Bars(jobs)
    show: Callable[[Job, Event], None] = _print_event if bars is None else bars.show
    with nullcontext() if bars is None else bars.progress:
        for event in runner(jobs, options):
            job = jobs[event.job]
            if event.kind == "stopped":
                raise DCOError(
                    f"{job.title}: {event.content} The runs have been stopped; what is finished is "
                    "kept, so start the same command again."
                )
            show(job, event)
            if event.kind == "done":
                results[event.job] = Result(job, summary=event.content)
            elif event.kind in ENDS:
                lost = event.kind == "lost"
                results[event.job] = Result(job, failure=event.content, lost=lost)
    return [results[number] for number in range(len(jobs))]


def _print_event(job: Job, event: Event) -> None:
    """One line of JSON for every run that has ended; notes go to standard error."""
    if event.kind == "note":
        print(f"{job.title}: {event.content}", file=sys.stderr)
    elif event.kind in ENDS:
        about = {
            "event": "done" if event.kind == "done" else "failed",
            "benchmark": job.benchmark,
            "method": job.method,
            "seed": job.seed,
            "split": job.split,
            "folder": job.folder_name,
        }
        print_json(about | (event.content if event.kind == "done" else {"error": event.content}))


def print_json(content: dict[str, Any]) -> None:
    """One line of JSON on standard output."""
    print(json.dumps(content), flush=True)


class _Bars:
    """Bars on a terminal: all runs with the time left, each current run; a line for each end."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            speed_estimate_period=3600,
        )
        self._all = self.progress.add_task("all runs", total=len(jobs), text="")
        self._bars: dict[int, TaskID] = {}
        self._shares = dict.fromkeys(range(len(jobs)), 0.0)
        self._ended = 0

    def show(self, job: Job, event: Event) -> None:
        """Move the bars."""
        if event.kind == "started":
            self._bars[event.job] = self.progress.add_task(job.title, total=None, text="")
        elif event.kind == "progress":
            done, total = event.content
            self._shares[event.job] = done / total
            text = f"experience {min(int(done) + 1, total)}/{total}"
            self.progress.update(self._bars[event.job], completed=done, total=total, text=text)
        elif event.kind == "note":
            self._print(f"{job.title}: {event.content}")
        else:
            self._ended += 1
            self._shares[event.job] = 1.0
            if event.job in self._bars:  # not if its machine was lost before it began
                self.progress.remove_task(self._bars.pop(event.job))
            self._print(f"[{self._ended}/{len(self._shares)}] {job.title}{_end(event)}")
        text = f"{self._ended}/{len(self._shares)} runs"
        self.progress.update(self._all, completed=sum(self._shares.values()), text=text)

    def _print(self, line: str) -> None:
        self.progress.console.print(line, markup=False, soft_wrap=True)


def _end(event: Event) -> str:
    if event.kind != "done":
        return f" FAILED: {event.content.strip().splitlines()[-1]}"
    error, seconds = event.content["average"], event.content["seconds"]
    early = f" after {event.content[ENDED_AFTER]} tasks" if ENDED_AFTER in event.content else ""
    return f": error {error:.2f} %{early}, {seconds:.0f} s of training"
