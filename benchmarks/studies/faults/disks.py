"""Faults of the disk: full, limited, read-only, or used by two processes at once."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.studies.faults.child import DISK, REFUSED, Child, Report
from benchmarks.studies.faults.interrupted_run import EXPERIENCES, Reference, restored, run
from benchmarks.studies.faults.tally import Injection, Tally

_NOBODY = 65534


def _limited(tally: Tally, reference: Reference, folder: Path, times: int, chance: Random) -> None:
    """Let no file grow beyond a limit that the checkpoint or the log will reach."""
    for _ in range(times):
        place = _begun(reference, folder / "limited", chance.randint(1, EXPERIENCES - 1))
        limit = chance.randint(0, (place / "run.ckpt").stat().st_size - 1)

        def limit_files(report: Report, limit: int = limit, place: Path = place) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            run(reference, place, report)

        _meet(tally, reference, place, limit_files)


def _full(tally: Tally, reference: Reference, folder: Path, times: int, chance: Random) -> None:
    """Run on a small disk with next to no room left."""
    for _ in range(times):
        with _small_disk(folder / "disk") as disk:
            if disk is None:
                return
            place = _begun(reference, disk / "run", chance.randint(1, EXPERIENCES - 1))
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            room = chance.randint(0, (place / "run.ckpt").stat().st_size - 1)
            (disk / "ballast").write_bytes(bytes(max(free - room, 0)))

            _meet(
                tally,
                reference,
                place,
                partial(_run, reference, place),
                (disk / "ballast").unlink,
            )


def _read_only(
    tally: Tally, reference: Reference, folder: Path, times: int, chance: Random
) -> None:
    """Run as a user who may read the folder but not write to it."""
    for _ in range(times):
        place = _begun(reference, folder / "read-only", chance.randint(1, EXPERIENCES - 1))
        for path in (folder, place, *place.iterdir()):
            path.chmod(0o555)

        def give_up_rights(report: Report, place: Path = place) -> None:
            if os.getuid() == 0:
                os.setuid(_NOBODY)  # root may write anywhere
            run(reference, place, report)

        def give_back(place: Path = place) -> None:
            for path in (folder, place, *place.iterdir()):
                path.chmod(0o755)

        _meet(tally, reference, place, give_up_rights, give_back)


def _meet(
    tally: Tally,
    reference: Reference,
    place: Path,
    function: Callable[[Report], None],
    mend: Callable[[], None] = lambda: None,
) -> None:
    """Let a process meet with the fault, mend the disk, and go on."""
    before = _finished(reference, place)
    status, events = Child(function).ended()
    tally.tried += 1
    tally.expect(status in (REFUSED, DISK), f"ended with {status}: {events}")
    tally.examine(reference, place, before + events.count("finished"))
    mend()
    status, events = Child(lambda report: run(reference, place, report)).ended()
    tally.expect(status == 0, f"after mending, ended with {status}: {events}")
    tally.examine(reference, place, EXPERIENCES)
    tally.expect(reference.logged_as_in(place), "the log differs from the uninterrupted run's")
    shutil.rmtree(place)


def _two_at_once(
    tally: Tally, reference: Reference, folder: Path, times: int, chance: Random
) -> None:
    """Let two processes work in one folder: one gets an error, and the checkpoint is whole."""
    for _ in range(times):
        place = folder / "two"
        place.mkdir()
        one = Child(partial(_run, reference, place))
        one.until(lambda event: event == "step 1")
        ends = [child.ended() for child in (Child(partial(_run, reference, place)), one)]
        tally.tried += 1
        statuses = sorted(status for status, _ in ends)
        tally.expect(
            set(statuses) <= {0, REFUSED} and REFUSED in statuses, f"ended with {statuses}: {ends}"
        )
        tally.examine(reference, place, max(events.count("finished") for _, events in ends))
        shutil.rmtree(place)


def _moved(tally: Tally, reference: Reference, folder: Path, times: int, chance: Random) -> None:
    """Move the folder of a run that was killed, and go on in the new place."""
    for _ in range(times):
        old, new = folder / "old", folder / "new"
        finished = _finished(reference, _begun(reference, old, chance.randint(1, EXPERIENCES - 1)))
        shutil.move(old, new)
        status, events = Child(partial(_run, reference, new)).ended()
        tally.tried += 1
        tally.expect(status == 0, f"after the move, ended with {status}: {events}")
        tally.examine(reference, new, finished + events.count("finished"))
        tally.expect(not old.exists(), "the old folder was made again")
        tally.expect(reference.logged_as_in(new), "the log differs from the uninterrupted run's")
        for place in (old, new):
            shutil.rmtree(place, ignore_errors=True)


def _run(reference: Reference, folder: Path, report: Report) -> None:
    run(reference, folder, report)


def _begun(reference: Reference, place: Path, experiences: int) -> Path:
    """A run that has finished some experiences, or about as many, and was then killed."""
    child = Child(lambda report: run(reference, place, report))
    for _ in range(experiences):
        child.until(lambda event: event == "finished")
    child.kill()
    child.ended()
    return place


def _finished(reference: Reference, place: Path) -> int:
    """How many experiences a new process finds finished."""
    status, events = Child(lambda report: report(str(restored(reference, place)[0]))).ended()
    return int(events[-1]) if status == 0 else 0


@contextmanager
def _small_disk(place: Path) -> Iterator[Path | None]:
    """A disk of one megabyte in memory; None where one may not mount any."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield place if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)
        place.rmdir()


DISK_FAULTS: dict[str, Injection] = {
    "file-size limit reached": _limited,
    "small disk full": _full,
    "folder without the right to write": _read_only,
    "two processes in one folder": _two_at_once,
    "folder moved": _moved,
}
"""By name."""
