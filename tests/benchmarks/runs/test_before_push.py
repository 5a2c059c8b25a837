"""Errors before DCO's push, in the metrics and the outcome of a run."""

from dataclasses import replace

import numpy as np
import pytest

from avalanche_dco.metrics.functional import average_error, bwt_error, fwi_error
from benchmarks.runs import learning
from benchmarks.runs.execution import execute
from benchmarks.runs.learning import learn
from benchmarks.runs.records import read_run
from tests.support.benchmark_runs import quick_job, run_options


class NoCheckpoints:
    def load(self, strategy):
        return strategy, 0

    def save(self, strategy):
        pass


def outcome_of(job):
    return learn(job, NoCheckpoints(), lambda done, total: None)


def matrix(outcome, metric):
    rows = outcome.metrics[outcome.metrics["metric"] == metric].dropna(subset="experience")
    return rows.pivot_table(index="trained", columns="experience", values="value").to_numpy()


@pytest.fixture(scope="module")
def job():
    job = quick_job("dco", epochs=2)
    return replace(job, settings={**job.settings, "theta": 3.0})


@pytest.fixture(scope="module")
def outcome(job):
    return outcome_of(job)


def test_the_first_row_is_that_of_a_run_that_does_not_push(job, outcome):
    not_pushed = outcome_of(replace(job, settings={**job.settings, "theta": 0.0}))
    before, after = matrix(outcome, "ErrorBeforePush"), matrix(outcome, "ErrorMatrix")
    assert before.shape == after.shape == (5, 5)
    assert before[0, 0] == matrix(not_pushed, "ErrorMatrix")[0, 0] != after[0, 0]
    learned = np.tri(5, dtype=bool)
    assert np.isnan(before[~learned]).all()
    assert not np.isnan(before[learned]).any()
    assert "average_before_push" not in not_pushed.summary


def test_it_changes_nothing_else_of_a_run(job, outcome, monkeypatch):
    monkeypatch.setattr(learning, "_pushes", lambda job: False)
    without = outcome_of(job)
    assert matrix(without, "ErrorMatrix").tolist() == matrix(outcome, "ErrorMatrix").tolist()
    same = ("average", "fwi", "bwt", "gradient_evaluations", "memory_bytes")
    assert {n: without.summary[n] for n in same} == {n: outcome.summary[n] for n in same}


def test_the_outcome_has_the_paper_s_errors_of_it(tmp_path, job, outcome):
    before, summary = matrix(outcome, "ErrorBeforePush"), outcome.summary
    for name, error in (("average", average_error), ("fwi", fwi_error), ("bwt", bwt_error)):
        assert summary[f"{name}_before_push"] == pytest.approx(100 * error(before))
    folder = tmp_path / job.folder_name
    execute(job, run_options(tmp_path), lambda *_: None)
    assert read_run(folder).outcome["fwi_before_push"] == pytest.approx(
        summary["fwi_before_push"], abs=1e-4
    )


def test_methods_that_do_not_push_have_none():
    summary = outcome_of(quick_job("naive")).summary
    assert not [name for name in summary if "push" in name]
