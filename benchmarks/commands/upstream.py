"""Write what this package offers to Avalanche: patches with tests, ready for pull requests.

Everything is made from this package's own sources and from the Avalanche that is installed here;
docs/upstream tells what is in it. The patches apply to the root of Avalanche's repository:

  python -m benchmarks upstream --out bundle
  cd avalanche && git apply ../bundle/fixes/si.patch
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.upstream.bundle import write_bundle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--out", type=Path, required=True, help="an empty folder, or a new one")


def run(args: argparse.Namespace) -> int:
    """Write the bundle and say what is in it."""
    for path in write_bundle(args.out):
        print(f"{path}: {len(path.read_text().splitlines())} lines")
    return 0
