"""Write the tables in README.md and docs/ anew from the results that are kept.

A table stands between two comments, of which the first says what it shows:

  <!-- table: errors split-mnist permuted-mnist -->   runs below benchmarks/results, by benchmark
  <!-- table: core-speed -->                          benchmarks/results/core_speed
  <!-- table: faults -->                              benchmarks/results/reliability
  <!-- table: long-stream -->                         benchmarks/results/reliability
  <!-- end of table -->

With --check nothing is written; the exit status tells whether all tables are up to date.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

from avalanche_dco.errors import SettingError
from benchmarks import reliability_tables

_REPOSITORY = Path(__file__).resolve().parent.parent
_RESULTS = _REPOSITORY / "benchmarks" / "results"
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


def make_table(what: list[str], results: Path = _RESULTS) -> str:
    """A table as Markdown.

    :param what: what it shows: ``errors`` and names of benchmarks, or the name of a table.
    :param results: folder with the results.
    """
    kind, *names = what
    if kind == "errors":
        return _markdown(_errors(results, names))
    if kind == "core-speed":
        runs = [json.loads(path.read_text()) for path in sorted(results.glob("core_speed/*.json"))]
        return _markdown(_core_speed(runs))
    if kind in _RELIABILITY:
        return _markdown(_RELIABILITY[kind](results))
    raise SettingError(
        f"there is no table '{kind}'; write 'errors BENCHMARK ...', 'core-speed', 'faults' or "
        "'long-stream'."
    )


_RELIABILITY = {
    "faults": reliability_tables.faults,
    "long-stream": reliability_tables.long_stream,
}


def _errors(results: Path, names: list[str]) -> list[dict[str, str]]:
    runs = pd.DataFrame(
        _run_of(path) for path in sorted(results.glob("*/*/outcome.json")) if _has_config(path)
    )
    rows: list[dict[str, str]] = []
    for name in names:
        mine = runs[runs["benchmark"] == name]
        by = ["method", "lr", "weight_decay", "settings"]
        for (method, lr, decay, settings), group in mine.groupby(by, sort=False):
            rows.append(
                {
                    "benchmark": name,
                    "method": f"{method} ({settings})" if settings else str(method),
                    "lr": f"{lr:g}",
                    "weight decay": f"{decay:g}",
                    "seeds": str(len(group)),
                    **{
                        title: _mean_and_spread(group[key])
                        for title, key in (
                            ("average error %", "average"),
                            ("FWI %", "fwi"),
                            ("BWT %", "bwt"),
                        )
                    },
                    "kept MB": f"{group['memory_bytes'].mean() / 1e6:.1f}",
                    "peak MB": f"{group['peak_megabytes'].max():.0f}",
                }
            )
    return rows


def _has_config(outcome: Path) -> bool:
    return (outcome.parent / "config.json").exists()


def _run_of(path: Path) -> dict[str, Any]:
    config = json.loads((path.parent / "config.json").read_text())
    settings = ", ".join(f"{k}={v}" for k, v in config["settings"].items() if k in _SHOWN)
    return {
        "benchmark": config["benchmark"],
        "method": config["method"],
        "seed": config["seed"],
        "lr": config["training"]["lr"],
        "weight_decay": config["training"]["weight_decay"],
        "settings": settings,
        **json.loads(path.read_text()),
    }


_SHOWN = ("k", "gradients_per_update", "ewc_lambda", "threshold")


def _mean_and_spread(values: pd.Series) -> str:
    mean = f"{values.mean():.2f}"
    return mean if len(values) == 1 else f"{mean} ± {values.std():.2f}"


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


def _core_speed(runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        {"": title} | {f"{run['threads']} thread(s)": form.format(run[key]) for run in runs}
        for key, (title, form) in _CORE_SPEED.items()
    ]


def _markdown(rows: list[dict[str, str]]) -> str:
    titles = list(rows[0])
    lines = [titles, ["---"] * len(titles), *(list(row.values()) for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
