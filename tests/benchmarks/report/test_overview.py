"""The table and the figure at the top of README.md."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.report.overview import overview, overview_svg
from benchmarks.runs.kept import Study, study_path, write_study
from benchmarks.runs.records import read_run
from tests.support.run_folders import write_run

TOGETHER = "python -m benchmarks run --methods naive dco-kron"


def keep(results: Path, name: str, *runs: dict[str, Any]) -> None:
    """A study of runs on Split MNIST with these entries."""
    found = [
        read_run(
            write_run(
                results / f"{name}-runs",
                run["method"],
                seed=1,
                average=run.get("average", 8.0),
                outcome={"seconds": run.get("seconds", 10.0)},
                benchmark="split-mnist",
                preset=run.get("preset", "paper"),
                settings=run.get("settings", {}),
                **({"command": run["command"]} if "command" in run else {}),
            )
        )
        for run in runs
    ]
    write_study(study_path(name, results), Study({run.name: run for run in found}))


def shown(results: Path, *names: str) -> dict[str, dict[str, str]]:
    return {row["method"]: row for row in overview(results, list(names)).rows}


def test_times_are_compared_with_naive_in_the_same_command(tmp_path: Path) -> None:
    keep(
        tmp_path,
        "study",
        {"method": "naive", "command": TOGETHER},
        {"method": "ewc", "seconds": 25.0, "command": TOGETHER},
        {"method": "gpm", "seconds": 25.0},
    )
    rows = shown(tmp_path, "study")
    assert rows["Naive"]["time against Naive"] == "1.0"
    assert rows["EWC"]["time against Naive"] == "2.5"
    assert rows["GPM"]["time against Naive"] == "–"
    assert rows["GPM"]["Split MNIST"] == "8.00"


def test_a_naive_of_another_study_does_not_count(tmp_path: Path) -> None:
    keep(tmp_path, "first", {"method": "naive", "command": TOGETHER})
    keep(tmp_path, "second", {"method": "ewc", "command": TOGETHER})
    assert shown(tmp_path, "first", "second")["EWC"]["time against Naive"] == "–"


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
    assert rows["**DCO (paper's settings)**"]["Split MNIST"] == "1.00"


@pytest.mark.parametrize(("command", "drawn"), [(TOGETHER, True), ("another", False)])
def test_the_figure_has_a_point_where_times_are_known(
    command: str, drawn: bool, tmp_path: Path
) -> None:
    keep(
        tmp_path,
        "study",
        {"method": "naive", "command": TOGETHER},
        {"method": "ewc", "command": command},
        {"method": "joint", "command": "another"},
    )
    svg = overview_svg(tmp_path, ["study"])
    assert (">EWC</text>" in svg) == drawn
    assert ">joint training (bound)</text>" in svg
