"""The capacity command measures, keeps what it measured, and draws it."""

import pandas as pd
import pytest

from benchmarks.__main__ import main
from benchmarks.runs.kept import read_study
from benchmarks.studies import capacity
from benchmarks.studies.capacity import cost_by_share, plot_errors, summary
from tests.support.learning import QUICK, blobs, small_mlp


@pytest.fixture
def _tiny(monkeypatch):
    setup = capacity.Setup(
        "permuted-digits",
        lambda seed, root: blobs(3),
        small_mlp,
        {"dco": QUICK, "naive": {}},
    )
    monkeypatch.setitem(capacity.SETUPS, "tiny", setup)


@pytest.mark.usefixtures("_tiny")
def test_a_run_leaves_a_table_a_record_and_figures_and_is_not_repeated(tmp_path, capsys):
    command = [
        "capacity",
        "--data",
        "tiny",
        "--seeds",
        "1",
        "2",
        "--out",
        str(tmp_path / "out.csv.xz"),
    ]
    assert main([*command, "--figures", str(tmp_path / "figures")]) == 0
    assert "dco" in capsys.readouterr().out
    written = (tmp_path / "out.csv.xz").read_bytes()
    runs = read_study(tmp_path / "out.csv.xz").runs
    assert list(runs) == [
        f"tiny-{method}-seed{seed}" for seed in (1, 2) for method in ("dco", "naive")
    ]
    record = runs["tiny-dco-seed2"].config
    assert record["settings"] == QUICK
    assert record["weights"] == 6 * 8 + 8 + 8 * 3 + 3
    assert record["command"] == "python -m benchmarks capacity --data tiny --methods dco --seeds 2"
    for picture, shown in (("capacity", "Memory (MiB)"), ("errors", "Naive, new task")):
        assert f">{shown}</text>" in (tmp_path / "figures" / f"tiny-{picture}.svg").read_text()

    assert main(command) == 0
    assert (tmp_path / "out.csv.xz").read_bytes() == written


@pytest.mark.usefixtures("_tiny")
def test_the_summary_is_that_of_the_metrics():
    run = capacity.measure("run", "tiny", "dco", 1, None)
    frame = run.metrics.assign(method="dco", seed=1)
    shown = summary(frame).loc["dco"]
    assert shown.index.tolist() == [1, 2, 3]
    assert shown["start"].tolist()[0] == 0
    errors = frame[frame["metric"] == "ErrorMatrix"].pivot_table(
        index="trained", columns="experience", values="value"
    )
    for n in (1, 2, 3):
        assert shown["new"][n] == pytest.approx(100 * errors.loc[n, n - 1])
        assert shown["average"][n] == pytest.approx(100 * errors.loc[n, : n - 1].mean())
    lines = plot_errors(frame).axes[0].lines
    assert lines[0].get_ydata().tolist() == shown["new"].tolist()
    assert lines[1].get_ydata().tolist() == shown["average"].tolist()


def test_the_cost_is_the_difference_to_naive_by_band_of_the_share():
    def run(method, seed, errors, shares=()):
        own = [("ErrorMatrix", n, n - 1, n - 1, e) for n, e in enumerate(errors, 1)]
        other = [("ErrorMatrix", n, 5, n - 1, 0.9) for n in range(1, 4)]
        start = [("CapacityStart", n, n - 1, n - 1, s) for n, s in enumerate(shares, 1)]
        columns = ["metric", "trained", "experience", "training_experience", "value"]
        return pd.DataFrame(own + other + start, columns=columns).assign(method=method, seed=seed)

    cost = cost_by_share(
        pd.concat(
            [
                run("dco", 1, [0.1, 0.2, 0.5], [0.0, 0.55, 1.0]),
                run("naive", 1, [0.9, 0.1, 0.1]),
                run("dco", 2, [0.1, 0.2, 0.3], [0.0, 0.58, 0.95]),
                run("naive", 2, [0.9, 0.3, 0.2]),
            ]
        )
    )
    assert cost["count"].tolist() == [2, 2]
    assert cost["mean"].tolist() == pytest.approx([0.0, 25.0])
    assert cost["min"].tolist() == pytest.approx([-10.0, 10.0])
    assert cost["max"].tolist() == pytest.approx([10.0, 40.0])


def test_missing_data_are_named(tmp_path, capsys):
    assert main(["capacity", "--data", "permuted-mnist", "--data-root", str(tmp_path)]) == 2
    assert "MNIST/raw/train-images-idx3-ubyte" in capsys.readouterr().err
