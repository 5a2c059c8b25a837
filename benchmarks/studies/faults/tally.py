"""How often a fault was tried, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeAlias

from benchmarks.studies.faults.child import Child
from benchmarks.studies.faults.interrupted_run import Reference, restored


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
        """Count something wrong.

        :param right: whether all is as it should be.
        :param note: what to say if not.
        """
        if not right:
            self.wrong += 1
            self.notes.append(note)

    def examine(self, reference: Reference, folder: Path, finished: int) -> int:
        """Restore, in a new process, and compare with the uninterrupted run.

        :param reference: the uninterrupted run.
        :param folder: of the one that met with the fault.
        :param finished: how many experiences it had reported as saved.
        :return: how many experiences were restored.
        """

        def restore(report: Callable[[str], None]) -> None:
            count, found = restored(reference, folder)
            report(f"{count} {found}")

        status, events = Child(restore).ended()
        if status != 0:
            self.lost += finished > 0
            self.expect(False, f"restoring ended with {status}: {events}")
            return 0
        count, *found = events[-1].split()
        if int(count) < finished:
            self.lost += 1
            self.notes.append(f"{finished} finished, {count} restored")
        right = "".join(found) == reference.fingerprints[int(count)]
        self.expect(right, f"experience {count} was restored to something else")
        return int(count)


Injection: TypeAlias = Callable[[Tally, Reference, Path, int, Random], None]
"""Of a fault: the tally, the uninterrupted run, a folder to work in, how often, and chance."""
