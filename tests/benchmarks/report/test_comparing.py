"""Runs are compared with what they may be compared with, and the numbers are right."""

import math

import numpy as np
import pytest

from avalanche_dco import DCOCompPlugin
from benchmarks.report.comparing import Comparison, compare, method_order, sweeps
from benchmarks.report.reading import Found, read_runs
from benchmarks.report.settings import changed_settings, default_settings
from tests.support.run_folders import TRAINING, write_run


def compared(folder) -> list[Comparison]:
    found = read_runs(folder)
    assert found.problems == []
    return compare(found)


def the_only(folder) -> Comparison:
    (comparison,) = compared(folder)
    return comparison


def labels(comparison: Comparison) -> list[str]:
    return [entry.label for entry in comparison.entries]


def test_mean_and_deviation_over_seeds(tmp_path):
    for seed, average in ((1, 2.0), (2, 4.0), (3, 9.0)):
        write_run(tmp_path, "dco", seed, average)
    (entry,) = the_only(tmp_path).entries
    mean, spread, count = entry.statistic("average")
    assert (mean, count) == (5.0, 3)
    assert spread == pytest.approx(np.std([2, 4, 9], ddof=1))
    assert entry.statistic("fwi")[0] == 3.75


def test_values_that_are_not_there_do_not_count(tmp_path):
    write_run(tmp_path, "dco", 1, 2.0)
    write_run(tmp_path, "dco", 2, 4.0, outcome={"average": None})
    (entry,) = the_only(tmp_path).entries
    mean, spread, count = entry.statistic("average")
    assert (mean, count) == (2.0, 1)
    assert math.isnan(spread)


def test_differences_are_paired_by_seed(tmp_path):
    for seed, dco, naive in ((1, 2.0, 5.0), (2, 10.0, 14.0), (3, 4.0, None), (4, None, 90.0)):
        if dco is not None:
            write_run(tmp_path, "dco", seed, dco)
        if naive is not None:
            write_run(tmp_path, "naive", seed, naive)
    comparison = the_only(tmp_path)
    naive, dco = comparison.entries
    assert comparison.reference is dco
    mean, error, count = naive.difference(dco, "average")
    assert (mean, count) == (3.5, 2)
    assert error == pytest.approx(np.std([3, 4], ddof=1) / math.sqrt(2))


def test_without_common_seeds_there_is_no_difference(tmp_path):
    write_run(tmp_path, "dco", 1)
    write_run(tmp_path, "naive", 2)
    naive, dco = the_only(tmp_path).entries
    mean, error, count = naive.difference(dco, "average")
    assert count == 0
    assert math.isnan(mean)
    assert math.isnan(error)


def test_without_dco_there_is_no_reference(tmp_path):
    write_run(tmp_path, "naive", 1)
    assert the_only(tmp_path).reference is None


def test_order_and_marks(tmp_path):
    for method in ("joint", "dco-comp", "cumulative", "own", "a-gem", "mas", "dco", "gpm", "naive"):
        write_run(tmp_path, method, 1)
    comparison = the_only(tmp_path)
    assert labels(comparison) == [
        "naive", "gpm", "mas", "own", "dco", "dco-comp", "a-gem", "cumulative", "joint",
    ]  # fmt: skip
    assert [entry.mark for entry in comparison.entries] == [""] * 6 + ["replay", "bound", "bound"]
    assert method_order("ewc") < method_order("si") < method_order("lwf") < method_order("dco")


def test_best_is_the_lowest_without_marks_and_its_equals(tmp_path):
    write_run(tmp_path, "joint", 1, 0.5)
    write_run(tmp_path, "naive", 1, 3.0)
    write_run(tmp_path, "ewc", 1, 2.001)
    write_run(tmp_path, "dco", 1, 2.0)
    comparison = the_only(tmp_path)
    assert [entry.label for entry in comparison.best("average")] == ["ewc", "dco"]
    write_run(tmp_path / "alone", "naive", 1)
    assert the_only(tmp_path / "alone").best("average") == []


def test_several_settings_of_a_method_are_told_apart(tmp_path):
    for k in (50, 500):
        write_run(tmp_path, "dco", 1, settings={"k": k, "dco_lambda": 7.0})
    write_run(tmp_path, "naive", 1)
    assert labels(the_only(tmp_path)) == ["naive", "dco (50 directions)", "dco (500 directions)"]


def test_a_default_is_the_same_said_or_not(tmp_path):
    write_run(tmp_path, "dco", 1, settings={"theta": 0.2, "dco_lambda": 100})
    write_run(tmp_path, "dco", 2, settings={"dco_lambda": 100.0})
    (entry,) = the_only(tmp_path).entries
    assert [run.seed for run in entry.runs] == [1, 2]
    assert entry.settings["theta"] == default_settings("dco")["theta"] == 0.2
    assert changed_settings(entry.method, entry.settings | {"k": 7}) == ["k=7"]
    assert default_settings("unheard of") == {}
    assert default_settings("dco-comp")["theta"] == 0.2
    expected = DCOCompPlugin().compression_updates
    assert default_settings("dco-comp")["compression_updates"] == expected
    assert default_settings("ewc")["half"] is True
    assert "ewc_lambda" not in default_settings("ewc")  # has to be given


def test_training_that_differs_is_in_the_label(tmp_path):
    write_run(tmp_path, "dco", 1)
    write_run(tmp_path, "gpm", 1)
    write_run(tmp_path, "gpm", 1, training=TRAINING | {"lr": 0.5})
    write_run(tmp_path, "naive", 1, training=TRAINING | {"matched_to": {"push_epochs": 1}})
    comparison = the_only(tmp_path)
    assert labels(comparison) == [
        "naive (compute as DCO's)", "gpm", "gpm (learning rate 0.5)", "dco",
    ]  # fmt: skip
    assert comparison.training == TRAINING


def test_presets_share_their_baselines(tmp_path):
    write_run(tmp_path, "naive", 1, preset="paper")
    write_run(tmp_path, "dco", 1, preset="paper", settings={"gradients_per_update": 128})
    write_run(tmp_path, "dco", 1, preset="fast", settings={"gradients_per_update": 16})
    assert labels(the_only(tmp_path)) == [
        "naive", "dco (16 gradients per update)", "dco (128 gradients per update)",
    ]  # fmt: skip


def test_long_values_are_cut_and_labels_stay_distinct(tmp_path):
    for end in ("a", "b"):
        write_run(tmp_path, "own", 1, settings={"x": "long " * 20 + end})
    first, second = labels(the_only(tmp_path))
    assert first == "own (x long long long long lon…)"
    assert second == f"{first} #2"


def test_settings_that_only_some_have(tmp_path):
    write_run(tmp_path, "own", 1, settings={"a": [1, 2]})
    write_run(tmp_path, "own", 1, settings={})
    assert sorted(labels(the_only(tmp_path))) == ["own (a 1 and 2)", "own (a unset)"]


def test_test_validation_own_arrays_and_other_data_never_mix(tmp_path):
    npz = {"name": "mine.npz", "sha256": "cd" * 32}
    write_run(tmp_path, "dco", 1, benchmark="split-cifar100")
    write_run(tmp_path, "dco", 1, benchmark="split-cifar100", split="validation")
    write_run(tmp_path, "dco", 1, benchmark="split-cifar100", npz=npz)
    write_run(tmp_path, "dco", 1, benchmark="split-mine.npz-cdcdcdcd", npz=npz)
    write_run(tmp_path, "dco", 1, benchmark="split-mnist", data={"train": "00" * 32})
    write_run(tmp_path, "dco", 1, benchmark="split-mnist", data={"train": "11" * 32})
    comparisons = compared(tmp_path)
    named = {one.title: one.published for one in comparisons}
    known = [title for title in named if not title.startswith("split-mnist, data ")]
    assert known == [
        "split-cifar100",
        "split-cifar100 on mine.npz cdcdcdcdcdcd",
        "split-mine.npz-cdcdcdcd",
        "split-cifar100 (validation split)",
    ]
    assert len(named) == 6
    assert [title for title, published in named.items() if published] == [
        "split-cifar100",
        *(title for title in named if title.startswith("split-mnist, data ")),
    ]


def test_a_copy_is_counted_once_and_named(tmp_path):
    write_run(tmp_path / "a", "dco", 1)
    write_run(tmp_path / "b", "dco", 1)
    found = read_runs(tmp_path)
    (comparison,) = compare(found)
    assert [len(entry.runs) for entry in comparison.entries] == [1]
    ((where, why),) = found.problems
    assert where.startswith("b/")
    assert "the same run as a/" in why


def test_sweeps_are_found_where_nothing_else_differs(tmp_path):
    for theta in (1.0, 0.0, 0.2):
        for seed in (1, 2):
            write_run(tmp_path, "dco", seed, 5 + theta, settings={"theta": theta, "k": 10})
    write_run(tmp_path, "dco", 1, settings={"theta": 3.0, "k": 10, "tau": 9})
    write_run(tmp_path, "dco", 1, settings={"theta": "auto", "k": 10})
    comparison = the_only(tmp_path)
    (sweep,) = sweeps(comparison, "theta")
    assert (sweep.method, sweep.label, sweep.setting) == ("dco", "dco", "theta")
    assert [value for value, _ in sweep.points] == [0.0, 0.2, 1.0]
    assert [entry.statistic("average")[0] for _, entry in sweep.points] == [5.0, 5.2, 6.0]
    assert sweeps(comparison, "k") == []


def test_sweeps_of_a_grid_are_told_apart(tmp_path):
    for theta in (0.1, 0.2):
        for k in (10, 20):
            write_run(tmp_path, "dco", 1, settings={"theta": theta, "k": k})
    comparison = the_only(tmp_path)
    assert [sweep.label for sweep in sweeps(comparison, "theta")] == [
        "dco (10 directions)", "dco (20 directions)",
    ]  # fmt: skip
    assert [s.label for s in sweeps(comparison, "k")] == ["dco (theta 0.1)", "dco (theta 0.2)"]


def test_reference_among_several_settings(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path, "dco", seed, settings={"theta": 0.5})
        write_run(tmp_path, "dco", seed, settings={"theta": 0.2})
    write_run(tmp_path, "dco", 1, settings={"theta": 0.9})
    reference = the_only(tmp_path).reference
    assert reference is not None
    assert reference.label == "dco (theta 0.2)"


def test_nothing_to_compare():
    assert compare(Found()) == []
