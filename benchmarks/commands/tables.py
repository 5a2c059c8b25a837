"""Write the tables in README.md and docs/ anew from the results that are kept.

A table stands between two comments, of which the first says what it shows:

  <!-- table: errors split-mnist permuted-mnist -->   runs of these studies in benchmarks/results
  <!-- table: settings STUDY BENCHMARK NAME ... -->   runs of a study (or STUDY,STUDY) on one
                                                      benchmark, by the values of these settings
  <!-- table: beside-paper BENCHMARK STUDY ... -->    all methods on one benchmark, the best first,
                                                      beside the figures of the paper's Table 1
  <!-- table: setting-sources METHOD OTHER -->        where the settings of a method come from, less
                                                      those that OTHER (if given) has too
  <!-- table: core-speed -->                          benchmarks/results/core_speed
  <!-- table: compression-speed -->                   benchmarks/results/compression_speed
  <!-- table: data-path -->                           benchmarks/results/data_path
  <!-- table: precision -->                           benchmarks/results/precision
  <!-- table: faults -->                              benchmarks/results/reliability
  <!-- table: long-stream -->                         benchmarks/results/reliability
  <!-- end of table -->

With --check nothing is written; the exit status tells whether all tables are up to date.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from avalanche_dco.errors import DCOError, SettingError
from benchmarks.report import error_tables, reliability_tables
from benchmarks.report.rendering import markdown_table
from benchmarks.report.settings import sources
from benchmarks.runs.kept import RESULTS

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
Rows = list[dict[str, str]]
_TABLE = re.compile(r"(<!-- table: (?P<what>.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")


def run(args: argparse.Namespace) -> int:
    """Write, or compare."""
    stale = [page for page in pages() if renewed(page.read_text()) != page.read_text()]
    for page in stale:
        name = page.relative_to(_REPOSITORY)
        if args.check:
            print(f"{name}: a table differs from the results; run: python -m benchmarks tables")
        else:
            page.write_text(renewed(page.read_text()))
            print(f"{name}: written")
    return 1 if stale and args.check else 0


def pages() -> list[Path]:
    """The pages that may have tables."""
    return [_REPOSITORY / "README.md", *sorted((_REPOSITORY / "docs").rglob("*.md"))]


def renewed(text: str) -> str:
    """A page's text with every table made from the results."""
    return _TABLE.sub(lambda m: m[1] + make_table(m["what"].split()) + m[3], text)


def make_table(what: list[str], results: Path = RESULTS) -> str:
    """A table as Markdown.

    :param what: its kind and what to show in it, as described above.
    :param results: folder with the results.
    """
    kind, *names = what
    if kind not in _KINDS:
        raise SettingError(f"there is no table '{kind}'; there are {sorted(_KINDS)}.")
    rows = _KINDS[kind](results, names)
    return markdown_table([list(rows[0]), *(list(row.values()) for row in rows)]) + "\n"


def _read(folder: Path) -> list[dict[str, Any]]:
    return [_read_json(path) for path in sorted(folder.glob("*.json"))]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise DCOError(f"{path} cannot be read ({error}); restore it, or measure again.") from error


_CORE_SPEED = {
    "sgemm_gflops": ("rate of 2048 x 2048 single-precision products, GFlop/s", "{:.0f}"),
    "update_seconds": ("one autoencoder update, s", "{:.2f}"),
    "update_share_of_sgemm": ("its rate, as a share of the products'", "{:.2f}"),
    "speedup_over_convolutions": (
        "times faster than autograd through the supplement's convolutions",
        "{:.1f}",
    ),
    "speedup_over_matrices": (
        "times faster than autograd through the matrices of Section 4.2",
        "{:.1f}",
    ),
    "speedup_over_diagonals": (
        "times faster than autograd through a form with diagonals only",
        "{:.1f}",
    ),
    "penalty_seconds": ("penalty of four past tasks with its gradient, s", "{:.3f}"),
    "penalty_over_products": ("over its two matrix products", "{:.2f}"),
}


def _core_speed(results: Path, names: list[str]) -> Rows:
    runs = _read(results / "core_speed")
    return [
        {"": title} | {f"{run['threads']} thread(s)": form.format(run[key]) for run in runs}
        for key, (title, form) in _CORE_SPEED.items()
    ]


def _compression_speed(results: Path, names: list[str]) -> Rows:
    return [
        {
            "": title,
            "threads": str(run["threads"]),
            f"ms per step after {run['few']} tasks": f"{of['ms_after_few']:.2f}",
            f"after {run['many']}": f"{of['ms_after_many']:.2f}",
            "ratio": f"{of['time_ratio']:.2f}",
            f"MB after {run['few']} tasks": f"{of['bytes_after_few'] / 1e6:.2f}",
            f"MB after {run['many']}": f"{of['bytes_after_many'] / 1e6:.2f}",
            "ratio of MB": f"{of['bytes_ratio']:.3f}",
        }
        for run in _read(results / "compression_speed")
        for of, title in ((run["dco_comp"], "DCO-COMP"), (run["dco"], "DCO"))
    ]


def _data_path(results: Path, names: list[str]) -> Rows:
    return [
        {
            "benchmark": run["benchmark"],
            "preset": run["preset"],
            "method": method,
            "training, s": f"{of['seconds']:.1f}",
            "loading, s": f"{of['loading_seconds']:.1f}",
            "share": f"{100 * of['loading_share']:.1f} %",
        }
        for run in _read(results / "data_path")
        for method, of in run["methods"].items()
    ]


def _precision(results: Path, names: list[str]) -> Rows:
    rows = []
    for run in _read(results / "precision"):
        plain = run["milliseconds"]["contiguous float32"]
        for name, spent in run["milliseconds"].items():
            rows.append(
                {
                    "memory format and precision": name,
                    "threads": str(run["threads"]),
                    "ms": f"{spent:.0f}",
                    "times faster": f"{plain / spent:.2f}",
                }
            )
    return rows


_KINDS: dict[str, Callable[[Path, list[str]], Rows]] = {
    "errors": error_tables.errors,
    "settings": error_tables.settings,
    "beside-paper": error_tables.beside_paper,
    "penalty-steps": error_tables.penalty_steps,
    "setting-sources": sources,
    "core-speed": _core_speed,
    "compression-speed": _compression_speed,
    "data-path": _data_path,
    "precision": _precision,
    "faults": lambda results, names: reliability_tables.faults(results),
    "long-stream": lambda results, names: reliability_tables.long_stream(results),
}
