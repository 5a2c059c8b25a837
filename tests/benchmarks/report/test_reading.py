"""Folders of runs are read as they are; what cannot be read is named."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.report.reading import read_runs
from tests.support.run_folders import change_run, write_run

KEPT = Path(__file__).resolve().parent.parent.parent.parent / "benchmarks" / "results"


def test_a_finished_run(tmp_path):
    folder = write_run(tmp_path / "deep" / "down", "dco", 3, settings={"k": 5})
    found = read_runs(tmp_path)
    (run,) = found.runs
    assert (run.benchmark, run.method, run.seed) == ("split-digits", "dco", 3)
    assert (run.preset, run.split, run.npz) == ("paper", "test", "")
    assert run.settings == {"k": 5}
    assert run.folder == f"deep/down/{folder.name}"
    assert run.outcome["average"] == 8.0
    assert run.outcome["gradient_evaluations"] == 3456
    np.testing.assert_array_equal(run.matrix, [[4, 50], [8, 8]])
    assert found.unfinished == found.problems == []


def test_several_folders(tmp_path):
    names = [write_run(tmp_path / name, "dco", 1).name for name in ("mnist", "cifar")]
    found = read_runs(tmp_path / "mnist", tmp_path / "cifar")
    assert [run.folder for run in found.runs] == [f"mnist/{names[0]}", f"cifar/{names[1]}"]


def test_the_folder_itself_may_be_the_run(tmp_path):
    (run,) = read_runs(write_run(tmp_path, "dco", 1)).runs
    assert run.folder == "."


def test_runs_of_older_versions(tmp_path):
    write_run(
        tmp_path, "dco", 1, preset=None, split=None, data=None,
        outcome={"gradient_evaluations": None},
    )  # fmt: skip
    (run,) = read_runs(tmp_path).runs
    assert (run.preset, run.split, run.npz) == ("", "test", "")
    assert math.isnan(run.outcome["gradient_evaluations"])


def test_the_kept_results_are_all_read():
    found = read_runs(KEPT)
    assert len(found.runs) == len(list(KEPT.rglob("outcome.json"))) > 0
    assert found.unfinished == found.problems == []


def test_training_once_on_all_tasks(tmp_path):
    folder = write_run(tmp_path, "joint", 1, errors=np.array([[1.0, 2.0, 3.0]]))
    assert read_runs(tmp_path).runs[0].trained_once
    # Named by the last task it has seen, it is still one training.
    text = (folder / "errors.csv").read_text()
    change_run(folder, "errors.csv", text.replace("\n0,", "\n2,").encode())
    (run,) = read_runs(tmp_path).runs
    np.testing.assert_array_equal(run.matrix, [[1, 2, 3]])
    assert run.trained_once


def test_one_task_is_not_training_once(tmp_path):
    write_run(tmp_path, "naive", 1, errors=np.array([[1.0]]))
    assert not read_runs(tmp_path).runs[0].trained_once


def test_unfinished_runs_are_listed(tmp_path):
    folder = write_run(tmp_path, "dco", 1)
    (folder / "outcome.json").unlink()
    (tmp_path / "split-digits-dco-seed2-0123abcd").mkdir()
    found = read_runs(tmp_path)
    assert found.runs == []
    assert sorted(found.unfinished) == sorted([folder.name, "split-digits-dco-seed2-0123abcd"])
    assert found.problems == []


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "landscape").mkdir()
    (tmp_path / "landscape" / "config.json").write_text("no JSON")
    found = read_runs(tmp_path)
    assert found.runs == found.unfinished == found.problems == []


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", "{broken", "unreadable, run not counted"),
        ("config.json", "[1]", "no JSON object"),
        ("config.json", '{"benchmark": "b", "method": "m", "seed": "one"}', "'seed' is 'one'"),
        (
            "config.json",
            '{"benchmark": "b", "method": "m", "seed": 1, "settings": 3}',
            "'settings' is no JSON object",
        ),
        ("outcome.json", "", "unreadable, run not counted"),
        ("outcome.json", '{"average": "low"}', "'average' is 'low', which is no number"),
        ("outcome.json", '{"average": 1' + 400 * "0" + "}", "too large"),
        ("outcome.json", 100_000 * "[", "recursion"),
        (
            "config.json",
            '{"benchmark": "b\\ud800", "method": "m", "seed": 1}',
            "surrogates not allowed",
        ),
    ],
)
def test_unreadable_run_is_named_and_not_counted(tmp_path, name, content, reason):
    folder = write_run(tmp_path, "dco", 1)
    (folder / name).write_text(content)
    found = read_runs(tmp_path)
    assert found.runs == []
    ((where, why),) = found.problems
    assert where == f"{folder.name}/{name}"
    assert reason in why


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe\x00", "decode"),
        (b"a,b\n1,2\n", "its columns are not"),
        (b"after_experience,experience,error_percent\n", "no rows"),
        (b"after_experience,experience,error_percent\n0,7,1.0\n", "experiences are [7]"),
        (b"after_experience,experience,error_percent\n0,0,much\n", "much"),
        (b"after_experience,experience,error_percent\n0,0\n", "its columns are not"),
    ],
)
def test_run_without_readable_matrix_counts_but_has_no_figures(tmp_path, content, reason):
    folder = write_run(tmp_path, "dco", 1)
    change_run(folder, "errors.csv", content)
    found = read_runs(tmp_path)
    assert found.runs[0].outcome["average"] == 8.0
    assert found.runs[0].matrix is None
    ((where, why),) = found.problems
    assert where == f"{folder.name}/errors.csv"
    assert "not in figures" in why
    assert reason in why


@pytest.mark.parametrize(
    ("name", "was", "becomes"),
    [
        ("outcome.json", '"gradient_evaluations": 3456', '"gradient_evaluations": 7'),
        ("outcome.json", '"checksum"', '"sum"'),
        ("config.json", '"lr": 0.1', '"lr": 9.9'),
        ("errors.csv", "0,1,50.0000", "0,1,51.0000"),
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
    assert why.startswith("not counted: its files")


def test_missing_files_are_named(tmp_path):
    folder = write_run(tmp_path, "dco", 1)
    (folder / "errors.csv").unlink()
    (folder / "config.json").unlink()
    ((where, _),) = read_runs(tmp_path).problems
    assert where == f"{folder.name}/config.json"


def test_outcome_that_contradicts_the_matrix_is_not_counted(tmp_path):
    write_run(tmp_path, "dco", 1, average=8.0, outcome={"bwt": 1.0})
    found = read_runs(tmp_path)
    assert found.runs == []
    assert "outcome.json says bwt 1.0000, errors.csv gives 2.0000" in found.problems[0][1]
    write_run(tmp_path / "more", "dco", 1, errors=np.ones((3, 2)))
    assert "3 trainings of 2 tasks" in read_runs(tmp_path / "more").problems[0][1]


def test_values_that_are_absent_or_no_numbers(tmp_path):
    folder = write_run(tmp_path, "dco", 1, outcome={"fwi": None, "seconds": None})
    outcome = json.loads((folder / "outcome.json").read_text())
    changed = json.dumps(outcome | {"bwt": math.nan, "average": None})
    change_run(folder, "outcome.json", changed.encode())
    (run,) = read_runs(tmp_path).runs
    assert all(math.isnan(run.outcome[key]) for key in ("average", "fwi", "bwt", "seconds"))
