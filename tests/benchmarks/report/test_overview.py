"""The table and the figure at the top of README.md."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.report.overview import _front, overview, overview_svg
from benchmarks.runs.kept import Study, study_path, write_measurements, write_study
from benchmarks.runs.records import read_run
from tests.support.run_folders import write_run


def keep(results: Path, name: str, *runs: dict[str, Any]) -> None:
    """A study of runs on Split MNIST with these entries."""
    found = [
        read_run(
            write_run(
                results / f"{name}-runs",
                run["method"],
                seed=1,
                average=run.get("average", 8.0),
                benchmark="split-mnist",
                preset=run.get("preset", "paper"),
                settings=run.get("settings", {}),
            )
        )
        for run in runs
    ]
    write_study(study_path(name, results), Study({run.name: run for run in found}))


def shown(results: Path, *names: str) -> dict[str, dict[str, str]]:
    return {row["method"]: row for row in overview(results, list(names)).rows}


def time(results: Path, **ratios: float) -> None:
    """The study of speed, with these ratios on Split MNIST."""
    cases = [{"case": f"split-mnist: {name}", "ratio": ratio} for name, ratio in ratios.items()]
    write_measurements(study_path("speed", results), pd.DataFrame(cases), {})


def test_times_are_those_of_the_study_of_speed(tmp_path: Path) -> None:
    keep(
        tmp_path,
        "study",
        *({"method": name} for name in ("naive", "ewc", "gpm")),
        {"method": "dco", "preset": "paper"},
    )
    assert shown(tmp_path, "study")["EWC"]["time against Naive"] == "–"
    time(tmp_path, naive=1.0, ewc=2.5, dco=4.0)
    rows = shown(tmp_path, "study")
    assert rows["Naive"]["time against Naive"] == "1.0"
    assert rows["EWC"]["time against Naive"] == "2.5"
    assert rows["GPM"]["time against Naive"] == "–"
    assert rows["GPM"]["Split MNIST"] == "8.00"
    assert rows["**DCO (published settings)**"]["time against Naive"] == "–"  # not the default


def test_the_front_has_what_no_other_beats_in_time_and_error() -> None:
    assert _front([(3, 1), (1, 5), (2, 6), (2, 2), (4, 1)]) == [(1, 5), (2, 2), (3, 1)]


def test_dco_has_a_row_for_its_defaults_and_one_for_the_paper(tmp_path: Path) -> None:
    keep(
        tmp_path,
        "study",
        {"method": "dco", "average": 2.0, "preset": "default"},
        {"method": "dco", "average": 1.0, "preset": "paper"},
        {"method": "dco", "average": 3.0, "preset": "fast"},
    )
    rows = shown(tmp_path, "study")
    assert rows["**DCO**"]["Split MNIST"] == "2.00"
    assert rows["**DCO (published settings)**"]["Split MNIST"] == "1.00"


@pytest.mark.parametrize("drawn", [True, False])
def test_the_figure_has_a_point_where_times_are_known(drawn: bool, tmp_path: Path) -> None:
    keep(tmp_path, "study", *({"method": name} for name in ("naive", "ewc", "joint")))
    time(tmp_path, naive=1.0, **({"ewc": 2.0} if drawn else {}))
    svg = overview_svg(tmp_path, ["study"])
    assert (">EWC</text>" in svg) == drawn
    assert ">joint training (bound)</text>" in svg
