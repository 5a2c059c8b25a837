"""The command `run`, on embedded data and with few epochs."""

import json
import re

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.commands import demo
from benchmarks.presets import PRESETS, Preset
from benchmarks.report.settings import difference_words
from benchmarks.runs.planning import Assignment, Plan, Request
from benchmarks.runs.training import Training
from benchmarks.streams.catalogue import TASKS
from tests.support.benchmark_runs import TINY, _in_this_process, in_this_process, tiny_flags  # noqa: F401
from tests.support.run_folders import matrix_of

pytestmark = pytest.mark.usefixtures("_in_this_process")

QUICK = ["--training", "epochs=1"]


def run(tmp_path, *arguments):
    return main(["run", "--out", str(tmp_path), *QUICK, *arguments])


def test_run_prints_a_table_and_keeps_every_run(tmp_path, capsys):
    assert run(tmp_path, "--benchmark", "split-digits", "--methods", "naive", "joint") == 0
    printed = capsys.readouterr().out
    assert "split-digits" in printed
    assert "naive" in printed
    assert "joint (bound)" in printed
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {
            "config.json",
            "metrics.csv",
            "outcome.json",
        }
        config = json.loads((folder / "config.json").read_text())
        outcome = json.loads((folder / "outcome.json").read_text())
        assert config["training"]["epochs"] == 1
        assert config["versions"]["torch"]
        assert config["command"].startswith("python ")
        assert config["split"] == "test"
        assert len(config["data"]["scikit-learn digits"]) == 64
        assert outcome["average"] == pytest.approx(outcome["fwi"] + outcome["bwt"], abs=1e-3)
        trainings = 1 if config["method"] == "joint" else 5
        assert matrix_of(folder).shape == (trainings, 5)
        assert outcome["average"] == pytest.approx(matrix_of(folder)[-1].mean(), abs=1e-3)


def test_finished_run_is_not_repeated_and_another_seed_is_another_run(tmp_path):
    arguments = ["--benchmark", "split-digits", "--methods", "naive"]
    run(tmp_path, *arguments)
    (folder,) = tmp_path.iterdir()
    written = (folder / "outcome.json").stat().st_mtime_ns
    run(tmp_path, *arguments)
    assert (folder / "outcome.json").stat().st_mtime_ns == written
    run(tmp_path, *arguments, "--seeds", "2")
    assert len(list(tmp_path.iterdir())) == 2


def test_settings_reach_the_method_and_all_of_them_are_stored(tmp_path):
    flags = [*tiny_flags("dco"), "--set", "gradient_source=logits"]
    assert run(tmp_path, "--benchmark", "split-digits", "--methods", "dco", *flags) == 0
    (folder,) = tmp_path.iterdir()
    settings = json.loads((folder / "config.json").read_text())["settings"]
    assert TINY.items() <= settings.items()
    assert settings["gradient_source"] == "logits"
    assert settings["rho"] == 100.0  # a default
    outcome = json.loads((folder / "outcome.json").read_text())
    # five tasks of 4 directions: factors of four matrices, a target for each, and a weight
    assert outcome["memory_bytes"] == 4 * 5 * 4 * (164 + 200 + 200 + 110 + 4 + 1)


def test_fewer_experiences_are_learned_as_they_are_among_all(tmp_path):
    arguments = ["--benchmark", "split-digits", "--methods", "naive"]
    run(tmp_path / "all", *arguments)
    run(tmp_path / "two", *arguments, "--training", "experiences=2")
    of_all, of_two = (matrix_of(next((tmp_path / name).iterdir())) for name in ("all", "two"))
    np.testing.assert_array_equal(of_two, of_all[:2, :2])
    (config,) = (tmp_path / "two").glob("*/config.json")
    assert json.loads(config.read_text())["training"]["experiences"] == 2


def test_a_report_tells_fewer_experiences_from_all():
    assert difference_words({}, [{"experiences": 2}]) == ["all experiences"]
    assert difference_words({"experiences": 2}, [{}]) == ["first 2 tasks only"]


def test_joint_training_on_fewer_experiences(tmp_path):
    flags = ["--training", "experiences=2"]
    assert run(tmp_path, "--benchmark", "split-digits", "--methods", "joint", *flags) == 0
    (folder,) = tmp_path.iterdir()
    assert matrix_of(folder).shape == (1, 2)


@pytest.mark.parametrize(
    ("count", "message"),
    [("6", "has 5; give at most"), ("0", "at least 1"), ("1.5", "experiences")],
)
def test_a_wrong_number_of_experiences_is_refused(tmp_path, capsys, count, message):
    flags = ["--training", f"experiences={count}"]
    assert run(tmp_path, "--benchmark", "split-digits", "--methods", "naive", *flags) != 0
    printed = capsys.readouterr()
    assert message in " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize(("directions", "expected"), [("eigen", 80), ("trained", 20)])
def test_a_default_that_follows_from_others_is_stored_as_it_is(directions, expected):
    given = [Assignment(None, "k", 80), Assignment(None, "directions", directions)]
    plan = Plan(Request("split-digits", ["dco-comp"], settings=given))
    assert plan.job("dco-comp", 1).settings["new_task_k"] == expected
    assert plan.job("dco-comp", 1).settings["max_bytes"] is None


def test_a_setting_may_be_for_one_of_several_methods(tmp_path):
    methods = ["--benchmark", "split-digits", "--methods", "naive", "ewc"]
    assert run(tmp_path, *methods, "--set", "ewc.ewc_lambda=7", "--training", "ewc.lr=0.01") == 0
    configs = {
        config["method"]: config
        for config in (json.loads(p.read_text()) for p in tmp_path.glob("*/config.json"))
    }
    assert configs["ewc"]["settings"]["ewc_lambda"] == 7
    assert configs["ewc"]["training"]["lr"] == 0.01
    assert configs["naive"]["training"]["lr"] == 0.003


BAD_VALUES = [
    ("ewc", ["--set", "ewc_lambda=abc"], r"ewc_lambda='abc' must be a number"),
    ("ewc", ["--set", "ewc_lambda=-5"], r"ewc_lambda=-5 must be a number at least 0"),
    ("ewc", ["--set", "ewc_lambda=1", "--set", "mode=foo"], r"does not take.*mode='foo'"),
    ("ewc", ["--set", "ewc_lambda=1", "--set", "half=abc"], r"half='abc' must be True or False"),
    ("si", ["--set", "si_lambda=abc"], r"si_lambda='abc' must be a number"),
    ("lwf", ["--set", "alpha=abc"], r"alpha='abc' must be a number"),
    ("mas", ["--set", "lambda_reg=abc"], r"lambda_reg='abc' must be a number"),
    ("a-gem", ["--set", "sample_size=-3"], r"sample_size=-3 must be a whole number"),
    ("ewc", ["--grid", "ewc_lambda=1,abc"], r"ewc_lambda='abc' must be a number"),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--benchmark", "split-mnist", "--methods", "naive"],
            r"needs data.*--data-root.*MNIST/raw/train-images-idx3-ubyte",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "--set", "k=3"],
            r"naive has no setting \['k'\].*METHOD.NAME=VALUE",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "si"],
            r"si needs a value for \['si_lambda'\]; its grid has",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "dco", "--set", "k=0"],
            r"k=0 must be a whole number of at least 1",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "--training", "momentum=0"],
            r"--training has no \['momentum'\]",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "--training", "lr=fast"],
            r"lr='fast' must be a number",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "--set", "lr=1"],
            r"write --training lr=1",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "--set", "ewc.half=True"],
            r"ewc is not among --methods naive",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "dco", "--grid", "thta=1,2"],
            r"--grid thta: none of naive, dco has such a setting; there are .*theta",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "dco", "--grid", "k=1,2", "--set", "k=3"],
            r"k is given by --grid and by --set",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "--npz", "x.npz"],
            r"--npz is for split-cifar10 and split-cifar100, not for split-digits",
        ),
        *(
            (["--benchmark", "split-digits", "--methods", method, *settings], message)
            for method, settings, message in BAD_VALUES
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "--ray-address", "auto"],
            r"--ray-address goes with --runner ray",
        ),
    ],
)
def test_what_cannot_run_is_said_in_one_line(tmp_path, capsys, monkeypatch, arguments, message):
    bare = Preset(PRESETS["paper"]["split-digits"].training)
    monkeypatch.setitem(PRESETS["paper"], "split-digits", bare)
    assert run(tmp_path, *arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_settings_of_all_methods_are_checked_before_the_first_runs(tmp_path, capsys):
    arguments = ["--benchmark", "split-digits", "--methods", "dco", "naive", "--set", "k=3"]
    assert run(tmp_path, *arguments) == 2
    assert "naive has no setting" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "k"], "NAME=VALUE"),
        (["--set", "k="], "NAME=VALUE"),
        (["--set", "dcoo.k=1"], "there is no method 'dcoo'"),
        (["--grid", "k=1,,2"], "empty value"),
        (["--jobs", "0"], "whole number of at least 1"),
        (["--seeds", "-1"], "'-1' is no seed"),
        (["--seeds", "1", "4294967296"], "a whole number from 0 to 4294967295"),
        (["--seeds", "one"], "'one' is no seed"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit):
        run(tmp_path, "--benchmark", "split-digits", "--methods", "dco", *arguments)
    assert message in capsys.readouterr().err


def test_every_benchmark_has_both_presets():
    assert PRESETS["paper"].keys() == PRESETS["fast"].keys() == TASKS.keys()


def test_demo_shows_four_methods_on_two_benchmarks(monkeypatch, capsys):
    quick = Preset(Training(1, 64, 1e-2, 0.0), {"ewc": {"ewc_lambda": 1}, "dco": TINY})
    for name in demo.BENCHMARKS:
        monkeypatch.setitem(PRESETS["paper"], name, quick)
    monkeypatch.setattr(demo, "in_processes", in_this_process)
    demo.main()
    printed = capsys.readouterr().out
    for word in ("permuted-digits", "split-digits", "naive", "ewc", "dco", "average", "FWI", "BWT"):
        assert word in printed


@pytest.mark.parametrize("command", ["list", "run", "compare", "sweep", "report"])
def test_help_teaches_by_example(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"python -m benchmarks {command}" in capsys.readouterr().out


def test_list_names_everything(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for word in (*TASKS, "a-gem (replay)", "joint (bound)", "ewc_lambda", "paper", "fast"):
        assert word in printed
