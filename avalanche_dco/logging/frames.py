"""From the lines of a metrics log to a pandas frame."""

import os
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd

from avalanche_dco.errors import LogError, SettingError
from avalanche_dco.persistence.files import checksum, write_atomically

_DTYPES = {
    "row": "int64",
    "start": "int64",
    "name": "str",
    "metric": "str",
    "phase": "str",
    "stream": "str",
    "task": "Int64",
    "experience": "Int64",
    "value": "float64",
    "other": "str",
    "x": "Int64",
    "trained": "int64",
    "training_experience": "Int64",
    "time": "float64",
}
COLUMNS = tuple(_DTYPES)
HEADER = (",".join([*COLUMNS, "check"]) + "\n").encode()
"""The last field of a line is a checksum of all that stands before it."""


def read_log(path: str | Path) -> pd.DataFrame:
    """The frame of a metrics log; the run may have ended, be in progress or have been killed.

    One row per logged value, with the columns

    - ``row``: number of the value in its run, ``start``: how often the run had been started on
      this file before, where a start from a checkpoint counts as the one it continues;
    - ``name``: Avalanche's full name, and its parts ``metric``, ``phase`` (train, eval),
      ``stream``, ``task`` and ``experience`` (empty where the name has no such part);
    - ``value``: the number; ``other``: JSON for what is not one number, or not exactly a float;
    - ``x``: Avalanche's x position, as a rule the number of training iterations so far; integers
      as long as all of them are, otherwise floats;
    - ``trained``: trainings begun so far, ``training_experience``: the experience of the latest
      one (empty before the first, and when it covers several);
    - ``time``: seconds since 1970.

    A last line that was cut off is left out, with a warning. A line that has changed since it was
    written raises an error that names it. A run that resumed from a checkpoint numbers its values
    from there: they replace those that were logged after the checkpoint. A run for which
    :func:`.maybe_load_checkpoint` found no checkpoint numbers them from 0.

    >>> from avalanche.evaluation.metric_results import MetricValue
    >>> from avalanche_dco.logging import PandasLogger, read_log
    >>> logger = PandasLogger("run.csv")
    >>> logger.log_metrics([MetricValue("mine", "Mine/eval_phase/test_stream", 0.25, 100)])
    >>> read_log("run.csv")[["metric", "stream", "value", "x"]]
      metric stream  value    x
    0   Mine   test   0.25  100

    :param path: the CSV file that :class:`.PandasLogger` wrote.
    :return: the frame, in the order of logging.
    """
    path = Path(path)
    complete, fragment = complete_lines(path)
    if fragment:
        warnings.warn(
            f"{path} ends in a line that was cut off, which is left out: {fragment!r}", stacklevel=2
        )
    return parse_lines(complete)


def sealed(line: str) -> bytes:
    """A line as it is written: with its checksum and a line feed."""
    # A line is a line, whatever a metric may be called.
    content = line.replace("\r", " ").replace("\n", " ").encode(errors="backslashreplace")
    return b"%b,%b\n" % (content, _check(content))


def _check(content: bytes) -> bytes:
    """The beginning of a line's checksum, which is enough to notice a change."""
    return checksum([content])[:8].encode()


def refuse_special(path: Path) -> None:
    """Raise for a FIFO or a device, before it is opened: that may wait forever."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise SettingError(f"{path} is not a file; give PandasLogger a file's path.")


def complete_lines(path: Path) -> tuple[bytes, bytes]:
    """The complete lines of a log, verified, and a last one that was cut off."""
    refuse_special(path)
    lines, newline, fragment = path.read_bytes().rpartition(b"\n")
    complete = lines + newline
    if complete[: len(HEADER)] != HEADER[: len(complete)] or (
        not complete and not HEADER.startswith(fragment)
    ):
        raise SettingError(
            f"{path} is not a metrics log of this version: its first line is not "
            f"'{HEADER.decode().strip()}'. Choose another path; the file was left as it is."
        )
    verify_lines(complete, path)
    return complete, fragment


def verify_lines(lines: bytes, path: Path) -> None:
    """Raise if a complete line is not as it was written."""
    for number, line in enumerate(lines.split(b"\n")[1:-1], 2):
        content, _, check = line.rpartition(b",")
        if check != _check(content):
            raise LogError(
                f"{path} is damaged: line {number} does not have the checksum it was written with "
                f"({line[:200]!r}). Put a copy of the file back, or delete this line if you can "
                "do without its value."
            )


def parse_lines(lines: bytes) -> pd.DataFrame:
    """The frame of complete lines, those that a later start replaced left out."""
    try:
        with np.errstate(invalid="ignore"):  # a number too large for an integer
            frame = _read(lines, _DTYPES)
    except (TypeError, ValueError, OverflowError):
        frame = _read(lines, _DTYPES | {"x": "float64"})
    rows = frame["row"].to_numpy()
    # A line replaces every earlier one whose number is not smaller than its own.
    later = np.append(rows[1:], np.iinfo(np.int64).max)
    smallest_later = np.minimum.accumulate(later[::-1])[::-1]
    return frame.loc[rows < smallest_later, list(COLUMNS)].reset_index(drop=True)


def _read(lines: bytes, dtypes: dict[str, str]) -> pd.DataFrame:
    return pd.read_csv(
        BytesIO(lines or HEADER),
        dtype=dtypes,
        # Only an empty field is missing: a metric may well be called "NA".
        keep_default_na=False,
        na_values={column: ["", "nan"] if column in ("value", "x") else [""] for column in COLUMNS},
        float_precision="round_trip",
    )


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write the frame so that the file at ``path`` is whole at any moment."""
    try:
        write_atomically(path, frame.to_parquet(None, engine="pyarrow", index=False))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(
            error.errno,
            f"the Parquet file cannot be written ({reason}). All values are in the CSV file beside "
            "it; make room, or leave parquet=True out",
            str(path),
        ) from error
