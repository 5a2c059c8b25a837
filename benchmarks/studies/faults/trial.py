"""One fault in one run: the process that meets with it, what is counted, and how it is judged."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import torch
from tqdm import tqdm

from avalanche_dco.errors import DCOError
from benchmarks.studies.faults.run import EXPERIENCES, Reference, Report, restored, run

_FORK = multiprocessing.get_context("fork")
"""From a process that has imported everything: importing takes seconds, and there are hundreds."""


class Child:
    """A process that calls a function with one to report events with, which reach its parent."""

    def __init__(self, function: Callable[[Report], None]):
        self._events, writing = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_live, args=(function, writing))
        self._process.start()
        writing.close()

    def until(self, wanted: Callable[[str], bool]) -> list[str]:
        """Events up to the one that is wanted, or all there are."""
        events: list[str] = []
        with suppress(EOFError):
            while not events or not wanted(events[-1]):
                events.append(self._events.recv())
        return events

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; a process that has ended by itself is left alone."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)  # not waited for yet, so the number is still its own

    def ended(self) -> tuple[int, list[str]]:
        """Wait for the end: exit status (negative for a signal), and all further events."""
        events = self.until(lambda event: False)
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode, events


REFUSED, DISK, INTERRUPTED, CRASHED = 3, 4, 130, 1
"""Exit statuses: an error of this package, an OSError that says what to do, Ctrl-C, anything."""


def _live(function: Callable[[Report], None], writing: Connection) -> None:
    """The life of a child."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python has it: an OSError instead
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # forked processes share tqdm's: one that is killed keeps it
    warnings.simplefilter("ignore")
    report: Report = writing.send
    status = 0
    try:
        function(report)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except DCOError as error:
        report(f"refused {type(error).__name__} {error}")
        status = REFUSED
    except OSError as error:
        report(f"disk {error}")
        status = DISK if "metrics log cannot be written" in str(error) else CRASHED
    except BaseException:
        report(f"crashed {traceback.format_exc()!r}")
        status = CRASHED
    os._exit(status)


@dataclass
class Tally:
    """Counts of one kind of fault.

    :param fault: its name in the table.
    """

    fault: str
    tried: int = 0
    lost: int = 0
    wrong: int = 0
    notes: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, str | int]:
        """One line of the study."""
        return {n: getattr(self, n) for n in ("fault", "tried", "lost", "wrong")}

    def expect(self, right: bool, note: str) -> None:
        """Count something wrong."""
        if not right:
            self.wrong += 1
            self.notes.append(note)


@dataclass
class Trial:
    """One injection of a fault.

    :param reference: the uninterrupted run, in the folder ``whole``.
    :param chance: decides on moments and places.
    :param number: how many there were before.
    """

    tally: Tally
    reference: Reference
    folder: Path
    chance: Random
    number: int = 0

    def runner(self, place: Path) -> Callable[[Report], None]:
        """What a process does that runs from the checkpoint in a folder to the end."""
        return lambda report: run(self.reference, place, report)

    def begun(self, place: Path) -> Path:
        """A run that was killed after some experiences, or about as many."""
        child = Child(self.runner(place))
        for _ in range(self.chance.randint(1, EXPERIENCES - 2)):
            child.until(lambda event: event == "finished")
        child.kill()
        child.ended()
        return place

    def meet(
        self,
        place: Path,
        function: Callable[[Report], None],
        allowed: tuple[int, ...],
        act: Callable[[Child], list[str]] = lambda child: [],
        mend: Callable[[], object] = lambda: None,
    ) -> list[str]:
        """Let a process meet with the fault, mend it, and let the run come to its end.

        :param act: what is done to it meanwhile; returns the events seen.
        """
        before = self.examine(place, 0) if place.exists() else 0
        child = Child(function)
        seen = act(child)
        status, later = child.ended()
        events = seen + later
        self.tally.expect(status in allowed, f"ended with {status}: {events}")
        self.examine(place, before + events.count("finished"))
        mend()
        status, last = Child(self.runner(place)).ended()
        self.tally.expect(status == 0, f"the last start ended with {status}: {last}")
        self.examine(place, EXPERIENCES)
        same = self.reference.logged_as_in(place)
        self.tally.expect(same, "the log differs from the uninterrupted run's")
        shutil.rmtree(place)
        return events

    def examine(self, place: Path, finished: int) -> int:
        """Restore, in a new process, and compare with the uninterrupted run.

        :param place: folder of the run that met with the fault.
        """
        tally = self.tally
        status, events = Child(
            lambda report: report("{} {}".format(*restored(self.reference, place)))
        ).ended()
        if status != 0:
            tally.lost += finished > 0
            tally.expect(False, f"restoring ended with {status}: {events}")
            return 0
        count, *found = events[-1].split()
        if int(count) < finished:
            tally.lost += 1
            tally.notes.append(f"{finished} finished, {count} restored")
        right = "".join(found) == self.reference.fingerprints[int(count)]
        tally.expect(right, f"experience {count} was restored to something else")
        return int(count)
