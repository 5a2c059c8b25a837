"""The tables and the figure of the study of sums of curvatures over tasks."""

import pandas as pd
import pytest

from benchmarks.__main__ import main
from benchmarks.commands.tables import make_table
from benchmarks.runs.kept import Study, read_study, study_path, write_study
from benchmarks.runs.records import Run
from benchmarks.studies.task_sums import TITLES, draw


def make_run(name, strength=10.0, growth=0.5, floor=0.0, seed=1, error=0.04):
    config = {"network": "mlp-256", "sum": name, "strength": strength, "growth": growth}
    config |= {"floor": floor, "seed": seed}
    rows = [("AverageError", 5, error)]
    for trained, share in ((1, 0.9), (5, 0.4)):
        rows.append(("NewError", trained, error / trained))
        rows += [(f"FreeShare/{layer}.weight", trained, share / layer) for layer in (1, 3)]
    frame = pd.DataFrame(rows, columns=["metric", "trained", "value"])
    frame = frame.assign(stream="validation", experience=None, training_experience=None)
    title = f"{name}-{strength:g}-{growth:g}-{floor:g}-{seed}"
    return Run(title, config, {"seconds": 1.0}, frame)


@pytest.fixture
def kept():
    study = Study()
    study.add(
        [
            make_run("kl"),
            make_run("mean", floor=0.3, error=0.05),
            make_run("mean", floor=0.3, seed=2, error=0.07),
            make_run("mean", strength=100.0, growth=0.0),
        ]
    )
    return study


def test_the_tables_have_means_over_seeds_and_shares(kept, tmp_path):
    write_study(tmp_path / "task-sums.csv.xz", kept)
    assert make_table(["task-sums", "mlp-256"], tmp_path).splitlines()[::2] == [
        "| sum | strength | 5 tasks |",
        "| sum of A, mean of S | λ = 100 / n | 4.00 |",
        "| KL-optimal, damped by 0.1 | λ = 10 / √n | 4.00 |",
    ]
    assert "| sum of A, mean of S, floor 0.3 | λ = 10 / √n | 6.00 ± 1.41 |" in make_table(
        ["task-sums", "mlp-256"], tmp_path
    )
    shares = make_table(["free-shares", "mlp-256"], tmp_path).splitlines()[2:]
    assert shares == [
        "| 0.5 to 1 | 4.0 to 7.0 | 5.0 | 2 |",
        "| 0.3 to 0.5 | 0.8 to 1.4 | 1.0 | 2 |",
    ]


def test_the_figure_has_every_layer_and_every_strength(kept):
    left, right = draw(kept, "mlp-256").axes
    assert [one.get_label() for one in left.lines] == ["1.weight", "3.weight"]
    assert [one.get_label() for one in right.lines] == ["λ = 10 / √n", "λ = 100 / n"]
    assert list(right.lines[1].get_xdata()) == [0.9, 0.4]
    assert list(right.lines[1].get_ydata()) == pytest.approx([4.0, 0.8])


def test_the_command_draws_the_kept_study(tmp_path):
    assert main(["task-sums", "--figure", str(tmp_path / "figure.svg")]) == 0
    assert ">Tasks learned</text>" in (tmp_path / "figure.svg").read_text()
    runs = read_study(study_path("task-sums")).runs.values()
    assert {run.config["sum"] for run in runs} <= set(TITLES)
