"""The command line, on embedded data and with few epochs."""

import json
import re

import pytest

from benchmarks import demo
from benchmarks.__main__ import main
from benchmarks.presets import PRESETS, Preset
from benchmarks.tasks import TASKS

QUICK = ["--training", "epochs=1"]


def run(tmp_path, *arguments):
    return main(["run", "--out", str(tmp_path), *QUICK, *arguments])


def test_run_prints_a_table_and_keeps_every_run(tmp_path, capsys):
    assert run(tmp_path, "--benchmark", "split-digits", "--methods", "naive", "joint") == 0
    printed = capsys.readouterr().out
    assert "split-digits" in printed
    assert "naive" in printed
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        outcome = json.loads((folder / "outcome.json").read_text())
        assert config["training"]["epochs"] == 1
        assert config["versions"]["torch"]
        assert config["command"].startswith("python ")
        assert outcome["average"] == pytest.approx(outcome["fwi"] + outcome["bwt"], abs=1e-3)
        rows = (folder / "errors.csv").read_text().splitlines()
        assert rows[0] == "after_experience,experience,error_percent"
        trainings = 1 if config["method"] == "joint" else 5
        assert len(rows) == 1 + trainings * 5


def test_finished_run_is_not_repeated_and_another_seed_is_another_run(tmp_path):
    arguments = ["--benchmark", "split-digits", "--methods", "naive"]
    run(tmp_path, *arguments)
    (folder,) = tmp_path.iterdir()
    written = (folder / "outcome.json").stat().st_mtime_ns
    run(tmp_path, *arguments)
    assert (folder / "outcome.json").stat().st_mtime_ns == written
    run(tmp_path, *arguments, "--seeds", "2")
    assert len(list(tmp_path.iterdir())) == 2


def test_settings_reach_the_method(tmp_path):
    settings = ["k=8", "gradients_per_update=2", "autoencoder_updates=2", "gradient_source=logits"]
    flags = [part for setting in settings for part in ("--set", setting)]
    assert run(tmp_path, "--benchmark", "split-digits", "--methods", "dco", *flags) == 0
    (folder,) = tmp_path.iterdir()
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"] == {
        "k": 8,
        "gradients_per_update": 2,
        "autoencoder_updates": 2,
        "gradient_source": "logits",
    }
    outcome = json.loads((folder / "outcome.json").read_text())
    # five tasks of 8 directions: factors of four matrices, targets and weights, single precision
    assert outcome["memory_bytes"] == 4 * 5 * 8 * (164 + 200 + 200 + 110 + 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--benchmark", "split-mnist", "--methods", "naive"],
            r"needs data.*--data-root.*MNIST/raw/train-images-idx3-ubyte",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "--set", "k=3"],
            r"naive has no setting \['k'\]",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "si"],
            r"si needs a value for \['si_lambda'\]; its grid has",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "--training", "momentum=0"],
            r"--training has no \['momentum'\]",
        ),
        (
            ["--benchmark", "split-digits", "--methods", "naive", "--training", "lr=fast"],
            r"lr=fast must be a number",
        ),
    ],
)
def test_what_cannot_run_is_said_in_one_line(tmp_path, capsys, arguments, message):
    assert run(tmp_path, *arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_settings_of_all_methods_are_checked_before_the_first_runs(tmp_path, capsys):
    arguments = ["--benchmark", "split-digits", "--methods", "dco", "naive", "--set", "k=3"]
    assert run(tmp_path, *arguments) == 2
    assert "naive has no setting" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_setting_without_a_value_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(tmp_path, "--benchmark", "split-digits", "--methods", "dco", "--set", "k")
    assert "NAME=VALUE" in capsys.readouterr().err


def test_every_benchmark_has_a_preset():
    assert PRESETS.keys() == TASKS.keys()


def test_demo_shows_three_methods_on_two_benchmarks(monkeypatch, capsys):
    tiny = {"k": 4, "gradients_per_update": 2, "autoencoder_updates": 1, "push_epochs": 1}
    quick = Preset(1, 64, 1e-2, 0.0, {"ewc": {"ewc_lambda": 1}, "dco": tiny})
    monkeypatch.setattr(demo, "PRESETS", dict.fromkeys(demo.BENCHMARKS, quick))
    demo.main()
    printed = capsys.readouterr().out
    for word in ("permuted-digits", "split-digits", "naive", "ewc", "dco", "average", "FWI", "BWT"):
        assert word in printed
