"""Folders of runs: named by what determines them, believed only if they are as written."""

import json
import os
from dataclasses import replace
from random import Random

import numpy as np
import pandas as pd
import pytest

from avalanche_dco.persistence.files import write_atomically
from benchmarks.report.reading import read_runs
from benchmarks.runs.execution import execute
from benchmarks.runs.jobs import Job
from benchmarks.runs.planning import Assignment
from benchmarks.runs.records import FILES, Run, read_files, read_outcome, write_files
from benchmarks.runs.training import Training
from tests.support.benchmark_runs import quick_job, run_options
from tests.support.run_folders import matrix_of

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
        replace(JOB, settings={"k": 5, "theta": 2, "couple_layers": False}),
        replace(JOB, training=replace(JOB.training, precision="bfloat16")),
        replace(JOB, training=replace(JOB.training, experiences=2)),
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
    shown = execute(job, run_options(out), lambda done, total: None)
    return job, out / job.folder_name, shown


def test_a_run_is_read_as_it_was_written(finished):
    _, folder, shown = finished
    assert read_outcome(folder) == shown
    # 9 batches per experience and 2 of 256 samples for the importances, and two samples that are
    # tried before the first step
    assert shown["gradient_evaluations_by_experience"] == [9 + 2 + 1] + [9 + 2] * 4
    assert shown["gradient_evaluations"] == 56
    weights = 64 * 100 + 2 * 100 * 100 + 100 * 10
    assert shown["memory_bytes"] == 5 * 2 * 4 * weights  # importances and weights of five tasks


@pytest.mark.parametrize("name", ["config.json", "metrics.csv", "outcome.json"])
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
    errors = (copy / "metrics.csv").read_text()
    (copy / "metrics.csv").write_text(errors.replace("ErrorMatrix", "ErrorMatrices"))
    with pytest.warns(UserWarning, match="made again"):
        again = execute(job, run_options(tmp_path), lambda done, total: None)
    np.testing.assert_array_equal(matrix_of(copy), matrix_of(folder))
    assert again["average"] == shown["average"]


def damaged(content: bytes, random: Random) -> bytes:
    """One byte changed, or the end cut off."""
    place = random.randrange(len(content))
    if random.random() < 0.5:
        return content[:place]
    return (
        content[:place] + bytes([content[place] ^ random.randrange(1, 256)]) + content[place + 1 :]
    )


@pytest.mark.parametrize("name", FILES)
def test_whatever_byte_is_changed_or_cut_the_run_is_not_believed(finished, tmp_path, name):
    _, folder, _ = finished
    copy = tmp_path / folder.name
    write_files(copy, read_files(folder))
    assert len(read_runs(tmp_path).runs) == 1
    whole, random = (copy / name).read_bytes(), Random(name)
    cases = [
        whole[:-1],
        whole.replace(b"\n", b"\r\n"),
        b"",
        *(damaged(whole, random) for _ in range(40)),
    ]
    for content in cases:
        (copy / name).write_bytes(content)
        with pytest.warns(UserWarning, match="made again"):
            assert read_outcome(copy) is None, content
        found = read_runs(tmp_path)
        assert found.runs == [], content
        ((where, why),) = found.problems
        assert where.startswith(folder.name)
        assert "not counted" in why


def test_two_processes_may_write_one_file(tmp_path, monkeypatch):
    """The second writes all of it while the first is about to put its own in place."""
    path, fsync = tmp_path / "chosen.json", os.fsync

    def meanwhile(handle):
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "getpid", lambda: 1)
        write_atomically(path, "second")

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_atomically(path, "first")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "config.json", "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_config_has_the_file_that_took_the_data_s_place(finished):
    _, folder, _ = finished
    assert "npz" not in json.loads((folder / "config.json").read_text())


def test_runs_from_before_a_setting_was_introduced_say_what_they_did():
    config = {"method": "dco-kron", "settings": {"dco_lambda": 30}}
    assert Run("old", config, {}, pd.DataFrame()).settings == {"dco_lambda": 30, "growth": 1.0}
    config = {"method": "dco-kron", "settings": {"growth": 0.0}}
    assert Run("new", config, {}, pd.DataFrame()).settings == {"growth": 0.0}
    config = {"method": "gpm", "settings": {}}
    assert Run("other", config, {}, pd.DataFrame()).settings == {}
