"""Faults that end a process: SIGKILL and Ctrl-C, at any moment."""

from __future__ import annotations

import io
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from avalanche_dco.persistence import files
from benchmarks.studies.faults.child import INTERRUPTED, Child, Report
from benchmarks.studies.faults.interrupted_run import EXPERIENCES, Reference, run
from benchmarks.studies.faults.tally import Injection, Tally

_LONGEST_WAIT = {"step 1": 0.12, "step 2": 0.03, "step 3": 0.08}
"""Seconds until the kill: about as long as the step takes."""


def _in_step(
    step: str, tally: Tally, reference: Reference, folder: Path, times: int, chance: Random
) -> None:
    """Kill the same run again and again, then let it end."""
    place, finished = folder / step, 0
    for _ in range(times):
        left = EXPERIENCES - finished
        if left == 0:
            _finish(tally, reference, place)
            finished, left = 0, EXPERIENCES
        child = Child(partial(_run, reference, place))
        wanted, seen = chance.randint(1, min(2, left)), [0]

        def reached(event: str, wanted: int = wanted, seen: list[int] = seen) -> bool:
            seen[0] += event == step
            return seen[0] == wanted

        events = child.until(reached)
        time.sleep(chance.uniform(0, _LONGEST_WAIT[step]))
        child.kill()
        status, later = child.ended()
        tally.tried += 1
        tally.expect(status == -signal.SIGKILL, f"ended with {status}: {later}")
        finished += (events + later).count("finished")
        finished = tally.examine(reference, place, finished)
    _finish(tally, reference, place)


def _in_writing(
    tally: Tally, reference: Reference, folder: Path, times: int, chance: Random
) -> None:
    """Kill it while a part of the checkpoint, from nothing to all of it, is written."""
    size = (folder / "whole" / "run.ckpt").stat().st_size
    place, finished = folder / "writing", 0
    for _ in range(times):
        if finished == EXPERIENCES:
            _finish(tally, reference, place)
            finished = 0
        wanted = chance.randint(0, min(1, EXPERIENCES - finished - 1))
        after = int(chance.uniform(0, 1.2 * size))

        def write(report: Report, wanted: int = wanted, after: int = after) -> None:
            saved = [0]

            def armed(event: str) -> None:
                report(event)
                saved[0] += event == "finished"
                if event == "write" and saved[0] == wanted:
                    _die_in_writing(after)

            run(reference, place, armed)

        status, events = Child(write).ended()
        tally.tried += 1
        tally.expect(status == -signal.SIGKILL, f"ended with {status}: {events}")
        finished += events.count("finished")
        finished = tally.examine(reference, place, finished)
    _finish(tally, reference, place)


def _die_in_writing(after_bytes: int) -> None:
    """Let this process be killed while it writes its next checkpoint.

    :param after_bytes: how much of it gets written; if it is shorter, the process is killed
        before the file gets its name.
    """
    left = after_bytes

    class DyingFile(io.FileIO):
        def write(self, data: Any) -> int:
            nonlocal left
            if len(data) > left:
                super().write(data[:left])
                os.kill(os.getpid(), signal.SIGKILL)
            left -= len(data)
            return super().write(data)

    files.open = DyingFile  # type: ignore[attr-defined]
    files.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def _by_hand(tally: Tally, reference: Reference, folder: Path, times: int, chance: Random) -> None:
    """Press Ctrl-C at any moment after the first step has begun."""
    place, finished = folder / "by-hand", 0
    for _ in range(times):
        if finished == EXPERIENCES:
            _finish(tally, reference, place)
            finished = 0
        child = Child(partial(_run, reference, place))
        events = child.until(lambda event: event == "step 1")
        time.sleep(chance.uniform(0, 0.3))
        child.kill(signal.SIGINT)
        status, later = child.ended()
        tally.tried += 1
        tally.expect(status in (INTERRUPTED, 0), f"ended with {status}: {later}")
        finished += (events + later).count("finished")
        stopped = [event.split() for event in later if event.startswith("stopped")]
        for _, state, experiences in stopped:
            right = state == reference.states[int(experiences)]
            tally.expect(right, "the plugin's state is not that of the last experience")
        finished = tally.examine(reference, place, finished)
    _finish(tally, reference, place)


def _run(reference: Reference, folder: Path, report: Report) -> None:
    run(reference, folder, report)


def _finish(tally: Tally, reference: Reference, folder: Path) -> None:
    """Let a run that was interrupted many times come to its end, and clear it away."""
    status, events = Child(partial(_run, reference, folder)).ended()
    tally.expect(status == 0, f"the last start ended with {status}: {events}")
    tally.examine(reference, folder, EXPERIENCES)
    tally.expect(reference.logged_as_in(folder), "the log differs from the uninterrupted run's")
    shutil.rmtree(folder)


KILLS: dict[str, Injection] = {
    "SIGKILL in step 1 (training)": partial(_in_step, "step 1"),
    "SIGKILL in step 2 (push)": partial(_in_step, "step 2"),
    "SIGKILL in step 3 (directions)": partial(_in_step, "step 3"),
    "SIGKILL while a checkpoint is written": _in_writing,
    "Ctrl-C at any moment": _by_hand,
}
"""By name."""
