"""Write the tables in README.md and docs/ anew from the results that are kept.

A table stands between two comments, of which the first says what it shows:

  <!-- table: errors split-mnist permuted-mnist -->   runs of these studies in benchmarks/results
  <!-- table: settings STUDY BENCHMARK NAME ... -->   runs of a study (or STUDY,STUDY) on one
                                                      benchmark, by the values of these settings
  <!-- table: beside-paper BENCHMARK STUDY ... -->    all methods on one benchmark, the best first,
                                                      beside the figures of the paper's Table 1
  <!-- table: before-push STUDY BENCHMARK NAME -->   errors before and after the push, by the words
                                                      for what is changed or, if given, a setting
  <!-- table: setting-sources METHOD OTHER -->        where the settings of a method come from, less
                                                      those that OTHER (if given) has too
  <!-- table: speed PART -->                         steps, others, tasks, growth or training
  <!-- table: task-sums NETWORK -->                  the study of that name, for one network
  <!-- table: free-shares NETWORK -->                free directions in the study task-sums
  <!-- table: grid STUDY NAME=VALUE OTHER=VALUE -->   errors on every benchmark by the values of
                                                      NAME, how far VALUE is from the best of them
  <!-- table: kron-speed -->                         the study of that name
  <!-- table: kron-drift -->                         the study of that name
  <!-- table: resnet -->                             the study of that name
  <!-- table: cost-of-dco BENCHMARK -->              the study of that name, on one benchmark
  <!-- table: faults -->                             the study of that name
  <!-- table: long-stream -->                        the study of that name
  <!-- table: overview STUDY ... -->                  all methods on the real streams; the same as a
                                                      figure in docs/figures/overview.svg
  <!-- table: comparison STUDY ... -->               all methods, tuned alike: a heading and a table
                                                      per stream that the study comparison has, and
                                                      runs of STUDY that have published settings
  <!-- table: comparison-ranks -->                   the best method of every stream of that study
  <!-- table: comparison-figure -->                  docs/figures/comparison.svg, from that study
  <!-- table: comparison-panels KIND -->             average-error or fwi-bwt, a figure per stream
  <!-- table: table-1 STUDY ... -->                   the paper's Table 1 beside the errors of runs
  <!-- table: capacity -->                           the study of that name
  <!-- table: upstream-lines -->                     the study upstream
  <!-- table: upstream-left-out -->                  benchmarks/upstream/omissions.py
  <!-- end of table -->

With --check nothing is written; the exit status tells whether all tables are up to date.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from avalanche_dco.errors import SettingError
from avalanche_dco.persistence.files import write_atomically
from benchmarks.report import (
    comparison_tables,
    error_tables,
    kron_tables,
    overview,
    study_tables,
)
from benchmarks.report.error_tables import Rows, Shown
from benchmarks.report.settings import sources
from benchmarks.runs.kept import RESULTS

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
_TABLE = re.compile(r"(<!-- table: (?P<what>.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_OVERVIEW = re.compile(r"<!-- table: overview (?P<studies>.+?) -->")


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    if not args.check:
        _draw()
    return 1 if stale and args.check else 0


def _draw() -> None:
    """Write the figures that pages show beside tables of the same numbers."""
    text = "".join(page.read_text() for page in pages())
    figures: dict[str, str] = {}
    if drawn := _OVERVIEW.search(text):
        figures["overview.svg"] = overview.overview_svg(RESULTS, drawn["studies"].split())
    if "<!-- table: comparison-figure -->" in text:
        figures |= comparison_tables.figures(RESULTS)
    for name, svg in figures.items():
        write_atomically(_REPOSITORY / "docs" / "figures" / name, svg)


def pages() -> list[Path]:
    """The pages that may have tables."""
    return [_REPOSITORY / "README.md", *sorted((_REPOSITORY / "docs").rglob("*.md"))]


def renewed(text: str, **where: Path) -> str:
    """A page's text with every table made from the results.

    :param where: ``results``, the folder with the results, if it is another one.
    """
    return _TABLE.sub(lambda m: m[1] + make_table(m["what"].split(), **where) + m[3], text)


def make_table(what: list[str], results: Path = RESULTS) -> str:
    """A table as Markdown.

    :param what: its kind and what to show in it, as described above.
    """
    kind, *names = what
    if kind not in _KINDS:
        raise SettingError(f"there is no table '{kind}'; there are {sorted(_KINDS)}.")
    shown = _KINDS[kind](results, names)
    return (Shown(shown) if isinstance(shown, list) else shown).markdown()


_KINDS: dict[str, Callable[[Path, list[str]], Shown | Rows]] = {
    "overview": overview.overview,
    "table-1": overview.table_1,
    "comparison": comparison_tables.comparison,
    "comparison-ranks": comparison_tables.ranks,
    "comparison-figure": comparison_tables.figure,
    "comparison-panels": comparison_tables.panels,
    "errors": error_tables.errors,
    "settings": error_tables.settings,
    "beside-paper": error_tables.beside_paper,
    "before-push": error_tables.before_push,
    "penalty-steps": error_tables.penalty_steps,
    "setting-sources": sources,
    "speed": study_tables.speed,
    "task-sums": kron_tables.task_sums,
    "free-shares": kron_tables.free_shares,
    "grid": kron_tables.grid,
    "kron-speed": kron_tables.speed,
    "kron-drift": kron_tables.drift,
    "resnet": kron_tables.resnet,
    "cost-of-dco": study_tables.cost_of_dco,
    "capacity": study_tables.capacity,
    "faults": study_tables.faults,
    "long-stream": study_tables.long_stream,
    "upstream-lines": study_tables.upstream_lines,
    "upstream-left-out": study_tables.upstream_left_out,
}
