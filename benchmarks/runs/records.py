"""What a run leaves behind: one folder, named by what was run, written atomically.

``config.json`` (what was run, and how), ``metrics.csv`` (what the logger recorded) and, last,
``outcome.json``, which marks the end and carries a checksum of all three.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from avalanche_dco.errors import DCOError
from avalanche_dco.persistence.files import checksum, write_atomically

CONFIG, METRICS, OUTCOME = FILES = ("config.json", "metrics.csv", "outcome.json")
_COLUMNS = {
    "metric": "str",
    "stream": "str",
    "experience": "Int64",
    "trained": "int64",
    "training_experience": "Int64",
    "value": "float64",
}
"""What is kept of the columns of :func:`avalanche_dco.logging.read_log`."""
ERRORS = {"average": "AverageError", "fwi": "FWIError", "bwt": "BWTError"}
"""The errors of an outcome, and the metrics they are the last values of."""
_BEFORE_IT_WAS_AN_ARGUMENT = {"dco-kron": {"growth": 1.0}}
"""What methods did before a setting was introduced, for runs that do not record it."""
COSTS = ("gradient_evaluations", "seconds", "memory_bytes", "peak_megabytes")


class DamagedRunError(DCOError):
    """The files of a finished run, or of a study, are not as they were written.

    :param place: the run's folder, or the study.
    :param reason: what is wrong with it.
    """

    def __init__(self, place: Path, reason: str):
        super().__init__(f"{place}: {reason}")
        self.reason = reason


def _recorded(name: str, meaning: str) -> property:
    """What the configuration of a run says."""
    return property(lambda run: run.config[name], doc=meaning)


@dataclass(frozen=True)
class Run:
    """A finished run; a ValueError for errors and costs that are no numbers.

    :param name: its folder, which says what was run.
    :param config: what was run, and how.
    :param outcome: errors in % and costs, by name.
    :param metrics: what the logger recorded, errors as fractions.
    """

    name: str
    config: dict[str, Any]
    outcome: dict[str, Any]
    metrics: pd.DataFrame

    def __post_init__(self) -> None:
        for key in (*ERRORS, *COSTS):
            value = self.outcome.get(key, 0)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"'{key}' is {value!r}, which is no number")

    benchmark = _recorded("benchmark", "Name of the benchmark.")
    method = _recorded("method", "Name of the method.")
    seed = _recorded("seed", "Seed of everything random.")
    preset = _recorded("preset", "Name of the preset.")
    split = _recorded("split", "Which data the errors are of: ``test`` or ``validation``.")
    training = _recorded("training", "How the network was trained.")

    @property
    def npz(self) -> str:
        """File and hash of the user's own arrays; empty if the benchmark's own data was used."""
        return " ".join(self.config.get("npz", {}).values())

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the method."""
        return _BEFORE_IT_WAS_AN_ARGUMENT.get(self.method, {}) | self.config["settings"]

    @property
    def tasks(self) -> int:
        """How many experiences were evaluated."""
        return self.values("ErrorMatrix")["experience"].nunique()

    @property
    def trained_once(self) -> bool:
        """Whether there is one training for several tasks, as in joint training."""
        return self.tasks > 1 and self.values("ErrorMatrix")["trained"].nunique() == 1

    def values(self, metric: str) -> pd.DataFrame:
        """The rows of one metric."""
        return self.metrics[self.metrics["metric"] == metric]


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write what is going to be run, before it is.

    :param folder: the run's folder; made if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CONFIG, json.dumps(config, indent=2) + "\n")


def write_outcome(folder: Path, outcome: Mapping[str, Any], metrics: pd.DataFrame) -> None:
    """Write ``metrics.csv`` and, last, ``outcome.json``."""
    write_atomically(folder / METRICS, metrics_text(metrics))
    seal(folder, {name: _rounded(value) for name, value in outcome.items()})


def seal(folder: Path, outcome: Mapping[str, Any]) -> None:
    """Write ``outcome.json`` with the checksum of the whole folder."""
    others = [(folder / name).read_bytes() for name in (CONFIG, METRICS)]
    write_atomically(folder / OUTCOME, sealed(outcome, *others))


def read_run(folder: Path) -> Run:
    """A finished run; raises unless every byte is as it was written."""
    try:
        config, metrics, outcome = ((folder / name).read_bytes() for name in FILES)
        return Run(
            folder.name,
            json.loads(config, parse_int=whole_number),
            unsealed(outcome, config, metrics),
            read_metrics(metrics),
        )
    except (ValueError, OSError, RecursionError) as error:
        raise DamagedRunError(folder, f"{type(error).__name__}: {error}") from error


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """What :func:`write_outcome` summed up there, or None if no run has finished there.

    A folder whose files are not as they were written counts as unfinished, with a warning.
    """
    if not (folder / OUTCOME).exists():
        return None
    try:
        return read_run(folder).outcome
    except DamagedRunError as error:
        warnings.warn(f"{error}; the run is made again.", stacklevel=2)
    return None


def metrics_text(metrics: pd.DataFrame, *first: str) -> str:
    """Metrics as CSV."""
    return metrics[[*first, *_COLUMNS]].to_csv(index=False, lineterminator="\n")


def read_metrics(content: bytes) -> pd.DataFrame:
    """What :func:`metrics_text` made of metrics."""
    return pd.read_csv(io.BytesIO(content), dtype=_COLUMNS, float_precision="round_trip")


def sealed(content: Mapping[str, Any], *others: bytes, indent: int | None = 0) -> str:
    """JSON with a checksum.

    :param others: contents of the files that the checksum covers, too.
    :param indent: None for a single line.
    """
    digest = checksum([json.dumps(content, sort_keys=True).encode(), *others])
    return json.dumps({**content, "checksum": digest}, indent=indent) + "\n"


def unsealed(text: bytes, *others: bytes, indent: int | None = 0) -> dict[str, Any]:
    """What :func:`sealed` got; a ValueError unless every byte is as it was written."""
    content = json.loads(text, parse_int=whole_number)
    if not isinstance(content, dict) or content.pop("checksum", None) is None:
        raise ValueError("the checksum is missing")
    if text != sealed(content, *others, indent=indent).encode():
        raise ValueError("the files are not as they were written")
    return content


def whole_number(text: str) -> int:
    """A whole number of a JSON file; a ValueError for one that no float can hold."""
    try:
        float(int(text))
    except OverflowError as error:
        raise ValueError(f"{text[:10]}... ({len(text)} digits) is too large a number") from error
    return int(text)


def read_files(folder: Path) -> dict[str, str]:
    """The text of a finished run's files, by name."""
    return {name: (folder / name).read_text() for name in FILES}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write a finished run that another machine has made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        write_atomically(folder / name, files[name])


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
