"""Folders of runs: named by what determines them, believed only if they are as written."""

import json
from dataclasses import replace

import pytest

from benchmarks.execution import execute
from benchmarks.jobs import Job
from benchmarks.planning import Assignment
from benchmarks.records import read_files, read_outcome, write_files
from benchmarks.training import Training
from tests.benchmark_runs import circumstances, quick_job

JOB = Job("b", "b", "dco", 1, "paper", Training(1, 32, 0.1, 0.0), {"k": 5, "theta": 2})


@pytest.mark.parametrize(
    "other",
    [
        replace(JOB, benchmark="c"),
        replace(JOB, method="ewc"),
        replace(JOB, seed=2),
        replace(JOB, training=Training(2, 32, 0.1, 0.0)),
        replace(JOB, training=replace(JOB.training, matched_to={"push_epochs": 1})),
        replace(JOB, settings={"k": 6, "theta": 2}),
        replace(JOB, settings={"k": 5, "theta": 2, "new default": 1}),
        replace(JOB, split="validation"),
        replace(JOB, hashes={"file": "1"}),
    ],
)
def test_what_determines_the_result_changes_the_folder(other):
    assert other.folder_name != JOB.folder_name


def test_nothing_else_changes_it():
    assert JOB.folder_name.startswith("b-dco-seed1-")
    assert replace(JOB, preset="fast").folder_name == JOB.folder_name
    assert replace(JOB, settings={"theta": 2.0, "k": 5}).folder_name == JOB.folder_name


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    job = quick_job("ewc", settings=[Assignment(None, "ewc_lambda", 1)])
    shown = execute(job, circumstances(out), lambda done, total: None)
    return job, out / job.folder_name, shown


def test_a_run_is_read_as_it_was_written(finished):
    _, folder, shown = finished
    assert read_outcome(folder) == shown
    # 9 batches per experience and 2 of 256 samples for the importances
    assert shown["gradient_evaluations_by_experience"] == [9 + 2] * 5
    assert shown["gradient_evaluations"] == 55
    weights = 64 * 100 + 2 * 100 * 100 + 100 * 10
    assert shown["memory_bytes"] == 5 * 2 * 4 * weights  # importances and weights of five tasks


@pytest.mark.parametrize("name", ["config.json", "errors.csv", "outcome.json"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_run_is_not_believed(finished, tmp_path, name, damage):
    _, folder, _ = finished
    copy = tmp_path / folder.name
    write_files(copy, read_files(folder))
    assert read_outcome(copy) is not None
    text = (copy / name).read_text()
    if damage == "gone":
        (copy / name).unlink()
    elif damage == "cut":
        (copy / name).write_text(text[: len(text) // 2])
    else:
        place = next(i for i, letter in enumerate(text) if letter in "12345678")
        (copy / name).write_text(text[:place] + "9" + text[place + 1 :])
    if damage == "gone" and name == "outcome.json":
        assert read_outcome(copy) is None  # an unfinished run
    else:
        with pytest.warns(UserWarning, match="made again"):
            assert read_outcome(copy) is None


def test_a_damaged_run_is_made_again_with_the_same_numbers(finished, tmp_path):
    job, folder, shown = finished
    copy = tmp_path / folder.name
    write_files(copy, read_files(folder))
    errors = (copy / "errors.csv").read_text()
    (copy / "errors.csv").write_text(errors.replace("0.0000", "1.0000"))
    with pytest.warns(UserWarning, match="made again"):
        again = execute(job, circumstances(tmp_path), lambda done, total: None)
    assert (copy / "errors.csv").read_text() == errors
    assert again["average"] == shown["average"]


def test_config_has_the_file_that_took_the_data_s_place(finished):
    _, folder, _ = finished
    assert "npz" not in json.loads((folder / "config.json").read_text())
