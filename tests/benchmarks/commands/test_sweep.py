"""`sweep --tries`: a search on validation data that resumes, and that others take over from."""

import json
import re
from dataclasses import replace

import pytest

from benchmarks.__main__ import main
from benchmarks.runs.choices import read_choices
from benchmarks.runs.kept import read_study, study_path
from benchmarks.runs.planning import Assignment, Plan, Request
from benchmarks.streams.catalogue import TASKS
from tests.support.benchmark_runs import _in_this_process  # noqa: F401

QUICK = ["--benchmark", "split-digits", "--training", "epochs=1", "--training", "experiences=2"]


def sweep(out, *arguments):
    return main(["sweep", *QUICK, *arguments, "--out", str(out)])


def outcomes(out):
    return {path: path.stat().st_mtime_ns for path in out.glob("*/outcome.json")}


@pytest.mark.usefixtures("_in_this_process")
def test_a_search_goes_on_where_it_ended_and_is_taken_over(tmp_path, capsys):
    out = tmp_path / "runs"
    assert sweep(out, "--methods", "ewc", "joint", "--tries", "2") == 0
    assert "with more --tries continues" in capsys.readouterr().out
    first = json.loads((out / "chosen.json").read_text())["methods"]
    for method in ("ewc", "joint"):
        assert (first[method]["tries"], first[method]["tries_allowed"]) == (2, 2)
    assert first["ewc"]["statuses"]["ewc_lambda"] == "edge"
    start = first["ewc"]["candidates"][0]["settings"]
    assert start == {"ewc_lambda": 100, "lr": 0.01, "later_lr_factor": 1, "weight_decay": 0}
    assert "later_lr_factor" not in first["joint"]["settings"]  # it is trained only once
    before = outcomes(out)
    assert len(before) == 4

    assert sweep(out, "--methods", "ewc", "joint", "--tries", "6") == 0
    printed = capsys.readouterr().out
    assert before.items() <= outcomes(out).items()  # nothing was made again
    content = json.loads((out / "chosen.json").read_text())
    for method, choice in content["methods"].items():
        candidates = choice["candidates"]
        assert candidates[:2] == first[method]["candidates"]
        assert choice["tries"] == len(candidates) <= 6
        assert len({str(one["settings"]) for one in candidates}) == len(candidates)
        best = min(candidates, key=lambda one: one["validation_error"])
        assert choice["settings"] == best["settings"]
        assert f"{choice['tries']} of 6" in printed
        for name, status in choice["statuses"].items():
            assert re.search(rf"{name}={choice['settings'][name]} +{status}", printed)
    assert content["methods"]["ewc"]["statuses"].keys() == start.keys()

    # what was chosen is kept with the runs, and compared
    kept = ["--study", "tuned", "--results", str(tmp_path / "kept")]
    assert main(["keep", str(out), *kept]) == 0
    path = study_path("tuned", tmp_path / "kept")
    assert read_study(path).chosen == content
    chosen = {name: one["settings"] for name, one in content["methods"].items()}
    for file in (path, out / "chosen.json"):
        assert read_choices(file, "split-digits") == chosen
    compare = ["compare", *QUICK, "--methods", "ewc", "joint", "--chosen", str(path)]
    assert main([*compare, "--out", str(tmp_path / "test"), "--json"]) == 0
    for config_file in (tmp_path / "test").glob("*/config.json"):
        config = json.loads(config_file.read_text())
        values = config["training"] | config["settings"]
        assert chosen[config["method"]].items() <= values.items()


@pytest.mark.usefixtures("_in_this_process")
def test_a_search_begins_where_a_cheaper_one_has_ended(tmp_path, capsys):
    chosen = {"threshold": [0.95, 0.99], "lr": 0.03, "later_lr_factor": 0.1, "weight_decay": 0.001}
    file = tmp_path / "cheap.json"
    methods = {"gpm": {"settings": chosen, "tries": 7}}
    file.write_text(json.dumps({"benchmark": "permuted-digits", "methods": methods}))
    begin = ["--start", str(file)]
    assert sweep(tmp_path / "a", "--methods", "gpm", "--tries", "2", *begin) == 0
    gpm = json.loads((tmp_path / "a" / "chosen.json").read_text())["methods"]["gpm"]
    assert gpm["candidates"][0]["settings"] == chosen
    assert gpm["candidates"][1]["settings"] == chosen | {"threshold": 0.99}
    assert (gpm["tries"], gpm["tries_before"]) == (2, 7)
    capsys.readouterr()
    for arguments, complaint in (
        (["--methods", "ewc", "gpm", "--tries", "2"], "has nothing for ewc"),
        (["--methods", "gpm"], "give it with --tries N"),
    ):
        assert sweep(tmp_path / "b", *arguments, *begin) == 2
        assert complaint in capsys.readouterr().err


@pytest.mark.usefixtures("_in_this_process")
def test_a_run_that_diverges_is_a_try_and_not_chosen(tmp_path, capsys):
    fixed = ["--training", "weight_decay=0", "--training", "later_lr_factor=1"]
    fixed += ["--set", "ewc_lambda=1e7"]  # diverges at lr=0.01 and above
    assert sweep(tmp_path, "--methods", "ewc", "--tries", "3", *fixed, "--json") == 0
    *runs, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [run["event"] for run in runs] == ["failed", "done", "done"]
    choice = end["methods"]["ewc"]
    assert choice["settings"]["lr"] < 0.01
    assert [one["validation_error"] is None for one in choice["candidates"]] == [True, False, False]
    assert choice["statuses"] == {"lr": "edge"}


@pytest.mark.usefixtures("_in_this_process")
def test_a_lost_try_says_nothing_about_its_settings(tmp_path, capsys, monkeypatch):
    """The data of the second try cannot be read; afterwards they can."""

    def build(seed, data):
        nonlocal tries
        tries += 1
        if tries == 2:
            raise RuntimeError("shape '[60000, 28, 28]' is invalid")
        return task.build(seed, data)

    tries, task = 0, TASKS["split-digits"]
    monkeypatch.setitem(TASKS, "split-digits", replace(task, build=build))
    assert sweep(tmp_path, "--methods", "naive", "--tries", "3") == 2
    complaint = capsys.readouterr().err
    assert "cannot be split (RuntimeError: shape" in complaint
    assert "nothing about the settings" in complaint
    assert not (tmp_path / "chosen.json").exists()
    assert len(outcomes(tmp_path)) == 1

    assert sweep(tmp_path, "--methods", "naive", "--tries", "3") == 0
    naive = json.loads((tmp_path / "chosen.json").read_text())["methods"]["naive"]
    assert [one["validation_error"] is None for one in naive["candidates"]] == [False] * 3


def test_what_the_command_line_sets_is_not_searched():
    settings = [Assignment("gpm", "threshold", 0.9)]
    training = [Assignment(None, "lr", 0.1)]
    request = Request("split-digits", ["gpm", "sgp"], settings=settings, training=training)
    plan = Plan(request)
    assert list(plan.coordinates("gpm")) == ["later_lr_factor", "weight_decay"]
    assert list(plan.coordinates("sgp")) == [
        "threshold", "alpha", "later_lr_factor", "weight_decay",
    ]  # fmt: skip


def test_a_grid_and_a_search_exclude_each_other(tmp_path, capsys):
    assert sweep(tmp_path, "--methods", "ewc", "--tries", "3", "--grid", "lr=1,2") == 2
    assert "drop one of them" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tries", ["0", "-1", "many"])
def test_a_number_of_tries_is_at_least_one(tmp_path, capsys, tries):
    with pytest.raises(SystemExit):
        sweep(tmp_path, "--methods", "ewc", "--tries", tries)
    assert "--tries" in capsys.readouterr().err


@pytest.mark.usefixtures("_in_this_process")
def test_a_hopeless_try_ends_early_and_is_not_chosen(tmp_path, capsys):
    fixed = ["--benchmark", "permuted-digits", "--training", "epochs=3"]
    fixed += ["--training", "experiences=4"]
    fixed += ["--training", "weight_decay=0", "--training", "later_lr_factor=1"]
    search = ["sweep", *fixed, "--methods", "naive", "--tries", "4", "--json"]

    def searched(*arguments):
        assert main([*search, "--out", str(tmp_path / "runs"), *arguments]) == 0
        *runs, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return runs, end["methods"]["naive"]

    runs, choice = searched("--give-up", "1")
    early = [run.get("ended_after") for run in runs]
    best = 100.0
    for run, ended_after in zip(runs, early, strict=True):
        if ended_after is None:
            best = min(best, run["average"])
        else:  # two experiences at least, and worse than the best that was finished before
            assert 2 <= ended_after < 4
            assert run["average"] > best
    assert choice["validation_error"] == best
    assert choice["give_up"] == 1
    assert early[0] is None
    assert any(early)
    marked = [one.get("ended_early", False) for one in choice["candidates"]]
    assert marked == [ended_after is not None for ended_after in early]

    # what ended early is good for the same limit, and no answer without one
    before = outcomes(tmp_path / "runs")
    assert searched("--give-up", "1")[1] == choice
    assert outcomes(tmp_path / "runs") == before
    runs, whole = searched()
    assert not any("ended_after" in run for run in runs)
    assert "give_up" not in whole
    changed = {path for path, time in outcomes(tmp_path / "runs").items() if before[path] != time}
    assert len(changed) == sum(marked)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--give-up", "1.5"], "give it with --tries N"),
        (["--give-up", "1.5", "--tries", "2", "--seeds", "1", "2"], "by one seed"),
    ],
)
def test_giving_up_is_for_a_search_with_one_seed(tmp_path, capsys, arguments, complaint):
    assert sweep(tmp_path, "--methods", "ewc", *arguments) == 2
    assert complaint in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("factor", ["0.5", "nan", "inf", "much"])
def test_a_factor_of_giving_up_is_at_least_one(tmp_path, capsys, factor):
    with pytest.raises(SystemExit):
        sweep(tmp_path, "--methods", "ewc", "--tries", "2", "--give-up", factor)
    assert "--give-up" in capsys.readouterr().err
