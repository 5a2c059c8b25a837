"""Write what this package offers to Avalanche: patches with tests, for pull requests.

Everything is made from this package's own sources and from the Avalanche that is installed here;
docs/upstream tells what is in it. The patches apply to the root of Avalanche's repository:

  python -m benchmarks upstream --out bundle
  cd avalanche && git apply ../bundle/dco.patch

With --record, the line counts become those of the tables in docs/upstream (see the command tables).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.commands.tables import renewed
from benchmarks.runs.kept import RESULTS, study_path, write_measurements
from benchmarks.upstream.bundle import write_bundle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--out", type=Path, required=True, help="an empty folder, or a new one")
    parser.add_argument("--record", action="store_true", help="keep the line counts as a result")


def run(args: argparse.Namespace) -> int:
    """Write the bundle, with tables of its own line counts, and say what is in it."""
    paths, lines = write_bundle(args.out)
    for results in (args.out, *([RESULTS] if args.record else [])):
        command = {"command": "python -m benchmarks upstream --out DIR --record"}
        write_measurements(study_path("upstream", results), lines, command)
    for path in paths:
        if path.suffix == ".md":
            path.write_text(renewed(path.read_text(), results=args.out))
        print(f"{path}: {len(path.read_text().splitlines())} lines")
    return 0
