"""`compare` and `sweep`: settings chosen on validation data, means over seeds, lines of JSON."""

import json
from dataclasses import replace

import pytest

from avalanche_dco.errors import SettingError
from benchmarks.__main__ import main
from benchmarks.commands import compare
from benchmarks.commands.summary import means
from benchmarks.presets import PRESETS, Preset
from benchmarks.runs.choices import read_choices
from benchmarks.runs.execution import execute
from benchmarks.runs.jobs import Job
from benchmarks.runs.planning import Assignment, Plan, Request
from benchmarks.runs.progress import Result, run_jobs
from benchmarks.runs.runners import Event
from benchmarks.runs.training import Training
from tests.support.benchmark_runs import _in_this_process, quick_job  # noqa: F401

QUICK = ["--benchmark", "split-digits", "--training", "epochs=1"]


@pytest.fixture
def _bare_preset(monkeypatch):
    """Split Digits as a benchmark for which nobody has chosen anything yet."""
    bare = Preset(PRESETS["paper"]["split-digits"].training)
    monkeypatch.setitem(PRESETS["paper"], "split-digits", bare)


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("_in_this_process", "_bare_preset")
def test_compare_tunes_what_is_open_on_validation_data_and_reports(tmp_path, capsys):
    grid = ["--grid", "ewc.ewc_lambda=1e9,10"]  # the first diverges
    command = ["compare", *QUICK, "--methods", "naive", "ewc", "--seeds", "2", "1", *grid]
    assert main([*command, "--out", str(tmp_path), "--json"]) == 0
    *runs, end = lines(capsys)
    tuning, rest = runs[:2], runs[2:]
    assert [run["split"] for run in runs] == ["validation"] * 2 + ["test"] * 4
    assert {run["seed"] for run in tuning} == {2}  # the first of the seeds
    assert tuning[0]["event"] == "failed"
    assert "lower the learning rate" in tuning[0]["error"]
    assert [(run["method"], run["seed"]) for run in rest] == [
        ("naive", 2), ("ewc", 2), ("naive", 1), ("ewc", 1),
    ]  # fmt: skip
    for run in rest:
        config = json.loads((tmp_path / run["folder"] / "config.json").read_text())
        assert config["settings"].get("ewc_lambda", 10) == 10
    assert (end["event"], end["runs"], end["failed"]) == ("end", 6, 0)
    averages = {run["method"]: [] for run in rest}
    for run in rest:
        averages[run["method"]].append(run["average"])
    for row in end["methods"]:
        assert row["average"]["mean"] == pytest.approx(sum(averages[row["method"]]) / 2)
    assert {path.rsplit("/", 1)[1] for path in end["report"]} == {
        "report.html", "report.md", "results.csv",
    }  # fmt: skip
    chosen = json.loads((tmp_path / "chosen.json").read_text())
    assert chosen["split"] == "validation"
    assert chosen["methods"]["ewc"]["settings"] == {"ewc_lambda": 10}

    # what was chosen can be handed over, and nothing is run again
    again = ["compare", *QUICK, "--methods", "naive", "ewc", "--seeds", "1"]
    out = ["--out", str(tmp_path), "--chosen", str(tmp_path / "chosen.json"), "--json"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/outcome.json")}
    assert main([*again, *out]) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/outcome.json")} == before


@pytest.mark.usefixtures("_in_this_process", "_bare_preset")
def test_sweep_prints_and_writes_what_it_chose(tmp_path, capsys):
    grid = ["--grid", "lr=1e-5,1e-1"]
    assert main(["sweep", *QUICK, "--methods", "naive", *grid, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "lr=0.1" in printed
    assert "chosen" in printed
    content = json.loads((tmp_path / "chosen.json").read_text())
    naive = content["methods"]["naive"]
    assert naive["settings"] == {"lr": 0.1}
    assert len(naive["candidates"]) == 2
    best = min(naive["candidates"], key=lambda one: one["validation_error"])
    assert best["settings"] == naive["settings"]
    assert read_choices(tmp_path / "chosen.json", "split-digits") == {"naive": {"lr": 0.1}}
    with pytest.raises(SettingError, match="was chosen on split-digits, not on split-mnist"):
        read_choices(tmp_path / "chosen.json", "split-mnist")
    with pytest.raises(SettingError, match="cannot be read"):
        read_choices(tmp_path / "none.json", "split-digits")


@pytest.mark.usefixtures("_in_this_process", "_bare_preset")
def test_a_sweep_of_nothing_is_refused(tmp_path, capsys):
    arguments = ["sweep", "--benchmark", "split-digits", "--methods", "cumulative"]
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert "cumulative has no grid; give --grid NAME=V1,V2" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_error_in_one_run_does_not_lose_the_others(tmp_path, capsys):
    flags = ["--set", "ewc.ewc_lambda=1e9", "--out", str(tmp_path)]
    command = ["compare", *QUICK, "--methods", "ewc", "naive", *flags]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert "naive" in captured.out
    assert "1 of 2 runs failed" in captured.err
    assert "lower the learning rate" in captured.err
    assert (tmp_path / "report" / "report.html").exists()


def test_tune_and_chosen_exclude_each_other(tmp_path, capsys):
    command = ["compare", *QUICK, "--methods", "ewc", "--tune", "--chosen", "x"]
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "drop one" in capsys.readouterr().err


def test_the_command_line_goes_before_the_chosen_and_these_before_the_preset():
    request = Request(
        "split-mnist", ["dco", "gpm"], chosen={"dco": {"k": 7, "theta": 3.0, "lr": 0.5}}
    )
    plan = object.__new__(Plan)
    plan.request, plan._preset = request, PRESETS["paper"]["split-mnist"]
    plan._hashes, plan.benchmark = {}, "split-mnist"
    job = plan.job("dco", 1)
    assert (job.settings["k"], job.settings["theta"], job.training.lr) == (7, 3.0, 0.5)
    assert job.settings["dco_lambda"] == 100.0
    plan.request = Request(
        "split-mnist", ["dco"], chosen=request.chosen, settings=[Assignment("dco", "k", 9)]
    )
    assert plan.job("dco", 1).settings["k"] == 9


def test_a_grid_makes_every_combination_for_the_methods_that_have_it():
    grids = [Assignment(None, "lr", [0.1, 0.2]), Assignment(None, "ewc_lambda", [1, 10, 100])]
    plan = Plan(Request("split-digits", ["ewc", "naive"], grids=grids))
    assert len(plan.combinations(plan.given_grid("ewc"))) == 6
    assert plan.combinations(plan.given_grid("naive")) == [{"lr": 0.1}, {"lr": 0.2}]


def test_grids_are_the_benchmark_s_before_the_method_s_own():
    plan = object.__new__(Plan)
    plan._preset = PRESETS["paper"]["split-mnist"]
    plan.request = Request("split-mnist", ["si", "mas"])
    assert plan.grid("si") == {"si_lambda": (1e3, 1e4, 1e5, 1e6)}
    assert plan.grid("mas") == {"lambda_reg": (0.001, 0.01, 0.1, 1)}
    assert plan.open_names("si") == ["si_lambda"]
    plan.request = Request("split-mnist", ["si"], settings=[Assignment(None, "si_lambda", 3)])
    assert plan.grid("si") == {}
    assert plan.open_names("si") == []


@pytest.mark.parametrize(
    ("benchmark", "methods"),
    [
        ("split-digits", ["naive", "ewc", "si", "rwalk", "gpm", "mas", "lwf", "a-gem", "joint"]),
        ("permuted-digits", ["naive", "ewc", "a-gem", "dco"]),
    ],
)
def test_the_digits_need_no_tuning(benchmark, methods):
    plan = Plan(Request(benchmark, methods))
    assert [plan.open_names(method) for method in methods] == [[]] * len(methods)


def test_paired_means():
    def result(method, seed, average):
        shown = {"average": average, "fwi": 1.0, "bwt": 0.0, "seconds": 1.0, "memory_bytes": 4,
                 "peak_megabytes": 5.0, "gradient_evaluations": 6}  # fmt: skip
        return Result(Job("b", "b", method, seed, "paper", Training(1, 1, 1.0, 0.0), {}), shown)

    failed = Result(result("ewc", 3, 0).job, failure="lost")
    rows = means([result("ewc", 1, 5.0), result("ewc", 2, 9.0), failed,
                  result("dco", 1, 1.0), result("dco", 2, 3.0), result("dco", 3, 2.0)])  # fmt: skip
    ewc, dco = rows
    assert ewc["seeds"] == [1, 2]
    assert ewc["average"]["mean"] == 7.0
    assert ewc["average"]["deviation"] == pytest.approx(8**0.5)
    assert ewc["average_minus_dco"] == {"mean": 5.0, "deviation": pytest.approx(2**0.5)}
    assert dco["average"] == {"mean": 2.0, "deviation": 1.0}
    assert "average_minus_dco" not in dco


def test_bars_and_lines_follow_the_runs(capsys):
    training = Training(1, 1, 1.0, 0.0)
    jobs = [Job("b", "b", method, 1, "paper", training, {}) for method in ("naive", "dco")]

    def runner(jobs, options):
        yield Event(0, "started")
        yield Event(0, "progress", (1, 2))
        yield Event(0, "note", "something odd")
        yield Event(1, "failed", "Traceback\nValueError: no")  # lost before it began
        yield Event(0, "done", {"average": 1.25, "seconds": 3.0})

    done, failed = run_jobs(jobs, runner, None)
    assert done.summary["average"] == 1.25
    assert failed.failure.endswith("no")
    lines = capsys.readouterr().err
    assert "b: naive, seed 1: something odd" in lines
    assert "[1/2] b: dco, seed 1 FAILED: ValueError: no" in lines
    assert "[2/2] b: naive, seed 1: error 1.25 %, 3 s of training" in lines


def test_validation_runs_are_not_evaluated_on_test_data(tmp_path, monkeypatch):
    """The test data are replaced by something on which every prediction is wrong."""
    from benchmarks.streams.catalogue import TASKS  # noqa: PLC0415
    from benchmarks.streams.tensors import tensor_benchmark, tensor_dataset  # noqa: PLC0415
    from tests.support.benchmark_runs import run_options  # noqa: PLC0415

    def poisoned(seed, data):
        stream = task.build(seed, data)
        test = [tensor_dataset(*_flipped(e.dataset), e.task_labels[0]) for e in stream.test_stream]
        return tensor_benchmark([e.dataset for e in stream.train_stream], test)

    def _flipped(dataset):
        from avalanche.training.utils import load_all_dataset  # noqa: PLC0415

        x, y, _ = load_all_dataset(dataset)
        return x, y ^ 1

    task = TASKS["split-digits"]
    job = quick_job("naive", epochs=3, split="validation")
    clean = execute(job, run_options(tmp_path / "clean"), lambda *_: None)
    monkeypatch.setitem(TASKS, "split-digits", replace(task, build=poisoned))
    again = execute(job, run_options(tmp_path / "poisoned"), lambda *_: None)
    assert again["average"] == clean["average"]
    tested = quick_job("naive", epochs=3)
    wrong = execute(tested, run_options(tmp_path / "poisoned"), lambda *_: None)
    assert wrong["fwi"] > 50 > clean["fwi"]


def test_compare_says_how_it_is_used():
    assert "--chosen" in compare.__doc__
    assert "never on test data" in compare.__doc__
