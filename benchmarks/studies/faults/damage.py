"""Faults in files: changed bytes and missing ends."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from avalanche_dco import maybe_load_checkpoint
from avalanche_dco.errors import DCOError, StateError
from avalanche_dco.logging import read_log
from avalanche_dco.persistence import load_plugin_state, save_plugin_state
from benchmarks.studies.faults.forgery import forgeries
from benchmarks.studies.faults.interrupted_run import (
    EXPERIENCES,
    METHODS,
    Reference,
    fingerprint,
    make_strategy,
)
from benchmarks.studies.faults.tally import Injection, Tally

MORE = 4
"""These faults take no process, so there can be more of them."""

Change = Callable[[bytes, Random], bytes]
Check = Callable[[Path, Reference, Path], str]
"""Read a damaged file: an empty string if the damage was reported or does not matter."""


def flipped(content: bytes, chance: Random) -> bytes:
    """One to three bytes changed, anywhere."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        changed[chance.randrange(len(changed))] ^= chance.randint(1, 255)
    return bytes(changed) if bytes(changed) != content else flipped(content, chance)


def truncated(content: bytes, chance: Random) -> bytes:
    """Cut off anywhere."""
    return content[: chance.randrange(len(content))]


def _checkpoint(damaged: Path, reference: Reference, original: Path) -> str:
    strategy = make_strategy(reference.method)
    before = fingerprint(strategy)
    try:
        maybe_load_checkpoint(strategy, damaged)
    except DCOError:
        return "" if fingerprint(strategy) == before else "was loaded in part"
    return "was loaded in silence"


def _state(damaged: Path, reference: Reference, original: Path) -> str:
    plugin, whole = METHODS[reference.method](), METHODS[reference.method]()
    empty = plugin.state_dict()["checksum"]
    load_plugin_state(whole, original)
    try:
        load_plugin_state(plugin, damaged)
    except DCOError:
        return "" if plugin.state_dict()["checksum"] == empty else "was loaded in part"
    # The damage may be in what fills a file up.
    same = plugin.state_dict()["checksum"] == whole.state_dict()["checksum"]
    return "" if same else "was loaded in silence"


def _log(damaged: Path, reference: Reference, original: Path) -> str:
    whole = read_log(original)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = read_log(damaged)
    except DCOError:
        return ""
    prefix = whole.iloc[: len(found)].reset_index(drop=True)
    try:
        pd.testing.assert_frame_equal(found, prefix)
    except AssertionError:
        return "was read in silence"
    ends_with_a_line = damaged.read_bytes()[-1:] == b"\n" or not damaged.read_bytes()
    return "" if warned or ends_with_a_line or len(found) == len(whole) else "is short in silence"


def _damage(
    change: Change,
    file: str,
    check: Check,
    tally: Tally,
    reference: Reference,
    folder: Path,
    times: int,
    chance: Random,
) -> None:
    original = folder / "whole" / file
    if file == "plugin.pt" and not original.exists():
        strategy, finished = maybe_load_checkpoint(
            make_strategy(reference.method), folder / "whole" / "run.ckpt"
        )
        assert finished == EXPERIENCES
        save_plugin_state(strategy.plugins[0], original)
    content = original.read_bytes()
    damaged = folder / "damaged"
    for _ in range(MORE * times):
        damaged.write_bytes(change(content, chance))
        count(tally, "a damaged file", partial(check, damaged, reference, original))
    damaged.unlink()


def _forged_state(
    tally: Tally, reference: Reference, folder: Path, times: int, chance: Random
) -> None:
    """Load states with a wrong structure and a right checksum."""
    strategy, _ = maybe_load_checkpoint(
        make_strategy(reference.method), folder / "whole" / "run.ckpt"
    )
    forged = list(forgeries(strategy.plugins[0].state_dict()))
    for what, state in chance.sample(forged, min(MORE * times, len(forged))):
        plugin = METHODS[reference.method]()
        empty = plugin.state_dict()["checksum"]

        def load(plugin: Any = plugin, state: Any = state, empty: str = empty) -> str:
            try:
                plugin.load_state_dict(state, strategy.model)
            except StateError:
                same = plugin.state_dict()["checksum"] == empty
                return "" if same else "was loaded in part"
            return "was loaded in silence"

        count(tally, f"a state with {what}", load)


def count(tally: Tally, what: str, check: Callable[[], str]) -> None:
    """Count a fault.

    :param tally: where to.
    :param what: what is faulty.
    :param check: gives what is wrong about how the fault was met; nothing, if nothing is.
    """
    tally.tried += 1
    try:
        trouble = check()
    except Exception as error:
        trouble = f"ended in {type(error).__name__}: {error}"
    tally.expect(not trouble, f"{what} {trouble}")


DAMAGES: dict[str, Injection] = {
    f"{name} {what}": partial(_damage, change, file, check)
    for what, file, check in (
        ("of a checkpoint", "run.ckpt", _checkpoint),
        ("of a plugin's state", "plugin.pt", _state),
        ("of a metrics log", "run.csv", _log),
    )
    for name, change in (("bytes changed", flipped), ("end cut off", truncated))
} | {"structure of a plugin's state forged": _forged_state}
"""By name."""
