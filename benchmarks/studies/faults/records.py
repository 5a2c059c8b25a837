"""Faults in what is recorded: odd values in a metrics log, and damaged results of runs."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import torch

from avalanche_dco.logging import PandasLogger, read_log
from benchmarks.report.reading import read_runs
from benchmarks.runs.kept import Study, study_path, write_study
from benchmarks.runs.records import (
    ERRORS,
    FILES,
    read_outcome,
    read_run,
    sealed,
    unsealed,
    write_config,
    write_outcome,
)
from benchmarks.studies.faults.damage import MORE, count, flipped, truncated
from benchmarks.studies.faults.interrupted_run import Reference
from benchmarks.studies.faults.tally import Injection, Tally

_ODD: tuple[Any, ...] = (
    1.5, float("nan"), float("inf"), True, None, -1, 2**70, 10**400, "text", torch.tensor(3),
    torch.tensor(2.5), torch.tensor([1, 2]), torch.tensor(1.5, dtype=torch.bfloat16),
    torch.eye(2).to_sparse(), torch.tensor(1j),
)  # fmt: skip


def _odd_log(
    position: bool, tally: Tally, reference: Reference, folder: Path, times: int, chance: Random
) -> None:
    """Log something odd among usual values, as the position or as the value, and read the log."""
    for number in range(MORE * times):
        odd = _ODD[number % len(_ODD)]
        count(tally, f"{odd!r:.40} in a log", partial(_log_with, odd, position, folder / "odd.csv"))
        (folder / "odd.csv").unlink()


def _log_with(odd: Any, position: bool, path: Path) -> str:
    logger = PandasLogger(path)
    for x in range(5):
        logger.log_single_metric(f"usual{x}", x / 4, x)
        if x == 2:
            value, place = (0.5, odd) if position else (odd, x)
            logger.log_single_metric("odd", value, place)
    for frame in (logger.to_frame(), read_log(path)):
        usual = frame[frame["name"] != "odd"]
        if len(frame) != 6 or usual["name"].tolist() != [f"usual{x}" for x in range(5)]:
            return "took lines away"
        if list(zip(usual["x"], usual["value"], strict=True)) != [(x, x / 4) for x in range(5)]:
            return "changed other values"
    return ""


_CONFIG = {"benchmark": "split-digits", "method": "naive", "seed": 1, "training": {"epochs": 1}}
_OUTCOME = {
    "average": 1.5, "fwi": 1.5, "bwt": 0.0, "seconds": 3.25, "memory_bytes": 0,
    "peak_megabytes": 400.0, "gradient_evaluations": 45,
}  # fmt: skip
_METRICS = pd.DataFrame(
    [
        {"metric": metric, "stream": "test", "experience": None, "trained": 1,
         "training_experience": 0, "value": _OUTCOME[key] / 100}
        for key, metric in ERRORS.items()
    ]
)  # fmt: skip


def _damaged_result(
    damage: Callable[[Sequence[Path], Random], None],
    tally: Tally,
    reference: Reference,
    folder: Path,
    times: int,
    chance: Random,
) -> None:
    """Damage a finished run's folder, or a study of it: it is neither reported nor believed."""
    runs = folder / "runs"
    run, study = runs / "split-digits-naive-seed1-01234567", study_path("study", runs)
    for number in range(MORE * times):
        write_config(run, _CONFIG)
        write_outcome(run, _OUTCOME, _METRICS)
        write_study(study, Study({run.name: read_run(run)}))
        place, files = (
            (run, [run / name for name in FILES])
            if number % 2
            else (study, [study.with_suffix(".csv"), study])
        )
        assert len(read_runs(place).runs) == 1
        damage(files, chance)
        count(tally, "a damaged result", partial(_is_noticed, place))
        shutil.rmtree(runs)


def _is_noticed(place: Path) -> str:
    found = read_runs(place)
    if found.runs or not found.problems:
        return "was reported"
    if place.is_file():
        return ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        return "" if read_outcome(place) is None and warned else "was taken for finished"


def _changed(
    change: Callable[[bytes, Random], bytes], files: Sequence[Path], chance: Random
) -> None:
    path = chance.choice(files)
    path.write_bytes(change(path.read_bytes(), chance))


def _forged(files: Sequence[Path], chance: Random) -> None:
    """Replace a number by what is none, or none that can be counted with; the checksum is right."""
    others, last = [path.read_bytes() for path in files[:-1]], files[-1]
    content = unsealed(last.read_bytes(), *others)
    runs = content.get("runs", {"": {"outcome": content}})
    for run in runs.values():
        run["outcome"][chance.choice(list(_OUTCOME))] = chance.choice(_NO_NUMBERS)
    last.write_text(sealed(content, *others))


_NO_NUMBERS = (10**400, -(10**400), "text", True, [1.5], {"value": 1})

RECORD_FAULTS: dict[str, Injection] = {
    "odd x of a metric": partial(_odd_log, True),
    "odd value of a metric": partial(_odd_log, False),
    "bytes changed of a result": partial(_damaged_result, partial(_changed, flipped)),
    "end cut off of a result": partial(_damaged_result, partial(_changed, truncated)),
    "numbers of a result forged": partial(_damaged_result, _forged),
}
"""By name."""
