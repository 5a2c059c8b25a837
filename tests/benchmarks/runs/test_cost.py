"""What runs cost, and baselines with as much compute as DCO."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, GEMPlugin
from avalanche.training.supervised import Naive
from torch import nn

from avalanche_dco.errors import SettingError
from benchmarks.methods import METHODS
from benchmarks.runs.cost import (
    COUNTED_SETTINGS,
    count_gradients,
    gradient_evaluations,
    kept_bytes,
)
from benchmarks.runs.execution import execute
from benchmarks.runs.planning import Assignment, Plan, Request
from tests.support.benchmark_runs import TINY, quick_job, run_options
from tests.support.run_folders import matrix_of

WEIGHTS = 64 * 100 + 2 * 100 * 100 + 100 * 10
ONE = 4 * WEIGHTS
SAMPLES = 1347  # of training data in all
SAMPLE = 64 * 4 + 8 + 8  # inputs, target, task label
BATCHES = 9  # per experience and epoch

SETTINGS = {
    "ewc": {"ewc_lambda": 10},
    "si": {"si_lambda": 1},
    "rwalk": {"ewc_lambda": 1},
    "gpm": {"threshold": 0.97},
    "sgp": {"alpha": 10},
    "owm": {"alpha": 1},
    "mas": {"lambda_reg": 0.01},
    "lwf": {"alpha": 1},
    "a-gem": {"patterns_per_experience": 10, "sample_size": 20},
}


def shown(tmp_path, method, **request):
    settings = [Assignment(None, name, value) for name, value in SETTINGS.get(method, {}).items()]
    if method in SETTINGS:
        request["settings"] = settings
    return execute(quick_job(method, **request), run_options(tmp_path), lambda done, total: None)


@pytest.mark.parametrize(
    ("method", "kept", "gradients"),
    [
        ("naive", 0, [BATCHES] * 5),
        ("si", 3 * ONE, [BATCHES] * 5),  # weights, importances, path integrals
        ("rwalk", 4 * ONE, [2 * BATCHES] * 5),  # weights, penalties, scores, importances
        # Weights and importances; batches of 256, and two samples tried before the first step.
        ("mas", 2 * ONE, [BATCHES + 3] + [BATCHES + 2] * 4),
        ("lwf", ONE + 10 * 8, [BATCHES] + [2 * BATCHES] * 4),  # the teacher and its mask
        ("ewc", 5 * 2 * ONE, None),  # weights and importances of each experience
        ("a-gem", 5 * 10 * SAMPLE, [BATCHES] + [2 * BATCHES] * 4),
        ("joint", SAMPLES * SAMPLE, [46]),
        ("cumulative", SAMPLES * SAMPLE, None),
    ],
)
def test_kept_bytes_and_gradients_of_the_methods(tmp_path, method, kept, gradients):
    outcome = shown(tmp_path, method)
    assert outcome["memory_bytes"] == kept
    if gradients is not None:
        assert outcome["gradient_evaluations_by_experience"] == gradients
    assert outcome["peak_megabytes"] > 100


@pytest.mark.parametrize("method", ["dco", "dco-comp"])
def test_gradients_of_dco_are_those_of_its_three_steps(tmp_path, method):
    per_experience = BATCHES + BATCHES + 2 * 2  # training, push, two updates of two gradients
    assert shown(tmp_path, method)["gradient_evaluations_by_experience"] == [per_experience] * 5


@pytest.mark.parametrize("method", ["naive", "rwalk", "joint"])
def test_matched_baselines_evaluate_as_many_gradients_as_dco(tmp_path, monkeypatch, method):
    from benchmarks.presets import PRESETS, Preset  # noqa: PLC0415

    preset = PRESETS["paper"]["split-digits"]
    monkeypatch.setitem(
        PRESETS["paper"], "split-digits", Preset(preset.training, {"dco": TINY, "dco-comp": TINY})
    )
    dco = shown(tmp_path, "dco")
    matched = shown(tmp_path, method, match_compute=True)
    assert matched["gradient_evaluations"] == dco["gradient_evaluations"] == 110


def test_the_budget_is_of_dco_s_own_epochs_and_batches(tmp_path):
    trained = [Assignment("dco", "epochs", 2), Assignment("naive", "batch_size", 64)]
    tiny = [Assignment("dco", name, value) for name, value in TINY.items()]
    plan = Plan(
        Request(
            "split-digits", ["naive", "dco"], training=[Assignment(None, "epochs", 1), *trained],
            settings=tiny, match_compute=True,
        )
    )  # fmt: skip
    dco, naive = (
        execute(plan.job(method, 1), run_options(tmp_path), lambda *_: None)
        for method in ("dco", "naive")
    )
    per_experience = [2 * BATCHES + BATCHES + 2 * 2] * 5
    assert dco["gradient_evaluations_by_experience"] == per_experience
    assert naive["gradient_evaluations_by_experience"] == per_experience


@pytest.mark.parametrize(
    ("split", "method", "evaluated"),
    [
        ("validation", "naive", [1, 2, 3, 4, 5]),
        ("test", "naive", [5] * 5),
        ("validation", "joint", [5]),
    ],
)
def test_a_search_does_not_evaluate_tasks_before_they_are_learned(
    tmp_path, split, method, evaluated
):
    job = replace(quick_job(method), split=split)
    outcome = execute(job, run_options(tmp_path), lambda *_: None)
    matrix = matrix_of(tmp_path / job.folder_name)
    assert np.isfinite(matrix).sum(axis=1).tolist() == evaluated
    assert outcome["average"] == pytest.approx(matrix[-1].mean(), abs=1e-3)


def test_epochs_in_common_are_not_stored_twice():
    matched = quick_job("naive", match_compute=True).training.matched_to
    assert matched is not None
    assert matched.keys() == set(COUNTED_SETTINGS)


@pytest.mark.parametrize("name", ["epochs", "batch_size", *COUNTED_SETTINGS])
@pytest.mark.parametrize("method", [None, "dco"])
def test_several_budgets_cannot_be_matched(name, method):
    grids = [Assignment(method, name, [1, 2])]
    request = Request("split-digits", ["naive", "dco"], grids=grids, match_compute=True)
    with pytest.raises(SettingError, match=f"--grid {name} with --match-compute"):
        Plan(request)


def test_compute_that_is_not_known_in_advance_cannot_be_matched():
    with pytest.raises(SettingError, match=r"autoencoder_tolerance=0\.1"):
        quick_job(
            "naive",
            match_compute=True,
            chosen={"dco": {"autoencoder_tolerance": 0.1}},
        )


def test_a_batch_counts_where_gradients_are_on():
    network = nn.Linear(2, 1)
    count_gradients(network)
    before = gradient_evaluations()
    network(torch.zeros(1, 2)).sum().backward()
    with torch.no_grad():
        network(torch.zeros(1, 2))
    assert gradient_evaluations() == before + 1


def test_what_gem_keeps_is_its_patterns():
    plugin = GEMPlugin(2, 0.5)
    plugin.memory_x, plugin.memory_y = {0: torch.zeros(2, 3)}, {0: torch.zeros(2).long()}
    plugin.memory_tid = {0: torch.zeros(2).long()}
    model = nn.Linear(3, 2)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1),
        plugins=[plugin],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    assert kept_bytes(METHODS["gem"], strategy) == 2 * (3 * 4 + 8 + 8)


def test_the_learning_rate_of_later_experiences_is_the_training_s(tmp_path):
    """With next to none from the second experience on, nothing is learned or forgotten any more."""
    training = {"epochs": 3, "lr": 0.01, "later_lr_factor": 1e-9}
    request = [Assignment(None, name, value) for name, value in training.items()]
    job = Plan(Request("split-digits", ["naive"], training=request)).job("naive", 1)
    execute(job, run_options(tmp_path), lambda *_: None)
    matrix = matrix_of(tmp_path / job.folder_name).tolist()
    assert matrix[0][0] < 5
    assert matrix == [matrix[0]] * 5
