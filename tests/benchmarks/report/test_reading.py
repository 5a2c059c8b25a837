"""Folders of runs are read as they are; what cannot be read is named."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from benchmarks.report.reading import read_runs
from tests.support.run_folders import matrix_of, write_run

KEPT = Path(__file__).resolve().parent.parent.parent.parent / "benchmarks" / "results"


def test_a_finished_run(tmp_path):
    folder = write_run(tmp_path / "deep" / "down", "dco", 3, settings={"k": 5})
    found = read_runs(tmp_path)
    (run,) = found.runs
    assert (run.benchmark, run.method, run.seed) == ("split-digits", "dco", 3)
    assert (run.preset, run.split, run.npz) == ("paper", "test", "")
    assert run.settings == {"k": 5}
    assert run.name == f"deep/down/{folder.name}"
    assert run.outcome["average"] == 8.0
    assert run.outcome["gradient_evaluations"] == 3456
    np.testing.assert_array_equal(matrix_of(folder), [[4, 50], [8, 8]])
    assert found.unfinished == found.problems == []


def test_several_folders(tmp_path):
    names = [write_run(tmp_path / name, "dco", 1).name for name in ("mnist", "cifar")]
    found = read_runs(tmp_path / "mnist", tmp_path / "cifar")
    assert [run.name for run in found.runs] == [f"mnist/{names[0]}", f"cifar/{names[1]}"]


def test_the_folder_itself_may_be_the_run(tmp_path):
    folder = write_run(tmp_path, "dco", 1)
    (run,) = read_runs(folder).runs
    assert run.name == folder.name


def test_the_kept_results_are_all_read():
    studies = []
    for path in KEPT.rglob("*.csv.xz"):
        with lzma.open(path) as file:
            if "runs" in json.loads(file.readline().removeprefix(b"# ")):
                studies.append(path)
    found = read_runs(*(path for path in studies if path.name != "capacity.csv.xz"))
    assert len(found.runs) > 300
    assert found.unfinished == found.problems == []


def test_training_once_on_all_tasks(tmp_path):
    write_run(tmp_path, "joint", 1, errors=np.array([[1.0, 2.0, 3.0]]))
    assert read_runs(tmp_path).runs[0].trained_once


def test_one_task_is_not_training_once(tmp_path):
    write_run(tmp_path, "naive", 1, errors=np.array([[1.0]]))
    assert not read_runs(tmp_path).runs[0].trained_once


def test_unfinished_runs_are_listed(tmp_path):
    folder = write_run(tmp_path, "dco", 1)
    (folder / "outcome.json").unlink()
    found = read_runs(tmp_path)
    assert found.runs == []
    assert found.unfinished == [folder.name]
    assert found.problems == []


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "landscape").mkdir()
    (tmp_path / "landscape" / "config.json").write_text("no JSON")
    found = read_runs(tmp_path)
    assert found.runs == found.unfinished == found.problems == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{broken"),
        ("config.json", "[1]"),
        ("config.json", '{"benchmark": "b\\ud800", "method": "m", "seed": 1}'),
        ("outcome.json", ""),
        ("outcome.json", "{}"),
        ("outcome.json", 100_000 * "["),
        ("metrics.csv", ""),
        ("metrics.csv", "a,b\n1,2\n"),
    ],
)
def test_unreadable_run_is_named_and_not_counted(tmp_path, name, content):
    folder = write_run(tmp_path, "dco", 1)
    (folder / name).write_text(content)
    found = read_runs(tmp_path)
    assert found.runs == []
    ((where, why),) = found.problems
    assert where == folder.name
    assert why.startswith("not counted: ")


@pytest.mark.parametrize(
    ("name", "was", "becomes"),
    [
        ("outcome.json", '"gradient_evaluations": 3456', '"gradient_evaluations": 7'),
        ("outcome.json", '"checksum"', '"sum"'),
        ("config.json", '"lr": 0.1', '"lr": 9.9'),
        ("metrics.csv", "0.5", "0.6"),
    ],
)
def test_a_run_whose_files_were_changed_is_not_counted(tmp_path, name, was, becomes):
    folder = write_run(tmp_path, "dco", 1)
    text = (folder / name).read_text()
    assert was in text
    (folder / name).write_text(text.replace(was, becomes))
    found = read_runs(tmp_path)
    assert found.runs == []
    ((where, why),) = found.problems
    assert where == folder.name
    assert why.startswith("not counted: ")


def test_missing_files_are_named(tmp_path):
    folder = write_run(tmp_path, "dco", 1)
    (folder / "metrics.csv").unlink()
    (folder / "config.json").unlink()
    ((where, why),) = read_runs(tmp_path).problems
    assert where == folder.name
    assert "config.json" in why


def test_outcome_that_contradicts_the_metrics_is_not_counted(tmp_path):
    write_run(tmp_path, "dco", 1, average=8.0, outcome={"bwt": 1.0})
    found = read_runs(tmp_path)
    assert found.runs == []
    assert "the outcome says bwt 1.0000, the metrics 2.0000" in found.problems[0][1]


def test_values_that_are_absent(tmp_path):
    write_run(tmp_path, "dco", 1, outcome={"fwi": None, "seconds": None})
    (run,) = read_runs(tmp_path).runs
    assert not {"fwi", "seconds"} & run.outcome.keys()
