"""The presets are the design's table, and every one of them can be run."""

import re
from ast import literal_eval

import pytest

from benchmarks.methods import DIRECTION_CONSTRAINED, get_method
from benchmarks.presets import PRESETS
from benchmarks.report.settings import sources
from benchmarks.runs.kept import RESULTS
from benchmarks.runs.planning import Plan, Request
from benchmarks.runs.training import Training, divided

PAPER = PRESETS["paper"]


@pytest.mark.parametrize(
    ("benchmark", "training", "dco", "comp"),
    [
        ("permuted-mnist", (10, 128, 1e-3, 1e-3, 1), (100, 0.2, 20, 0, 200), (1000, 20)),
        ("split-mnist", (10, 128, 1e-3, 1e-3, 1), (100, 0.2, 20, 0, 200), (400, 20)),
        ("split-cifar100", (60, 64, 1e-2, 0, 0.1), (1000, 0.2, 1, 0, 200), (2000, 10)),
        ("mnist-fashion", (10, 128, 1e-3, 0, 1), (10, 2.0, 2000, 0.001, 50), (1000, 2000)),
        ("fashion-mnist", (10, 128, 1e-3, 0, 1), (10, 2.0, 2000, 0.001, 50), (1000, 2000)),
    ],
)
def test_paper_is_the_table(benchmark, training, dco, comp):
    preset = PAPER[benchmark]
    assert tuple(preset.training.as_json().values()) == training
    for method, k, clip in (("dco", 1000, dco[2]), ("dco-comp", *comp)):
        settings = get_method(method).resolved(preset.methods[method])
        assert settings["k"] == k
        assert settings["penalty_step"] == "gradient"  # the plugins' default is another
        assert settings["max_penalty_grad_norm"] == clip
        assert (settings["dco_lambda"], settings["theta"]) == dco[:2]
        assert settings["gamma_1"] == dco[3]
        assert (settings["push_epochs"], settings["averaged_points"]) == (10, 16)
        assert (settings["gradients_per_update"], settings["tau"]) == (128, 2)
        assert (settings["gamma_2"], settings["pull_first"]) == (0.1, False)
        assert (settings["autoencoder_updates"], settings["autoencoder_lr"]) == (dco[4], 1e-2)
        assert settings["trajectory_lr"] == 1e-3
    assert get_method("dco").resolved(preset.methods["dco"])["rho"] == 100.0
    assert (settings["compression_updates"], settings["compression_lr"]) == (50, 2e-2)
    assert (settings["compression_loss"], settings["compression_start"]) == ("directions", "noise")
    assert (settings["autoencoder_lr_decay"], settings["layer_weights"]) == (0.99, "decreasing")
    assert settings["new_task_k"] == (200 if benchmark == "split-mnist" else 250)
    assert settings["shrink_new_task_k"]
    assert settings["rho"] == 1.0


@pytest.mark.parametrize("method", ["dco", "dco-comp"])
@pytest.mark.parametrize("benchmark", [name for name in PAPER if "digits" not in name])
def test_paper_is_what_the_declarations_and_the_table_of_sources_say(benchmark, method):
    """The published cells of the table, read as a reader does, are the preset's values."""
    of = {"fashion-mnist": "mnist-fashion", "split-cifar10": "split-cifar100"}
    of |= {f"permuted-mnist-{n}": "permuted-mnist" for n in (10, 20)}
    of_table = {}
    for row in [*sources(RESULTS, ["dco"]), *sources(RESULTS, [method])]:
        cells = re.findall(r"(?:([a-z0-9-]+): )?`([^`]+)` \(", row["published"])
        values = {where: literal_eval(value) for where, value in cells}
        name = row["argument"].strip("`")
        of_table[name] = values.get(of.get(benchmark, benchmark), values.get("", ...))
    published = {name: value for name, value in of_table.items() if value is not ...}
    preset = dict(PAPER[benchmark].methods[method])
    assert preset == published


def test_cifar10_takes_the_settings_of_cifar100():
    assert PAPER["split-cifar10"] == PAPER["split-cifar100"]


@pytest.mark.parametrize("benchmark", [name for name in PAPER if "digits" not in name])
def test_fast_draws_fewer_gradients_and_compresses_in_our_way(benchmark):
    paper, fast = PAPER[benchmark], PRESETS["fast"][benchmark]
    epochs = 20 if "cifar" in benchmark else paper.training.epochs
    assert fast.training == paper.training.changed({"epochs": epochs})
    ours = {
        "rho": 100.0,
        "autoencoder_lr_decay": 1.0,
        "layer_weights": "equal",
        "new_task_k": 400 if benchmark == "split-mnist" else None,
        "shrink_new_task_k": False,
        "compression_start": "previous",
        "compression_loss": "gradients",
    }
    for method, settings in fast.methods.items():
        fewer = {"gradients_per_update": 16} if method in DIRECTION_CONSTRAINED else {}
        compressed = ours if method == "dco-comp" else {}
        assert settings == {**paper.methods[method], **fewer, **compressed}
    assert fast.grids == paper.grids


def test_the_digits_are_the_same_under_both_names():
    for benchmark in ("split-digits", "permuted-digits"):
        assert PAPER[benchmark] == PRESETS["fast"][benchmark]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("benchmark", PAPER)
def test_every_value_of_every_grid_and_preset_is_accepted(monkeypatch, preset, benchmark):
    monkeypatch.setattr("benchmarks.runs.planning.provide", lambda *_: None)
    monkeypatch.setattr("benchmarks.runs.planning.data_hashes", lambda *_: {})
    methods = ["naive", "ewc", "si", "rwalk", "gpm", "mas", "lwf", "a-gem", "joint", "dco",
               "dco-comp", "dco-kron"]  # fmt: skip
    plan = Plan(Request(benchmark, methods, preset=preset))
    for method in methods:
        for tried in plan.combinations(plan.grid(method)):
            assert plan.job(method, 1, tried).settings is not None


def test_the_learning_rate_may_drop_after_the_first_experience():
    training = Training(1, 1, 0.5, 0.0, later_lr_factor=0.1)
    assert [training.lr_of(index) for index in range(3)] == [0.5, 0.05, 0.05]


def test_values_of_training_and_method_are_told_apart():
    assert divided({"lr": 1, "k": 2}) == ({"lr": 1}, {"k": 2})
