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

import pandas as pd

from avalanche_dco.errors import SettingError
from benchmarks.commands.tables import renewed
from benchmarks.runs.kept import RESULTS, study_path, write_measurements
from benchmarks.upstream.contribution import contribution
from benchmarks.upstream.patches import FIXES, REPOSITORY, fix, installed_avalanche


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def write_bundle(out: Path) -> tuple[list[Path], pd.DataFrame]:
    """Write the patches, each beside the text of its pull request.

    :param out: the folder; made if need be, and empty otherwise.
    :return: the files that were written, and how many lines the methods add to each file.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingError(f"--out {out} is not an empty folder; give another one, or empty it.")
    avalanche, pages = installed_avalanche(), REPOSITORY / "docs" / "upstream"
    patches = {"dco": contribution(avalanche)}
    patches |= {f"fixes/{name}": fix(name, avalanche) for name in FIXES}
    texts = {"README.md": (pages / "index.md").read_text()}
    for name, patch in patches.items():
        texts[f"{name}.patch"] = patch
        texts[f"{name}.md"] = (pages / f"{Path(name).name}.md").read_text()
    for path, text in texts.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text)
    return sorted(out / path for path in texts), added_lines(patches["dco"])


def added_lines(patch: str) -> pd.DataFrame:
    """How many lines a patch adds to each file."""
    lines: dict[str, int] = {}
    for line in patch.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
            lines[path] = 0
        elif line.startswith("+"):
            lines[path] += 1
    return pd.DataFrame(lines.items(), columns=["file", "lines"])
