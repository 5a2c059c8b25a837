"""Faults in what is recorded: odd values in a metrics log, and damaged results of runs."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from avalanche_dco.logging import PandasLogger, read_log
from benchmarks.report.reading import read_runs
from benchmarks.runs.records import FILES, checked_outcome, read_outcome, seal, write_config
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


def _damaged_result(
    damage: Callable[[Path, Random], None],
    tally: Tally,
    reference: Reference,
    folder: Path,
    times: int,
    chance: Random,
) -> None:
    """Damage a finished run's folder: it is neither reported nor taken for finished."""
    run = folder / "runs" / "split-digits-naive-seed1-01234567"
    for _ in range(MORE * times):
        write_config(run, _CONFIG)
        (run / "errors.csv").write_text("after_experience,experience,error_percent\n0,0,1.5\n")
        seal(run, _OUTCOME)
        assert len(read_runs(run).runs) == 1
        damage(run, chance)
        count(tally, "a damaged result", partial(_is_noticed, run))
        shutil.rmtree(run.parent)


def _is_noticed(run: Path) -> str:
    found = read_runs(run)
    if found.runs or not found.problems:
        return "was reported"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        return "" if read_outcome(run) is None and told else "was taken for finished"


def _changed(change: Callable[[bytes, Random], bytes], run: Path, chance: Random) -> None:
    path = run / chance.choice(FILES)
    path.write_bytes(change(path.read_bytes(), chance))


def _forged(run: Path, chance: Random) -> None:
    """Replace a number by what is none, or none that can be counted with; the checksum is right."""
    outcome = checked_outcome(run)
    name = chance.choice(list(_OUTCOME))
    seal(run, json.loads(json.dumps(outcome | {name: chance.choice(_NO_NUMBERS)})))


_NO_NUMBERS = (10**400, -(10**400), "text", True, [1.5], {"value": 1})

RECORD_FAULTS: dict[str, Injection] = {
    "odd x of a metric": partial(_odd_log, True),
    "odd value of a metric": partial(_odd_log, False),
    "bytes changed of a result": partial(_damaged_result, partial(_changed, flipped)),
    "end cut off of a result": partial(_damaged_result, partial(_changed, truncated)),
    "numbers of a result forged": partial(_damaged_result, _forged),
}
"""By name."""
