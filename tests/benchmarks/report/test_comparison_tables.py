"""The tables and figures of docs/comparison.md."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from avalanche_dco.errors import DCOError
from benchmarks.__main__ import main
from benchmarks.commands import tables
from benchmarks.commands.tables import make_table
from benchmarks.report.comparison_tables import PANELS, figures
from benchmarks.runs.kept import RESULTS, Study, read_study, study_path, write_study
from benchmarks.runs.records import Run, read_run
from docs.run_pages import ROOT
from tests.support.run_folders import TRAINING, write_run

CHOSEN: dict[str, dict[str, Any]] = {
    "naive": {"lr": 0.01, "weight_decay": 0.0},
    "ewc": {"ewc_lambda": 30.0, "lr": 0.01, "weight_decay": 0.001},
    "gpm": {"threshold": [0.95, 0.99], "lr": 0.01, "weight_decay": 0.0},
    "dco-kron": {"dco_lambda": 100.0, "lr": 0.01, "weight_decay": 0.0},
    "joint": {"lr": 0.03, "weight_decay": 0.0},
}
SECONDS = {"naive": 10.0, "ewc": 15.0, "gpm": 12.0, "dco-kron": 14.0, "joint": 20.0}
ERRORS = {
    "naive": {1: 8.0, 2: 12.0},
    "ewc": {1: 4.0, 2: 6.0},
    "dco-kron": {1: 1.0, 2: 3.0},
    "joint": {1: 0.4, 2: 0.8},
}
IMAGE = "![Average error against training time, by stream](figures/comparison.svg)"


def made(out: Path, method: str, seed: int, error: float, **config: Any) -> Run:
    """A run with the chosen settings; on average its tasks were learned to 3/4 of the error."""
    training = {name: CHOSEN[method][name] for name in ("lr", "weight_decay")}
    settings = {name: value for name, value in CHOSEN[method].items() if name not in training}
    config = {"training": TRAINING | training, "settings": settings} | config
    outcome = {"seconds": SECONDS[method] + seed - 1}
    return read_run(write_run(out, method, seed, error, outcome=outcome, **config))


def add_runs(results: Path, *runs: Run) -> None:
    path = study_path("comparison", results)
    study = read_study(path) if path.exists() else Study()
    study.add(runs)
    write_study(path, study)


def keep(
    results: Path,
    errors: Mapping[str, Mapping[int, float]],
    stream: str = "split-mnist",
    *,
    searches: Mapping[str, Mapping[str, Any]] | None = None,
    tried_with: Mapping[str, Any] | None = None,
) -> None:
    """Test runs of a stream, and the search before them.

    :param errors: by method and seed.
    :param searches: what differs in the record of the search, by method.
    :param tried_with: what differs in the training of its runs.
    """
    out = results / "runs"
    tests = [
        made(out, method, seed, error, benchmark=stream)
        for method, by_seed in errors.items()
        for seed, error in by_seed.items()
    ]
    add_runs(results, *tests)
    methods = {}
    tries = []
    for method in errors:
        record = {"settings": CHOSEN[method], "tries": 7, "tries_allowed": 9}
        record["statuses"] = dict.fromkeys(CHOSEN[method], "interior")
        methods[method] = record | dict((searches or {}).get(method, {}))
        trained = TRAINING | {"lr": 0.003} | dict(tried_with or {})
        place = {"benchmark": stream, "split": "validation", "training": trained}
        tries.append(made(out, method, 1, 5.0, **place))
    chosen = {"benchmark": stream, "seeds": [1], "methods": methods}
    path = study_path(f"comparison-tuning/{stream}", results)
    path.parent.mkdir(exist_ok=True)
    write_study(path, Study({run.name: run for run in tries}, chosen))


def rows(results: Path, *what: str) -> list[list[str]]:
    table = [line for line in make_table(list(what), results).splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in table if not line.startswith("| ---")]


def notes(results: Path) -> list[str]:
    lines = make_table(["comparison"], results).splitlines()
    return [line.removeprefix("- ") for line in lines if line.startswith("- ")]


def test_the_lowest_error_is_first_and_differences_are_paired_by_seed(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS)
    assert rows(tmp_path, "comparison") == [
        ["method", "average error %", "less DCO-KRON's", "FWI %", "BWT %", "time against Naive"],
        ["joint training (bound)", "0.60 ± 0.28", "-1.40 ± 1.13", "0.45", "0.15", "2.0"],
        ["**DCO-KRON**", "2.00 ± 1.41", "–", "1.50", "0.50", "1.4"],
        ["EWC", "5.00 ± 1.41", "+3.00 ± 0.00", "3.75", "1.25", "1.5"],
        ["Naive", "10.00 ± 2.83", "+8.00 ± 1.41", "7.50", "2.50", "1.0"],
    ]


def test_a_difference_counts_the_seeds_that_both_have(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS | {"ewc": {2: 6.0}})
    (ewc,) = (row for row in rows(tmp_path, "comparison") if row[0] == "EWC")
    assert ewc[1:3] == ["6.00", "+3.00"]  # the means differ by 4
    assert notes(tmp_path)[0] == "Seeds: 2; 1 for EWC."


def test_without_dco_kron_or_naive_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    keep(tmp_path, {"ewc": {1: 4.0}})
    assert rows(tmp_path, "comparison")[1] == [
        "EWC",
        "4.00",
        "–",
        "3.00",
        "1.00",
        "–",
    ]
    split_mnist = rows(tmp_path, "comparison-ranks")[1]
    assert split_mnist == ["Split MNIST", "EWC", "4.00", "–", "–"]


def test_notes_tell_tries_and_choices_in_words(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS | {"gpm": {1: 7.0, 2: 7.0}}, searches={"ewc": {"tries": 9}})
    assert notes(tmp_path) == [
        "Seeds: 2.",
        "Training, for each task: 2 epochs, batches of 8.",
        "Tries: at most 9 for each method, with seed 1. "
        "Used: 9 by EWC; 7 by joint training (bound), DCO-KRON, GPM, Naive.",
        "Chosen, unless named: learning rate 0.01, no weight decay. "
        "joint training (bound) (learning rate 0.03); DCO-KRON (strength 100); "
        "EWC (strength 30, weight decay 0.001); GPM (threshold 0.95 and 0.99).",
        "No chosen value is at the edge of what was tried.",
    ]


def test_notes_name_every_value_that_the_search_is_not_sure_of(tmp_path: Path) -> None:
    statuses = {
        "ewc": {"ewc_lambda": "edge", "lr": "edge", "weight_decay": "all tried"},
        "dco-kron": {"dco_lambda": "bracketed", "lr": "level", "weight_decay": "edge"},
        "joint": {"lr": "end", "weight_decay": "all tried"},
    }
    keep(tmp_path, ERRORS, searches={name: {"statuses": one} for name, one in statuses.items()})
    assert notes(tmp_path)[4:] == [
        "The tries ran out at the edge of what was tried: DCO-KRON (no weight decay); "
        "EWC (strength 30, learning rate 0.01).",
        "The tries ran out before all neighbours were tried: DCO-KRON (strength 100).",
        "The first or last value of a finite ladder was chosen: "
        "joint training (bound) (learning rate 0.03).",
    ]


def test_notes_tell_when_the_search_trained_otherwise(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS, tried_with={"epochs": 1, "experiences": 3})
    told = "The tries, unlike the runs of this table, have 1 epochs, first 3 tasks only."
    assert told in notes(tmp_path)


def test_notes_tell_of_a_search_before(tmp_path: Path) -> None:
    searches = {"ewc": {"tries_before": 9}, "naive": {"tries_before": 5}}
    keep(tmp_path, ERRORS, searches=searches)
    assert notes(tmp_path)[2].endswith(" They begin at what another search chose in 5 to 9 tries.")


def test_tries_that_ended_early_are_counted(tmp_path: Path) -> None:
    candidates = [{}, {"ended_early": True}, {}, {"ended_early": True}]
    searches = {m: {"give_up": 1.2, "candidates": candidates} for m in ("naive", "joint")}
    keep(tmp_path, {method: ERRORS[method] for method in searches}, searches=searches)
    assert notes(tmp_path)[2].endswith(
        " 4 of 8 tries ended early, with an average error so far of more than 1.2 times that of "
        "the method's best try."
    )


def test_notes_tell_the_precision_of_the_runs(tmp_path: Path) -> None:
    keep(tmp_path, {"ewc": {1: 4.0}})
    path = study_path("comparison", tmp_path)
    (run,) = read_study(path).runs.values()
    training = run.training | {"precision": "bfloat16"}
    changed = replace(run, config=run.config | {"training": training})
    write_study(path, Study({run.name: changed}))
    assert notes(tmp_path)[1].endswith("batches of 8, bfloat16.")


def test_the_papers_table_has_what_was_tuned_alike_beside_it(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS)
    table = rows(tmp_path, "table-1", "split-mnist")
    assert table[1] == ["Naive", "9.68", "–", "10.00 ± 2.83"]
    assert table[7:] == [
        ["DCO-COMP", "1.34", "–", "–"],
        ["DCO-KRON", "–", "–", "2.00 ± 1.41"],
        ["joint training (bound)", "–", "–", "0.60 ± 0.28"],
    ]


def test_published_settings_have_rows_of_their_own(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS)
    keep(tmp_path, ERRORS, "mnist-fashion")
    kept = [read_study(study_path(name)) for name in ("table-1", "mnist-fashion-paper")]
    runs = {name: run for study in kept for name, run in study.runs.items()}
    write_study(study_path("published", tmp_path), Study(runs))
    table = make_table(["comparison", "published"], tmp_path)
    split_mnist, mnist_fashion = table.split("### MNIST → Fashion")
    before = next(run.outcome for run in runs.values() if run.benchmark == "mnist-fashion")
    row = re.search(r"\| \*\*DCO \(published settings\)\*\* \|(.*)\|", split_mnist)
    assert row is not None
    error, *_, time = row[1].strip().split(" | ")
    assert (error, time) == ("1.21 ± 0.04", "–")  # it was timed in another study
    assert split_mnist.index("DCO (published") < split_mnist.index("**DCO-KRON**")
    note = "- Published settings are not tuned; their learning rate is 0.001."
    assert f"{note}\n" in split_mnist
    told = f"in %: DCO {before['average_before_push']:.2f}.\n"
    assert f"{note} Errors before the push of the last task, {told}" in mnist_fashion
    assert "published" not in make_table(["comparison-ranks"], tmp_path)


def headings(results: Path) -> list[str]:
    return re.findall("^### (.*)$", make_table(["comparison"], results), re.MULTILINE)


@pytest.mark.parametrize(
    "what", ["comparison", "comparison-ranks", "comparison-figure", "comparison-panels fwi-bwt"]
)
def test_without_runs_a_page_says_so(what: str, tmp_path: Path) -> None:
    assert make_table(what.split(), tmp_path) == "No stream is measured yet.\n"
    assert figures(tmp_path) == {}


def test_measured_streams_have_a_table_and_the_others_are_named(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS, "mnist-fashion")
    keep(tmp_path, ERRORS)
    assert headings(tmp_path) == ["Split MNIST", "MNIST → Fashion"]
    table = make_table(["comparison"], tmp_path)
    assert "\n\n### MNIST → Fashion\n\nTwo tasks, one head; 784-256-256-256-10.\n\n|" in table
    assert [row[0] for row in rows(tmp_path, "comparison")].count("EWC") == 2
    assert [row[0] for row in rows(tmp_path, "comparison-ranks")[1:]] == headings(tmp_path)
    assert make_table(["comparison-ranks"], tmp_path).endswith(
        "DCO-KRON is first on 2 of 2 measured streams. Not measured yet: Permuted MNIST, 5 tasks; "
        "Permuted MNIST, 10 tasks; Permuted MNIST, 20 tasks; Fashion → MNIST; Split CIFAR-10; "
        "CIFAR-100, noisy labels.\n"
    )


def test_a_stream_with_the_bound_alone_has_no_best_method(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS)
    keep(tmp_path, {"joint": ERRORS["joint"]}, "mnist-fashion")
    assert headings(tmp_path) == ["Split MNIST", "MNIST → Fashion"]
    assert [row[0] for row in rows(tmp_path, "comparison-ranks")[1:]] == ["Split MNIST"]


def test_streams_of_arrays_have_a_name_here(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS, "cifar-10")
    assert headings(tmp_path) == []
    run = made(tmp_path / "runs", "ewc", 1, 4.0, benchmark="split5-cifar10.npz-345496a3")
    add_runs(tmp_path, run)
    assert headings(tmp_path) == ["Split CIFAR-10"]
    assert rows(tmp_path, "comparison")[1][:2] == ["EWC", "4.00"]


def test_runs_with_settings_that_a_longer_search_has_replaced_do_not_count(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS)
    older = made(tmp_path / "runs", "ewc", 1, 99.0, settings={"ewc_lambda": 10.0})
    add_runs(tmp_path, older)
    before = rows(tmp_path, "comparison")
    assert ["EWC", "5.00 ± 1.41"] in [row[:2] for row in before]


@pytest.mark.parametrize("wrong", ["other settings", "no search"])
def test_runs_without_the_search_that_chose_them_are_refused(wrong: str, tmp_path: Path) -> None:
    keep(tmp_path, ERRORS, searches={"ewc": {"settings": CHOSEN["ewc"] | {"ewc_lambda": 10.0}}})
    if wrong == "no search":
        study_path("comparison-tuning/split-mnist", tmp_path).unlink()
    with pytest.raises(DCOError, match=r"with the settings that comparison-tuning/split-mnist"):
        make_table(["comparison"], tmp_path)


def test_ranks_count_the_streams_that_dco_kron_wins(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS)
    keep(tmp_path, ERRORS | {"gpm": {1: 0.8, 2: 2.9}}, "mnist-fashion")
    header, split_mnist, *_ = table = rows(tmp_path, "comparison-ranks")
    assert header[1:4] == ["best replay-free method", "its error %", "DCO-KRON's place"]
    assert split_mnist == ["Split MNIST", "DCO-KRON", "2.00 ± 1.41", "1 of 3", "-3.00 ± 0.00 (EWC)"]
    assert table[2] == ["MNIST → Fashion", "GPM", "1.85 ± 1.48", "2 of 4", "+0.15 ± 0.07 (GPM)"]
    note = "first on 1 of 2 measured streams, and at most 0.15 points from the first. Not measured"
    assert note in make_table(["comparison-ranks"], tmp_path)


def test_the_figure_has_a_panel_for_every_stream_with_runs(tmp_path: Path) -> None:
    keep(tmp_path, ERRORS)
    keep(tmp_path, ERRORS, "mnist-fashion")
    keep(tmp_path, ERRORS, "fashion-mnist")
    svg = figures(tmp_path)["comparison.svg"]
    titles = ["Split MNIST", "MNIST → Fashion", "Fashion → MNIST"]
    assert [title for title in titles if f">{title}</text>" in svg] == titles
    assert ">Permuted MNIST, 5 tasks</text>" not in svg
    assert re.findall(r">(Naive|EWC|GPM|DCO-KRON|joint training \(bound\))</text>", svg) == [
        "Naive", "EWC", "DCO-KRON", "joint training (bound)",
    ]  # fmt: skip
    assert "EWC 5.00 ± 1.41 +3.00 ± 0.00" in svg


def test_every_stream_has_panels_with_its_methods_in_one_order(tmp_path: Path) -> None:
    worse = {"naive": {1: 0.1}, "dco-kron": {1: 40.0}}
    for stream, errors in {"split-mnist": ERRORS, "mnist-fashion": ERRORS | worse}.items():
        keep(tmp_path, errors, stream)
    drawn = figures(tmp_path)
    assert len(drawn) == 1 + 2 * len(PANELS)
    for kind, panel in PANELS.items():
        block = make_table(["comparison-panels", kind], tmp_path)
        shown = re.findall(r"\*\*(.*)\*\*\n\n!\[(.*)\]\(figures/(.*)\)\n:::", block)
        assert [title for title, *_ in shown] == ["Split MNIST", "MNIST → Fashion"]
        for title, described, name in shown:
            assert described == f"{panel.title}, {title}"
            methods = re.findall(">(DCO-KRON|Naive|EWC|joint training)<", drawn[name])
            assert methods == ["DCO-KRON", "Naive", "EWC", "joint training"]
    with pytest.raises(DCOError, match=r"no panels 'pie'; there are average-error, fwi-bwt"):
        make_table(["comparison-panels", "pie"], tmp_path)


def test_tables_draws_all_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "README.md").touch()
    page = tmp_path / "docs" / "comparison.md"
    page.write_text("<!-- table: comparison-figure -->\n<!-- end of table -->\n")
    monkeypatch.setattr(tables, "_REPOSITORY", tmp_path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(make_table, "__defaults__", (tmp_path,))
    assert main(["tables"]) == 0
    assert "\nNo stream is measured yet.\n" in page.read_text()
    assert not list((tmp_path / "docs" / "figures").iterdir())
    keep(tmp_path, ERRORS)
    assert main(["tables"]) == 0
    assert f"\n{IMAGE}\n" in page.read_text()
    written = {one.name: one.read_text() for one in (tmp_path / "docs" / "figures").iterdir()}
    assert written == figures(tmp_path)


def test_the_figures_in_docs_agree_with_the_results() -> None:
    """Fails when results have come or changed since `python -m benchmarks tables`."""
    drawn = {one.name: one.read_text() for one in (ROOT / "docs" / "figures").glob("comparison*")}
    described = [
        {name: re.findall("<desc>.*</desc>", svg) for name, svg in one.items()}
        for one in (drawn, figures(RESULTS))
    ]
    assert described[0] == described[1]
