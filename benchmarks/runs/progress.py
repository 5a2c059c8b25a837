"""Follow runs while they are made: progress for people, lines of JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from avalanche_dco.errors import DCOError
from benchmarks.runs.execution import RunOptions
from benchmarks.runs.jobs import Job
from benchmarks.runs.runners import Event, Runner


@dataclass(frozen=True)
class Result:
    """What became of a job.

    :param job: the job.
    :param summary: what the run has shown; None if it failed.
    :param failure: what went wrong; None if nothing did.
    """

    job: Job
    summary: dict[str, Any] | None = None
    failure: str | None = None


class View(Protocol):
    """Shows what happens."""

    def begin(self, jobs: Sequence[Job], at_a_time: int) -> None:
        """Jobs are going to be run."""

    def event(self, job: Job, event: Event) -> None:
        """A run has something to say."""

    def end(self) -> None:
        """All are done."""


def run_jobs(
    jobs: Sequence[Job], runner: Runner, options: RunOptions, view: View, at_a_time: int
) -> list[Result]:
    """Make runs and show how they get on.

    :param jobs: the runs.
    :param runner: makes them.
    :param options: where and how.
    :param view: shows them.
    :param at_a_time: how many run at a time.
    :return: what became of each, in their order; a failed one does not keep others from running.
    """
    results: dict[int, Result] = {}
    view.begin(jobs, at_a_time)
    try:
        for event in runner(jobs, options):
            job = jobs[event.job]
            if event.kind == "stopped":
                raise DCOError(
                    f"{job.title}: {event.content} The runs have been stopped; what is finished is "
                    "kept, so start the same command again."
                )
            view.event(job, event)
            if event.kind == "done":
                results[event.job] = Result(job, summary=event.content)
            elif event.kind == "failed":
                results[event.job] = Result(job, failure=event.content)
    finally:
        view.end()
    return [results[number] for number in range(len(jobs))]


class JsonView:
    """One line of JSON on standard output for every run that has ended."""

    def begin(self, jobs: Sequence[Job], at_a_time: int) -> None:
        """Nothing to say yet."""

    def event(self, job: Job, event: Event) -> None:
        """Print what a program wants to know; notes go to standard error."""
        if event.kind == "note":
            print(f"{job.title}: {event.content}", file=sys.stderr)
        elif event.kind in ("done", "failed"):
            about = {
                "event": event.kind,
                "benchmark": job.benchmark,
                "method": job.method,
                "seed": job.seed,
                "split": job.split,
                "folder": job.folder_name,
            }
            content = event.content if event.kind == "done" else {"error": event.content}
            print_json(about | content)

    def end(self) -> None:
        """Nothing to say."""


def print_json(content: dict[str, Any]) -> None:
    """One line of JSON on standard output."""
    print(json.dumps(content), flush=True)


class ProgressView:
    """Bars on a terminal: all runs with the time left, each current run; a line for each end."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._all: TaskID | None = None
        self._bars: dict[int, TaskID] = {}
        self._times = Times()

    def begin(self, jobs: Sequence[Job], at_a_time: int) -> None:
        """Show the bar of all runs."""
        self._times = Times(jobs, at_a_time)
        self._all = self._progress.add_task("all runs", total=len(jobs), text="")
        self._progress.start()

    def event(self, job: Job, event: Event) -> None:
        """Move the bars."""
        assert self._all is not None
        self._times.note(job, event)
        number = id(job)
        if event.kind == "started":
            self._bars[number] = self._progress.add_task(job.title, total=None, text="")
        elif event.kind == "progress":
            done, total = event.content
            text = f"experience {min(int(done) + 1, total)}/{total}"
            self._progress.update(self._bars[number], completed=done, total=total, text=text)
        elif event.kind == "note":
            self._progress.console.print(
                f"{job.title}: {event.content}", markup=False, soft_wrap=True
            )
        else:
            if number in self._bars:  # not if its machine was lost before it began
                self._progress.remove_task(self._bars.pop(number))
            line = _line(job, event, self._times)
            self._progress.console.print(line, markup=False, soft_wrap=True)
        self._progress.update(self._all, completed=self._times.done, text=self._times.text)

    def end(self) -> None:
        """Take the bars away."""
        self._progress.stop()
        assert self._all is not None
        self._progress.remove_task(self._all)


def _line(job: Job, event: Event, times: Times) -> str:
    place = f"[{times.ended}/{times.total}] {job.title}"
    if event.kind == "failed":
        return f"{place} FAILED: {event.content.strip().splitlines()[-1]}"
    error, seconds = event.content["average"], event.content["seconds"]
    return f"{place}: error {error:.2f} %, {seconds:.0f} s of training; {times.text}"


class Times:
    """How long runs take, and how long what is left will."""

    def __init__(self, jobs: Sequence[Job] = (), at_a_time: int = 1):
        self.total = len(jobs)
        self.ended = 0
        self._at_a_time = at_a_time
        self._shares = {id(job): 0.0 for job in jobs}
        self._begun: dict[int, float] = {}
        self._methods = {id(job): job.method for job in jobs}
        self._took: dict[str, list[float]] = defaultdict(list)

    def note(self, job: Job, event: Event) -> None:
        """Take an event into account."""
        key, now = id(job), time.monotonic()
        if event.kind == "started":
            self._begun[key] = now
        elif event.kind == "progress":
            done, total = event.content
            self._shares[key] = done / total
        elif event.kind in ("done", "failed"):
            self.ended += 1
            self._shares[key] = 1.0
            self._took[job.method].append(now - self._begun.get(key, now))

    @property
    def done(self) -> float:
        """Runs done, the current ones in fractions."""
        return sum(self._shares.values())

    @property
    def text(self) -> str:
        """Runs done and time left."""
        left = self.seconds_left()
        eta = "" if left is None else f", about {_duration(left)} left"
        return f"{self.ended}/{self.total} runs{eta}"

    def seconds_left(self) -> float | None:
        """Time left: runs of a method take as long as those before; None if nobody knows."""
        known = {method: fmean(took) for method, took in self._took.items()}
        now = time.monotonic()
        for key, share in self._shares.items():
            method = self._methods[key]
            if method not in known and key in self._begun and share > 0.02:
                known[method] = (now - self._begun[key]) / share
        if not known:
            return None
        unknown = fmean(known.values())
        work = sum(
            (1 - share) * known.get(self._methods[key], unknown)
            for key, share in self._shares.items()
        )
        return work / max(1, min(self._at_a_time, self.total - self.ended))


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
