"""Where the lines of a metrics log go: a file that is only ever appended to, or memory."""

import csv
import os
import warnings
import weakref
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from avalanche_dco.errors import LogError
from avalanche_dco.logging.frames import (
    HEADER,
    complete_lines,
    parse_lines,
    read_log,
    refuse_special,
    sealed,
)


class LineStore:
    """Numbers the lines of a log and appends them to a file, or keeps them in memory.

    Each line is one write to the end of the file, so a crash loses at most the one being written.
    Pickled, a store with a file remembers its path and how many lines it wrote; it continues after
    the last line that it finds there.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.next_row = self.start = 0
        self._in_memory = bytearray(HEADER)
        self._descriptor: int | None = None
        self._size = 0
        last = None if path is None else self._open(path, os.O_CREAT)
        if last is not None:
            self.next_row, self.start = last[0] + 1, last[1] + 1
        self._first_row = self.next_row

    def append(self, fields: Sequence[Any]) -> None:
        """Keep one line."""
        line = StringIO()
        csv.writer(line, lineterminator="").writerow((self.next_row, self.start, *fields))
        if self.path is None:
            self._in_memory += sealed(line.getvalue())
        else:
            if self._descriptor is None:
                self._open(self.path)
            self._write(sealed(line.getvalue()))
        self.next_row += 1

    def restart(self) -> None:
        """Number from 0: what follows replaces what earlier starts have logged.

        Once something has been logged since the log was opened, it stays as it is.
        """
        if 0 < self.next_row == self._first_row:
            warnings.warn(
                f"{self.path} has {self.next_row} values of an earlier start, and there is no "
                "checkpoint to resume from, so that the run begins again. The frame shows the new "
                "values in their place; the old ones stay in the file. Give each run a path of "
                "its own if they belong to another run.",
                stacklevel=4,
            )
            self.next_row = self._first_row = 0

    def resume_in(self, opened: "LineStore") -> None:
        """Write to another file from now on, the same one if it was not moved."""
        if opened.next_row < self.next_row:
            warnings.warn(
                f"{opened.path} has {opened.next_row} values, and the checkpoint was saved when "
                f"the log, then {self.path}, had {self.next_row}. The log continues without those "
                "that are missing; if you have that file, put it there and start again.",
                stacklevel=5,
            )
        self.path, self._descriptor = opened.path, None

    def to_frame(self) -> pd.DataFrame:
        """All lines as a frame."""
        return parse_lines(bytes(self._in_memory)) if self.path is None else read_log(self.path)

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        if self._descriptor is not None:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                self._give_up(error)

    def _write(self, line: bytes) -> None:
        assert self._descriptor is not None
        try:
            size = os.fstat(self._descriptor).st_size
            while size == self._size and line:  # a nearly full disk takes a part of a line
                written = os.write(self._descriptor, line)
                line, size, self._size = line[written:], size + written, self._size + written
        except OSError as error:
            self._give_up(error)
        if line:
            raise LogError(
                f"{self.path} has {size} bytes, but this run left it with {self._size}: another "
                "process writes to it too, or has removed lines. Give each run a path "
                "of its own."
            )

    def _open(self, path: Path, create: int = 0) -> tuple[int, int] | None:
        """Open for appending, repair the end of the file; row and start of its last line."""
        try:
            refuse_special(path)
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
            elif not path.exists():
                raise LogError(
                    f"{path} is gone: this run has logged {self.next_row} values there. Put "
                    "it back. If it was moved with its checkpoint, build the strategy with a "
                    "PandasLogger for the new path and load the checkpoint with "
                    "avalanche_dco.maybe_load_checkpoint."
                )
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | create, 0o666)
            self._close = weakref.finalize(self, os.close, self._descriptor)
            complete, fragment = complete_lines(path)
            if fragment:
                warnings.warn(
                    f"{path} ended in a line that was cut off when the run was killed; it "
                    f"was removed and the log continues there: {fragment!r}",
                    stacklevel=2,
                )
                os.ftruncate(self._descriptor, len(complete))
            self._size = len(complete)
        except OSError as error:
            self._give_up(error)
        if not complete:
            self._write(HEADER)
        lines = complete.splitlines()[1:]
        if not lines:
            return None
        row, start, *_ = lines[-1].split(b",", maxsplit=2)
        return int(row), int(start)

    def _give_up(self, error: OSError) -> NoReturn:
        """Close, so that the next line first repairs what this one may have left behind."""
        if self._descriptor is not None:
            self._close()
            self._descriptor = None
        raise OSError(
            error.errno,
            f"the metrics log cannot be written ({error.strerror}). The {self.next_row} values "
            f"logged before are kept; make room, or give PandasLogger a path that can be written",
            str(self.path),
        ) from error

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_descriptor": None}
        state.pop("_close", None)
        return state
