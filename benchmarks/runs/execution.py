"""One run in its folder: not repeated if it is finished, resumed if it was interrupted."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from filelock import FileLock, Timeout

from avalanche_dco.errors import CheckpointError
from avalanche_dco.persistence import maybe_load_checkpoint, save_checkpoint
from benchmarks.runs.jobs import Job
from benchmarks.runs.learning import OnProgress, learn
from benchmarks.runs.records import read_outcome, write_config, write_outcome

_REPORT_EVERY = 0.5  # seconds
_FIXED = ("python", "versions", "git_commit")  # what may not change while a run is under way


@dataclass(frozen=True)
class RunOptions:
    """How runs are made, without influence on their numbers but for rounding.

    :param out: where the folders of runs are.
    :param made_by: command, versions and commit, see :func:`benchmarks.runs.provenance.provenance`.
    """

    out: Path
    threads: int
    made_by: Mapping[str, Any]


class FolderCheckpoints:
    """A run's state between experiences, in one file of its folder."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._path = folder / "checkpoint.pt"

    def load(self, strategy: SupervisedTemplate) -> tuple[SupervisedTemplate, int]:
        """The strategy to continue with, and how many trainings it has finished."""
        try:
            return maybe_load_checkpoint(strategy, self._path)
        except CheckpointError as error:
            warnings.warn(
                f"{self._folder.name} was interrupted and cannot go on from where it "
                f"was ({error}); it begins anew.",
                stacklevel=2,
            )
            self.remove()
            return strategy, 0

    def save(self, strategy: SupervisedTemplate) -> None:
        """Keep the state after a training."""
        save_checkpoint(strategy, self._path)

    def remove(self) -> None:
        """Forget the state, and what was being written when a process was killed."""
        for path in (self._path, *self._folder.glob("*.part")):
            path.unlink(missing_ok=True)


@contextmanager
def exclusively(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a folder; wait while another process does.

    The lock belongs to the process and ends with it, also when it is killed.

    :param on_wait: called once if there is something to wait for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        path.unlink()  # while it is held: filelock takes no lock on a file without a name
        lock.release()


def execute(
    job: Job,
    options: RunOptions,
    on_progress: OnProgress,
    on_wait: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Make a run, unless it is there already.

    :param on_progress: called now and then with the experiences done and the number of all.
    :param on_wait: called if another process is making the same run.
    """
    folder = options.out / job.folder_name
    with exclusively(folder, on_wait):
        summary = read_outcome(folder)
        if summary is None or not job.is_answered_by(summary):
            checkpoints = FolderCheckpoints(folder)
            threads = _prepare(folder, job, options, checkpoints)
            torch.set_num_threads(threads)
            outcome = learn(job, checkpoints, _now_and_then(on_progress))
            write_outcome(folder, outcome.summary, outcome.metrics)
            checkpoints.remove()
            summary = read_outcome(folder)
            assert summary is not None
    return summary


def _prepare(folder: Path, job: Job, options: RunOptions, checkpoints: FolderCheckpoints) -> int:
    """Write the configuration, or find that of an interrupted run; return the run's threads.

    An interrupted run goes on with as many threads as it began with, because sums over more or
    fewer threads are rounded otherwise; and it begins anew if the source or a version has changed.
    """
    config = job.config | dict(options.made_by) | {"threads": str(options.threads)}
    path = folder / "config.json"
    if path.exists() and (folder / "checkpoint.pt").exists():
        try:
            begun = json.loads(path.read_text())
            changed = [name for name in _FIXED if begun[name] != config[name]]
            if not changed:
                return int(begun["threads"])
            reason = f"has been begun with other {' and '.join(changed)}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"its config.json cannot be read ({type(error).__name__}: {error})"
        warnings.warn(f"{folder.name} was interrupted and {reason}; it begins anew.", stacklevel=2)
    checkpoints.remove()
    write_config(folder, config)
    return options.threads


def _now_and_then(on_progress: OnProgress) -> OnProgress:
    last = 0.0

    def report(done: float, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _REPORT_EVERY or done == total:
            last = now
            on_progress(done, total)

    return report
