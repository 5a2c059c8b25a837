"""The landscape commands end to end, and the three observations in the published numbers."""

import lzma
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from benchmarks.__main__ import COMMANDS, main
from benchmarks.runs.kept import read_measurements, study_path
from benchmarks.studies import fisher_example
from benchmarks.studies.landscape.observations import (
    CONE_INDICES,
    LINE_INDICES,
    ON_AXIS,
    SIGMAS,
    SUBSPACES,
    alpha_of_descent,
    half_width,
    mean_rise,
    within,
)
from benchmarks.studies.landscape.setups import SETUPS, train_to_convergence
from benchmarks.studies.landscape.study import evaluation_batches

TABLES = ("spectrum", "axis", "observation1", "observation2", "observation3", "cone")
QUICK = ["--data", "digits", "--draws", "60", "--steps", "700", "--max-steps", "6000"]


def read_tables(path: Path, data: str) -> dict[str, pd.DataFrame]:
    """The tables of one setup, by name, as they were written."""
    frame, _ = read_measurements(path)
    own = frame[frame["data"] == data].drop(columns="data")
    return {
        str(name): table.drop(columns="table").dropna(axis=1, how="all").reset_index(drop=True)
        for name, table in own.groupby("table", sort=False)
    }


def on_axis(spectrum: pd.DataFrame) -> list[int]:
    """Eigenvectors that are the averaged gradient itself: no way out of the cone."""
    return spectrum["index"][spectrum["cosine"].abs() > ON_AXIS].tolist()


def assert_the_loss_rises_faster_along_low_index_eigenvectors(
    table: pd.DataFrame, left_out: Sequence[int] = ()
) -> None:
    rise = mean_rise(table, ["index"]).drop(list(left_out))
    assert len(rise) == len(LINE_INDICES) - len(left_out)
    assert rise.corr(pd.Series(rise.index, rise.index), method="spearman") < -0.9
    for low in rise.index:  # neighbours may change places; five times the index never does
        assert (rise[rise.index >= 5 * low] < rise[low]).all(), low
    assert rise.iloc[0] > 100 * rise.iloc[-1]


def assert_h_falls_with_s(table: pd.DataFrame) -> None:
    assert len(table) == len(SUBSPACES) * len(SIGMAS)
    for sigma, curve in table.groupby("sigma"):
        h, error = (curve.set_index("s")[name] for name in ("h", "standard_error"))
        assert h.idxmax() == min(SUBSPACES), sigma
        assert h.corr(pd.Series(h.index, h.index), method="spearman") < -0.9, sigma
        # From each subspace to the next but one: lower, by more than chance.
        for near, far in zip(SUBSPACES, SUBSPACES[2:], strict=False):
            joint = math.hypot(error[near], error[far])
            assert h[far] < h[near] + 2 * joint, (sigma, near, far)
        joint = math.hypot(error[SUBSPACES[0]], error[SUBSPACES[-1]])
        assert h[SUBSPACES[0]] - h[SUBSPACES[-1]] > 3 * joint, sigma


def assert_the_curve_flattens_as_alpha_grows(
    section: pd.DataFrame, cone: pd.DataFrame, left_out: Sequence[int] = ()
) -> None:
    near = within(section, cone, half_widths=1.5)
    assert len(near) == len(section) // 121 * 61
    rise = mean_rise(near, ["index", "alpha"]).unstack("alpha").drop(list(left_out))
    assert len(rise) == len(CONE_INDICES) - len(left_out)
    assert (rise.iloc[:, -1] < rise.iloc[:, 0]).all(), rise
    widths = cone.assign(width=cone["beta_minus"] + cone["beta_plus"])
    width = widths.pivot(index="index", columns="alpha", values="width").drop(list(left_out))
    assert np.isfinite(width.to_numpy()).all(), width
    assert (np.diff(width.to_numpy(), axis=1) > 0).all(), width


@pytest.mark.slow
@pytest.mark.parametrize("data", ["mnist", "cifar10", "digits"])
def test_the_three_observations_hold_in_the_published_numbers(data: str) -> None:
    tables = read_tables(study_path("landscape"), data)
    config = read_measurements(study_path("landscape"))[1][data]
    assert config["draws"] == 3000
    assert config["training"]["converged"]
    assert_the_loss_rises_faster_along_low_index_eigenvectors(tables["observation1"])
    assert_h_falls_with_s(tables["observation2"])
    assert_the_curve_flattens_as_alpha_grows(tables["observation3"], tables["cone"])


@pytest.mark.slow
def test_the_three_observations_hold_when_measured_anew_on_digits(tmp_path: Path) -> None:
    out = tmp_path / "landscape.csv.xz"
    places = ["--out", str(out), "--figures", str(tmp_path)]
    assert main(["landscape", "--data", "digits", "--seed", "11", *places]) == 0
    tables = read_tables(out, "digits")
    axis = on_axis(tables["spectrum"])
    assert axis == [1]  # three batches make an epoch: little noise, so the mean leads G G^T
    assert_the_loss_rises_faster_along_low_index_eigenvectors(tables["observation1"], axis)
    assert_h_falls_with_s(tables["observation2"])
    assert_the_curve_flattens_as_alpha_grows(tables["observation3"], tables["cone"], axis)


def test_the_command_runs_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figures = tmp_path / "numbers.csv.xz", tmp_path / "figures"
    assert main(["landscape", *QUICK, "--out", str(out), "--figures", str(figures)]) == 0
    printed = capsys.readouterr()
    assert "Observation 2" in printed.out
    assert "observation 2: 100%" in printed.err  # progress
    tables = read_tables(out, "digits")
    assert sorted(tables) == sorted(TABLES)
    assert all(np.isfinite(tables[name].to_numpy()).all() for name in TABLES if name != "cone")
    config = read_measurements(out)[1]["digits"]
    assert config["parameters"] == 64 * 30 + 30 * 30 + 30 * 2
    assert config["samples"] == 360
    assert config["training"]["error"] == 0
    assert config["command"].startswith("python -m benchmarks landscape --data digits --seed 0")
    assert str(tmp_path) not in lzma.decompress(out.read_bytes()).decode()
    assert sorted(path.name for path in figures.iterdir()) == [
        f"digits-{name}.png" for name in ("cone", "observation1", "observation2", "observation3")
    ]
    assert all(path.stat().st_size < 200_000 for path in figures.iterdir())
    # the observations, as far as 60 draws and 700 gradients show them
    rise = mean_rise(tables["observation1"], ["index"])
    assert rise[1] > rise[20] > rise[200]
    h = tables["observation2"].pivot_table(index="s", columns="sigma", values="h")
    assert (h.loc[50] > h.loc[400]).all()
    near = within(tables["observation3"], tables["cone"], half_widths=1.5)
    flat = mean_rise(near, ["index", "alpha"]).unstack("alpha")
    assert (flat.iloc[:, -1] < flat.iloc[:, 0]).all()


def test_absent_data_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["landscape", "--data", "mnist", "--data-root", str(tmp_path)]) == 2
    assert "MNIST/raw/train-images-idx3-ubyte" in capsys.readouterr().err
    assert main(["landscape", "--data", "cifar10", "--data-root", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "cifar-10-batches-py/data_batch_1" in message
    assert "--npz FILE" in message
    absent = str(tmp_path / "absent.npz")
    assert main(["landscape", "--data", "cifar10", "--npz", absent]) == 2
    assert "x_train" in capsys.readouterr().err
    np.savez(tmp_path / "other.npz", images=np.zeros(3))
    assert main(["landscape", "--data", "cifar10", "--npz", str(tmp_path / "other.npz")]) == 2
    assert "['x_train', 'y_train'] are not in it" in capsys.readouterr().err
    for data in ("digits", "mnist"):
        assert main(["landscape", "--data", data, "--npz", absent]) == 2
        assert "--npz is for --data cifar10" in capsys.readouterr().err
    few = ["--data", "digits", "--steps", "30", "--max-steps", "10"]
    assert main(["landscape", *few]) == 2
    assert "no eigenvector 400" in capsys.readouterr().err
    assert main(["landscape", "--data", "digits", "--samples-per-draw", "-1"]) == 2
    assert "use 0 (all) or more" in capsys.readouterr().err


@pytest.mark.parametrize("channels_last", [False, True])
def test_cifar10_setup_from_npz(tmp_path: Path, channels_last: bool) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(30) % 3
    stored = images.transpose(0, 2, 3, 1) if channels_last else images
    np.savez(tmp_path / "c.npz", x_train=stored, y_train=labels)
    setup = SETUPS["cifar10"](tmp_path, tmp_path / "c.npz")
    assert setup.inputs.shape == (20, 3, 8, 8)
    assert set(setup.targets.tolist()) == {0, 1}
    model = setup.network()
    assert model(setup.inputs).shape == (20, 2)
    shapes = [layer(torch.zeros(1, c, s, s)).shape[1:] for layer, c, s in
              ((model[0], 3, 8), (model[2], 16, 4))]  # fmt: skip
    assert shapes == [(16, 4, 4), (32, 2, 2)]
    assert all(p.dim() > 1 for p in model.parameters())  # no biases
    # normalised by the paper's constants: undo them and compare with the mean of 4 x 4 patches
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    back = setup.inputs * std.view(3, 1, 1) + mean.view(3, 1, 1)
    assert -1e-6 < back.min() <= back.max() < 1 + 1e-6
    assert abs(back.mean().item() - images[labels < 2].mean() / 255) < 0.01
    optimizer = setup.sgd(model).param_groups[0]
    assert (optimizer["lr"], optimizer["momentum"], optimizer["weight_decay"]) == (1e-2, 0.9, 1e-4)


def test_digits_setup() -> None:
    setup = SETUPS["digits"](Path("nowhere"), None)
    assert setup.inputs.shape == (360, 64)
    assert abs(setup.inputs.mean()) < 1e-5
    assert sorted({tuple(p.shape) for p in setup.network().parameters()}) == [
        (2, 30), (30, 30), (30, 64),
    ]  # fmt: skip


def test_evaluation_batches_are_a_partition() -> None:
    setup = SETUPS["digits"](Path("nowhere"), None)
    parts = evaluation_batches(setup, 100, seed=1)
    assert [len(targets) for _, targets in parts] == [90, 90, 90, 90]
    together = torch.cat([inputs for inputs, _ in parts])
    assert torch.equal(together.unique(dim=0), setup.inputs.unique(dim=0))
    assert torch.equal(torch.cat([t for _, t in parts]).sort()[0], setup.targets.sort()[0])
    assert [len(t) for _, t in evaluation_batches(setup, 0, seed=1)] == [360]


def test_training_ends_at_saturation_or_at_the_limit() -> None:
    setup = SETUPS["digits"](Path("nowhere"), None)
    model = nn.Linear(64, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    limits = {"seed": 0, "window": 50, "max_steps": 1000}
    saturated = train_to_convergence(model, optimizer, setup, tolerance=0.01, **limits)
    assert saturated["converged"]
    assert 100 <= saturated["steps"] < 1000
    endless = train_to_convergence(model, optimizer, setup, tolerance=-1.0, **limits)
    assert not endless["converged"]
    assert endless["steps"] == 1000
    assert endless["loss"] < saturated["loss"]
    assert endless["error"] == 0


def test_alpha_of_descent_is_where_most_of_the_descent_is_done() -> None:
    table = pd.DataFrame({"alpha": [0.0, 1, 2, 3, 4], "loss": [10.0, 5, 0.9, 0.0, 7]})
    assert alpha_of_descent(table) == 2
    assert alpha_of_descent(table, share=1.0) == 3


def test_half_width_leaves_out_open_sides() -> None:
    walls = {"beta_minus": [1.0, math.inf, math.inf], "beta_plus": [2.0, 5.0, math.inf]}
    table = pd.DataFrame({"index": [1, 2, 3], "alpha": 0.0, **walls})
    assert [half_width(table, index) for index in (1, 2, 3)] == [1.5, 5.0, 100.0]


def test_mean_rise() -> None:
    table = pd.DataFrame(
        {"index": [1, 1, 1, 2, 2, 2], "beta": [-1, 0, 1] * 2, "loss": [3, 1, 3, 1.5, 1, 1.5]}
    )
    rise = mean_rise(table, ["index"])
    assert rise[1] == pytest.approx(4 / 3)
    assert rise[2] == pytest.approx(1 / 3)


def test_fisher_example_agrees_with_the_stationary_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.csv.xz"
    assert main(["fisher-example", "--runs", "400", "--steps", "2000", "--out", str(path)]) == 0
    assert "analytic" in capsys.readouterr().out
    table = read_measurements(path)[0].set_index("eta")
    assert list(table.index) == list(fisher_example.ETAS)
    assert table["analytic"].round(2).tolist() == [5.15, 4.19, 3.36, 3.20]
    off = (table["sampled"] - table["analytic"]).abs()
    assert (off < 3 * table["standard_error"]).all()
    assert (table["standard_error"] < 0.02).all()
    assert table["paper_over_analytic"].between(1.08, 1.12).all()
    assert main(["fisher-example", "--runs", "1"]) == 2


def test_fisher_stationary_value_is_the_fixed_point_of_the_recursion() -> None:
    for eta in fisher_example.ETAS:
        second_moment = 0.0
        for _ in range(2000):
            second_moment = (
                0.2 * ((1 - 4 * eta) ** 2 * second_moment + 16 * eta**2)
                + 0.8 * (1 - 10 * eta) ** 2 * second_moment
            )
        expected = 0.2 * (16 * second_moment + 16) + 0.8 * 100 * second_moment
        assert fisher_example.analytic(eta) == pytest.approx(expected)


def test_every_command_has_a_summary_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
