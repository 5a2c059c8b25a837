"""Faults in files: changed bytes, missing ends, forged contents, odd values in a log."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from avalanche_dco import maybe_load_checkpoint
from avalanche_dco.errors import DCOError, StateError
from avalanche_dco.logging import PandasLogger, read_log
from avalanche_dco.persistence import load_plugin_state, save_plugin_state
from avalanche_dco.plugins.support.kept import Plain, checksum
from benchmarks.report.reading import read_runs
from benchmarks.runs.kept import Study, read_study, study_path, write_study
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
from benchmarks.studies.faults.run import METHODS, fingerprint, make_strategy
from benchmarks.studies.faults.trial import Trial

_FORGED = ("settings", "parameters", "clock", "memory")


def forgeries(state: Plain) -> Iterator[tuple[str, Plain]]:
    """States of which no plugin can make anything, and what was done to each.

    Every part of the state in turn is left out, joined by another, or replaced by something of
    another type or shape. Values of settings are left alone: they only inform the reader.

    :param state: what a plugin's ``state_dict`` returned after at least one experience.
    """
    for name in _FORGED:
        for what, forged in _variants(state[name], name, inside=name != "settings"):
            content = {**state, name: forged}
            del content["checksum"]
            yield what, content | {"checksum": checksum(content)}


def _variants(value: Any, where: str, *, inside: bool = True) -> Iterator[tuple[str, Any]]:
    others: tuple[Any, ...] = ("text", 1.5, -1, [], {}, None)
    for other in others:
        if type(other) is not type(value) and not _may_be_none(where, other):
            yield f"{where} = {other!r}", other
    if isinstance(value, Tensor):
        for what, change in _TENSORS.items():
            if what != "complex" or "buffers" not in where:  # data may be
                yield f"{where}: {what}", change(value)
    if isinstance(value, dict):
        yield f"{where} with another entry", value | {"another entry": 0}
        for name in value:
            # A table of tensors for some of the parameters only is a possible state.
            if isinstance(name, str) and name.isidentifier():
                yield f"{where} without {name}", {n: v for n, v in value.items() if n != name}
    if isinstance(value, dict | list) and inside:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        for key in keys:
            for what, forged in _variants(value[key], f"{where}.{key}"):
                changed = value.copy()
                changed[key] = forged
                yield what, changed


def _may_be_none(where: str, other: Any) -> bool:
    """Whether there may be nothing: before directions have been learned."""
    return other is None and where in ("memory.penalty", "memory.tasks", "memory.tasks.shares")


_TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "one more": lambda tensor: torch.cat([tensor.reshape(-1, *tensor.shape[1:])] * 2),
    "another dimension": lambda tensor: torch.stack([tensor, tensor]),
    "complex": lambda tensor: tensor.to(torch.complex64),
}


Change = Callable[[bytes, Random], bytes]


def flipped(content: bytes, chance: Random) -> bytes:
    """One to three bytes changed, anywhere."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        changed[chance.randrange(len(changed))] ^= chance.randint(1, 255)
    return bytes(changed) if bytes(changed) != content else flipped(content, chance)


def truncated(content: bytes, chance: Random) -> bytes:
    """Cut off anywhere."""
    return content[: chance.randrange(len(content))]


def _judge(trial: Trial, what: str, check: Callable[[], str]) -> None:
    """Count a fault as wrong unless a check has nothing to say about how it was met."""
    try:
        trouble = check()
    except Exception as error:
        trouble = f"ended in {type(error).__name__}: {error}"
    trial.tally.expect(not trouble, f"{what} {trouble}")


def _damage(
    change: Change, file: str, check: Callable[[Trial, Path, Path], str], trial: Trial
) -> None:
    """Damage a file of the uninterrupted run, and read it."""
    original, damaged = trial.folder / "whole" / file, trial.folder / "damaged"
    if not original.exists():
        save_plugin_state(_whole(trial).plugins[0], original)
    damaged.write_bytes(change(original.read_bytes(), trial.chance))
    _judge(trial, "a damaged file", lambda: check(trial, damaged, original))
    damaged.unlink()


def _whole(trial: Trial) -> Any:
    strategy = make_strategy(trial.reference.method)
    return maybe_load_checkpoint(strategy, trial.folder / "whole" / "run.ckpt")[0]


def _checkpoint(trial: Trial, damaged: Path, original: Path) -> str:
    strategy = make_strategy(trial.reference.method)
    before = fingerprint(strategy)
    try:
        maybe_load_checkpoint(strategy, damaged)
    except DCOError:
        return "" if fingerprint(strategy) == before else "was loaded in part"
    return "was loaded in silence"


def _state(trial: Trial, damaged: Path, original: Path) -> str:
    whole = METHODS[trial.reference.method]()
    load_plugin_state(whole, original)
    # The damage may be in what fills a file up.
    same = whole.state_dict()["checksum"]
    return _loaded(trial, lambda plugin: load_plugin_state(plugin, damaged), same)


def _loaded(trial: Trial, load: Callable[[Any], object], allowed: str = "") -> str:
    """Load a state that is refused, or, if that is allowed, as good as this one."""
    plugin = METHODS[trial.reference.method]()
    empty = plugin.state_dict()["checksum"]
    try:
        load(plugin)
    except (StateError, DCOError):
        return "" if plugin.state_dict()["checksum"] == empty else "was loaded in part"
    return "" if plugin.state_dict()["checksum"] == allowed else "was loaded in silence"


def _log(trial: Trial, damaged: Path, original: Path) -> str:
    whole = read_log(original)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = read_log(damaged)
    except DCOError:
        return ""
    if not found.equals(whole.iloc[: len(found)].reset_index(drop=True)):
        return "was read in silence"
    ends_with_a_line = damaged.read_bytes()[-1:] in (b"\n", b"")
    return "" if warned or ends_with_a_line or len(found) == len(whole) else "is short in silence"


def _forged_state(trial: Trial) -> None:
    """Load a state with a wrong structure and a right checksum."""
    strategy = _whole(trial)
    what, state = trial.chance.choice(list(forgeries(strategy.plugins[0].state_dict())))

    def load(plugin: Any) -> None:
        plugin.load_state_dict(state, strategy.model)

    _judge(trial, f"a state with {what}", lambda: _loaded(trial, load))


_ODD: tuple[Any, ...] = (
    1.5, float("nan"), float("inf"), True, None, -1, 2**70, 10**400, "text", torch.tensor(3),
    torch.tensor(2.5), torch.tensor([1, 2]), torch.tensor(1.5, dtype=torch.bfloat16),
    torch.eye(2).to_sparse(), torch.tensor(1j),
)  # fmt: skip


def _odd_log(position: bool, trial: Trial) -> None:
    """Log something odd among usual values, as the position or as the value, and read the log."""
    odd, path = _ODD[trial.number % len(_ODD)], trial.folder / "odd.csv"
    _judge(trial, f"{odd!r:.40} in a log", lambda: _log_with(odd, position, path))
    path.unlink()


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
_NO_NUMBERS = (10**400, -(10**400), "text", True, [1.5], {"value": 1})


def _damaged_result(damage: Callable[[Sequence[Path], Random], None], trial: Trial) -> None:
    """Damage a finished run's folder, or a study of it: it is neither reported nor believed."""
    runs = trial.folder / "runs"
    run, study = runs / "split-digits-naive-seed1-01234567", study_path("study", runs)
    write_config(run, _CONFIG)
    write_outcome(run, _OUTCOME, _METRICS)
    write_study(study, Study({run.name: read_run(run)}))
    place, files = (run, [run / name for name in FILES]) if trial.number % 2 else (study, [study])
    assert len(read_runs(place).runs) == 1
    damage(files, trial.chance)
    _judge(trial, "a damaged result", lambda: _is_noticed(place))
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


def _changed(change: Change, files: Sequence[Path], chance: Random) -> None:
    path = chance.choice(files)
    path.write_bytes(change(path.read_bytes(), chance))


def _forged(files: Sequence[Path], chance: Random) -> None:
    """Replace a number by what is none, or none that can be counted with; the checksum is right."""
    *others, last = [path.read_bytes() for path in files]
    name, wrong = chance.choice(list(_OUTCOME)), chance.choice(_NO_NUMBERS)
    if others:
        files[-1].write_text(sealed(unsealed(last, *others) | {name: wrong}, *others))
    else:
        study = read_study(files[-1])
        for run in study.runs.values():
            run.outcome[name] = wrong
        write_study(files[-1], study)


_CHANGES = {"bytes changed": flipped, "end cut off": truncated}
FILE_FAULTS: dict[str, Callable[[Trial], None]] = {
    f"{name} of {what}": partial(_damage, change, file, check)
    for what, file, check in (
        ("a checkpoint", "run.ckpt", _checkpoint),
        ("a plugin's state", "plugin.pt", _state),
        ("a metrics log", "run.csv", _log),
    )
    for name, change in _CHANGES.items()
} | {
    "structure of a plugin's state forged": _forged_state,
    "odd x of a metric": partial(_odd_log, True),
    "odd value of a metric": partial(_odd_log, False),
    **{
        f"{name} of a result": partial(_damaged_result, partial(_changed, change))
        for name, change in _CHANGES.items()
    },
    "numbers of a result forged": partial(_damaged_result, _forged),
}
"""By name."""
