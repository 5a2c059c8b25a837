"""Inject faults: kills, full disks, changed bytes, Ctrl-C; count what is lost and what is wrong.

Every fault is real: processes are killed, disks are full, folders moved, bytes changed, states
forged. A fault has *lost* something if an experience whose checkpoint had been saved cannot be
restored, and something is *wrong* if what is restored differs from the uninterrupted run in a
single bit, if damage goes unnoticed, or if a process ends with anything but an error that says
what to do.

Writes the study `faults`; the table in docs/reliability.md is made from it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from benchmarks.runs.kept import add_out_argument, write_measurements
from benchmarks.runs.provenance import provenance
from benchmarks.studies.faults.in_files import FILE_FAULTS
from benchmarks.studies.faults.processes import PROCESS_FAULTS
from benchmarks.studies.faults.run import METHODS, Reference
from benchmarks.studies.faults.trial import Tally, Trial

MORE = 4
"""Faults in files take no process, so there can be more of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=int, default=6, help="of each fault, for each method")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and places")
    add_out_argument(parser, "faults")


def run(args: argparse.Namespace) -> int:
    """Inject, count, write; the exit status tells whether all went well."""
    start = time.perf_counter()
    tallies = inject(args.times, args.seed, list(METHODS))
    counted = pd.DataFrame([tally.counts() for tally in tallies])
    write_measurements(args.out, counted, provenance(1))
    for tally in tallies:
        for what in tally.notes:
            print(f"{tally.fault}: {what}", file=sys.stderr)
    tried = sum(tally.tried for tally in tallies)
    failed = sum(tally.lost + tally.wrong for tally in tallies)
    print(f"{tried} faults, {failed} with something lost or wrong, ", end="")
    print(f"{time.perf_counter() - start:.0f} s: {args.out}")
    return 1 if failed else 0


def inject(times: int, seed: int, methods: Sequence[str]) -> list[Tally]:
    """Inject every kind of fault.

    :param times: how often, for each method; those in files four times as often.
    """
    torch.set_num_threads(1)
    tallies: dict[str, Tally] = {}
    for method in methods:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            reference = Reference(method).make(folder / "whole")
            for fault, inject_once in (PROCESS_FAULTS | FILE_FAULTS).items():
                tally = tallies.setdefault(fault, Tally(fault))
                chance = random.Random(f"{seed} {method} {fault}")
                for number in range(times if fault in PROCESS_FAULTS else MORE * times):
                    tally.tried += 1
                    inject_once(Trial(tally, reference, folder, chance, number))
                print(f"{method}, {fault}: {tally.tried} times", flush=True)
    return [tally for tally in tallies.values() if tally.tried]
