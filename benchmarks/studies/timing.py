"""Times that can be compared, and where they are written."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from avalanche_dco.persistence.files import write_atomically
from benchmarks.runs.provenance import provenance


def add_out_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--out``."""
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")


def add_timing_arguments(parser: argparse.ArgumentParser, repeats: int) -> None:
    """Declare ``--repeats``, ``--threads`` and ``--out``.

    :param parser: the command's parser.
    :param repeats: default of ``--repeats``.
    """
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    add_out_argument(parser)


def show(figures: Mapping[str, Any], out: Path | None) -> None:
    """Print figures, and write them with their provenance.

    :param figures: what was measured.
    :param out: the JSON file, if they are to be written.
    """
    print(json.dumps(figures, indent=2))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, json.dumps(provenance() | dict(figures), indent=2) + "\n")


def alternately(repeats: int, *actions: Callable[[], object]) -> list[float]:
    """Median seconds of each action, taken in turn so that a busy moment hits all alike.

    :param repeats: how often each is timed, after once to warm up.
    :param actions: what to time.
    """
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats + 1):
        for times, action in zip(seconds, actions, strict=True):
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in seconds]
