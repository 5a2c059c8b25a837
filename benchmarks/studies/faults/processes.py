"""Faults that processes meet with: kills, Ctrl-C, disks, moved folders."""

from __future__ import annotations

import io
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from avalanche_dco.persistence import files
from benchmarks.studies.faults.run import EXPERIENCES, Report, run
from benchmarks.studies.faults.trial import DISK, INTERRUPTED, REFUSED, Child, Trial

_LONGEST_WAIT = {"step 1": 0.12, "step 2": 0.03, "step 3": 0.08}
"""Seconds until the kill: about as long as the step takes."""
_NOBODY = 65534


def _kill(step: str, trial: Trial) -> None:
    """Kill a run in one of its steps."""
    wanted = trial.chance.randint(1, EXPERIENCES - 1)  # it must not come to its end meanwhile

    def act(child: Child) -> list[str]:
        events = [event for _ in range(wanted) for event in child.until(lambda e: e == step)]
        time.sleep(trial.chance.uniform(0, _LONGEST_WAIT[step]))
        child.kill()
        return events

    place = trial.folder / "killed"
    trial.meet(place, trial.runner(place), (-signal.SIGKILL,), act)


def _kill_in_writing(trial: Trial) -> None:
    """Kill it while a part of the checkpoint, from nothing to all of it, is written."""
    place, wanted = trial.folder / "writing", trial.chance.randint(1, EXPERIENCES)
    size = (trial.folder / "whole" / "run.ckpt").stat().st_size
    after = int(trial.chance.uniform(0, 1.2 * size))

    def write(report: Report) -> None:
        begun = 0

        def armed(event: str) -> None:
            nonlocal begun
            report(event)
            begun += event == "write"
            if begun == wanted:
                _die_in_writing(after)

        run(trial.reference, place, armed)

    trial.meet(place, write, (-signal.SIGKILL,))


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


def _ctrl_c(trial: Trial) -> None:
    """Press Ctrl-C at any moment after the first step has begun."""

    def act(child: Child) -> list[str]:
        events = child.until(lambda event: event == "step 1")
        time.sleep(trial.chance.uniform(0, 1.0))
        child.kill(signal.SIGINT)
        return events

    place = trial.folder / "by-hand"
    for event in trial.meet(place, trial.runner(place), (INTERRUPTED, 0), act):
        if event.startswith("stopped"):
            _, state, experiences = event.split()
            right = state == trial.reference.states[int(experiences)]
            trial.tally.expect(right, "the plugin's state is not that of the last experience")


def _limited(trial: Trial) -> None:
    """Let no file grow beyond a limit that the checkpoint or the log will reach."""
    place = trial.begun(trial.folder / "limited")
    limit = trial.chance.randint(0, (place / "run.ckpt").stat().st_size - 1)

    def limit_files(report: Report) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        run(trial.reference, place, report)

    trial.meet(place, limit_files, (REFUSED, DISK))


def _full(trial: Trial) -> None:
    """Run on a disk of one megabyte, in memory, with next to no room left; if one may mount it."""
    disk = trial.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        disk.rmdir()
        trial.tally.tried -= 1
        return
    try:
        place = trial.begun(disk / "run")
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        room = trial.chance.randint(0, (place / "run.ckpt").stat().st_size - 1)
        (disk / "ballast").write_bytes(bytes(max(free - room, 0)))
        mend = (disk / "ballast").unlink
        trial.meet(place, trial.runner(place), (REFUSED, DISK), mend=mend)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
        disk.rmdir()


def _read_only(trial: Trial) -> None:
    """Run as a user who may read the folder but not write to it."""
    place = trial.begun(trial.folder / "read-only")

    def allow(mode: int) -> None:
        for path in (trial.folder, place, *place.iterdir()):
            path.chmod(mode)

    def give_up_rights(report: Report) -> None:
        allow(0o555)
        if os.getuid() == 0:
            os.setuid(_NOBODY)  # root may write anywhere
        run(trial.reference, place, report)

    trial.meet(place, give_up_rights, (REFUSED, DISK), mend=partial(allow, 0o755))


def _moved(trial: Trial) -> None:
    """Move the folder of a run that was killed, and go on in the new place."""
    old, new = trial.folder / "old", trial.folder / "new"
    shutil.move(trial.begun(old), new)
    trial.meet(new, trial.runner(new), (0,))
    trial.tally.expect(not old.exists(), "the old folder was made again")
    shutil.rmtree(old, ignore_errors=True)


def _two_at_once(trial: Trial) -> None:
    """Let two processes work in one folder: one gets an error, and the checkpoint is whole."""
    place: Path = trial.folder / "two"
    place.mkdir()
    one = Child(trial.runner(place))
    one.until(lambda event: event == "step 1")
    ends = [child.ended() for child in (Child(trial.runner(place)), one)]
    statuses = sorted(status for status, _ in ends)
    refused = set(statuses) <= {0, REFUSED} and REFUSED in statuses
    trial.tally.expect(refused, f"ended with {statuses}: {ends}")
    trial.examine(place, max(events.count("finished") for _, events in ends))
    shutil.rmtree(place)


PROCESS_FAULTS: dict[str, Callable[[Trial], None]] = {
    "SIGKILL in step 1 (training)": partial(_kill, "step 1"),
    "SIGKILL in step 2 (push)": partial(_kill, "step 2"),
    "SIGKILL in step 3 (directions)": partial(_kill, "step 3"),
    "SIGKILL while a checkpoint is written": _kill_in_writing,
    "Ctrl-C at any moment": _ctrl_c,
    "file-size limit reached": _limited,
    "small disk full": _full,
    "folder without the right to write": _read_only,
    "two processes in one folder": _two_at_once,
    "folder moved": _moved,
}
"""By name."""
