"""Shared by the speed studies: their options, interleaved timing, and the record they leave."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from avalanche_dco.errors import SettingError
from avalanche_dco.persistence.files import write_atomically
from benchmarks.runs.provenance import provenance


def add_timing_arguments(parser: argparse.ArgumentParser, repeats: int) -> None:
    """Declare --repeats, --threads and --out."""
    parser.add_argument("--repeats", type=int, default=repeats, help=f"default: {repeats}")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    add_out_argument(parser)


def add_out_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --out."""
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")


def prepare(args: argparse.Namespace) -> None:
    """Seed torch and set its threads."""
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)


def alternately(repeats: int, *actions: Callable[[], object]) -> list[float]:
    """Median seconds of each action, taken in turn so that a busy moment affects all alike.

    :param repeats: how often each is timed, after once to warm up.
    :param actions: what to time.
    """
    if repeats < 1:
        raise SettingError(f"--repeats {repeats}: use at least 1.")
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats + 1):
        for times, action in zip(seconds, actions, strict=True):
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in seconds]


def show(figures: Mapping[str, Any], out: Path | None) -> None:
    """Print the figures, and write them to a JSON file with command, versions and machine."""
    print(json.dumps(figures, indent=2))
    if out is not None:
        write_atomically(out, json.dumps(provenance() | dict(figures), indent=2) + "\n")
