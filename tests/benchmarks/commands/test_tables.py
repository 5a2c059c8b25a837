import lzma
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from avalanche_dco import DCOCompPlugin
from avalanche_dco.errors import DCOError, SettingError
from benchmarks.__main__ import main
from benchmarks.commands import tables
from benchmarks.report import error_tables
from benchmarks.runs.kept import (
    Study,
    read_study,
    study_path,
    write_measurements,
    write_study,
)
from benchmarks.runs.records import Run
from tests.support.run_folders import metrics_of

REPOSITORY = Path(__file__).resolve().parent.parent.parent.parent


def test_all_tables_agree_with_the_results(capsys):
    """Fails when a table in README.md or docs/ was typed, or results have come since."""
    assert main(["tables", "--check"]) == 0, capsys.readouterr().out


def test_the_studies_of_the_report_are_kept():
    makefile = (REPOSITORY / "Makefile").read_text()
    (studies,) = re.findall(r"^REPORTED := (.*)$", makefile, flags=re.MULTILINE)
    assert [name for name in studies.split() if not study_path(name).exists()] == []


def made_run(method, seed, average, settings, **config) -> Run:
    made = {
        "benchmark": "b", "protocol": "split-digits", "split": "test", "data": {},
        "method": method, "seed": seed, "preset": "paper",
        "training": {"lr": 0.001, "weight_decay": 0.5}, "settings": settings,
    }  # fmt: skip
    outcome = {
        "average": average, "fwi": average, "bwt": 0.0, "memory_bytes": 2e6, "peak_megabytes": 10.0,
        "seconds": 90.0,
    }  # fmt: skip
    return Run(f"{method}{seed}", made | config, outcome, metrics_of(np.array([[average]])))


@pytest.fixture
def results(tmp_path):
    keep(tmp_path, "b", {}, {})
    return tmp_path


def keep(results, name, *seeds, method="dco"):
    """A study of two seeds, with these changes to their settings; None takes one away."""
    runs = []
    for seed, (average, changes) in enumerate(zip((2.0, 3.0), seeds, strict=False), 1):
        settings = {"k": 5, "theta": 0.2, "couple_layers": True} | changes
        settings = {name: value for name, value in settings.items() if value is not None}
        runs.append(made_run(method, seed, average, settings))
    write_study(study_path(name, results), Study({run.name: run for run in runs}))


def test_seeds_of_one_setting_are_averaged(results):
    lines = tables.make_table(["errors", "b"], results).splitlines()
    assert lines[0] == "| method | average error % | FWI % | BWT % | memory (MB) |"
    assert lines[2] == "| dco | 2.50 ± 0.71 | 2.50 ± 0.71 | 0.00 ± 0.00 | 2.0 |"
    assert lines[4].startswith("Seeds: 2. Preset: paper. Changed or chosen: dco: ")
    assert "weight decay 0.5" in lines[4]
    assert "5 directions" in lines[4]


def test_runs_are_told_apart_by_the_settings_asked_for(results):
    assert tables.make_table(["settings", "b", "b", "theta"], results).splitlines() == [
        "| theta | seeds | average error % | FWI % | BWT % |",
        "| --- | --- | --- | --- | --- |",
        "| 0.2 | 2 | 2.50 ± 0.71 | 2.50 ± 0.71 | 0.00 ± 0.00 |",
    ]


def test_settings_of_several_studies_make_one_table(results):
    study = read_study(study_path("b", results))
    for name, run in zip("bc", study.runs.values(), strict=True):
        write_study(study_path(name, results), Study({run.name: run}))
    lines = tables.make_table(["settings", "b,c", "b", "theta"], results).splitlines()
    assert lines[2:] == ["| 0.2 | 2 | 2.50 ± 0.71 | 2.50 ± 0.71 | 0.00 ± 0.00 |"]


def test_a_grid_has_a_row_per_benchmark_and_a_column_per_value(results):
    (run,) = (r for r in read_study(study_path("b", results)).runs.values() if r.seed == 1)
    runs = {}
    for benchmark, theta, average in [
        *(("x", 1, 3.0), ("x", 2, 2.5), ("y", 1, 4.0), ("y", 2, 4.5)),
        ("one value", 1, 3.0),
    ]:
        for tau in (2, 3):
            config = run.config | {"benchmark": benchmark}
            config["settings"] = run.config["settings"] | {"theta": theta, "tau": tau}
            name = f"{benchmark}{theta}{tau}"
            outcome = run.outcome | {"average": average + tau}
            runs[name] = replace(run, name=name, config=config, outcome=outcome)
    write_study(study_path("c", results), Study(runs))
    assert tables.make_table(["grid", "c", "theta=1", "tau=2"], results).splitlines() == [
        "| benchmark | 1 | 2 | 1 behind the best |",
        "| --- | --- | --- | --- |",
        "| x | 5.00 | 4.50 | 0.50 |",
        "| y | 6.00 | 6.50 | 0.00 |",
    ]
    with pytest.raises(DCOError, match="runs of c with the same theta differ"):
        tables.make_table(["grid", "c", "theta=1"], results)


def test_runs_that_differ_in_a_setting_that_is_not_shown_are_not_averaged(results):
    keep(results, "b", {}, {"rho": 7.0})
    lines = tables.make_table(["errors", "b"], results).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:4]] == [
        ["| dco (rho 7)", "3.00"],
        ["| dco", "2.00"],
    ]
    with pytest.raises(DCOError, match=r"theta = 0\.2 differ in something else"):
        tables.make_table(["settings", "b", "b", "theta"], results)


def test_a_seed_that_is_there_twice_counts_once(results):
    write_study(study_path("c", results), read_study(study_path("b", results)))
    with pytest.raises(DCOError, match="the same run as"):
        tables.make_table(["errors", "b", "c"], results)


def test_a_setting_that_is_missing_in_an_older_run_does_not_part_seeds(results):
    keep(results, "b", {"couple_layers": None}, {})
    lines = tables.make_table(["errors", "b"], results).splitlines()[2:]
    assert "| 2.50 ± 0.71 |" in lines[0]
    assert lines[2].startswith("Seeds: 2.")


def test_a_setting_that_came_later_has_its_default_in_older_runs(results):
    keep(results, "b", {"couple_layers": None}, {"couple_layers": None})
    lines = tables.make_table(["settings", "b", "b", "couple_layers"], results).splitlines()
    assert lines[2].startswith("| True | 2 | 2.50")


def test_a_loss_that_is_not_the_default_is_shown(results):
    losses = ({"compression_loss": "directions"}, {"compression_loss": "gradients"})
    keep(results, "b", *losses, method="dco-comp")
    lines = tables.make_table(["errors", "b"], results).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:4]] == [
        "| dco-comp (the paper's compression loss)",
        "| dco-comp",
    ]


def test_errors_before_and_after_the_push(results):
    training = {"epochs": 10, "batch_size": 128, "lr": 1e-3, "weight_decay": 1e-3}
    runs = [
        made_run(
            "dco-comp", 1, 5.0, DCOCompPlugin.published("permuted-mnist") | changes,
            benchmark="permuted-mnist", protocol="permuted-mnist", training=training,
        )
        for changes in ({}, {"k": 100}, {"k": 100, "layer_weights": "equal"})
    ]  # fmt: skip
    for number, run in enumerate(runs):
        run.outcome.update({f"{name}_before_push": 1.0 + number for name in ("average", "fwi")})
    for name, kept in (("words", runs), ("sweep", runs[:2])):
        named = {str(number): replace(run, name=str(number)) for number, run in enumerate(kept)}
        write_study(study_path(name, results), Study(named))
    lines = tables.make_table(["before-push", "words", "permuted-mnist"], results).splitlines()
    assert lines[2:5] == [
        "| nothing | 1.00 | 1.00 | – | 5.00 | 4.84 |",
        "| 100 directions | 2.00 | 2.00 | – | 5.00 | 4.84 |",
        "| 100 directions, equal layer weights | 3.00 | 3.00 | – | 5.00 | 4.84 |",
    ]
    lines = tables.make_table(["before-push", "sweep", "permuted-mnist", "k"], results).splitlines()
    assert [line.split(" | ")[0] + line[-8:] for line in lines[2:4]] == [
        "| 100 10.81 |",
        "| 1000| 4.85 |",
    ]


def test_methods_stand_beside_the_paper_best_first(results):
    settings = {
        "dco": {"theta": 2.0, "couple_layers": False, "dco_lambda": 100.0},
        "ewc": {"ewc_lambda": 7},
    }
    training = {"lr": 0.01, "weight_decay": 0, "later_lr_factor": 1.0}
    runs = [
        made_run(
            method, 1, average, settings[method],
            benchmark="split-mnist", protocol="split-mnist", preset="fast", training=training,
        )
        for method, average in (("dco", 9.0), ("ewc", 1.0))
    ]  # fmt: skip
    for run in runs:
        run.outcome.update(fwi=math.nan, memory_bytes=0)
    write_study(study_path("b", results), Study({run.name: run for run in runs}))
    lines = tables.make_table(["beside-paper", "split-mnist", "b"], results).splitlines()
    assert lines[0] == "| method | average error % | FWI % | BWT % | paper % | memory (MB) |"
    assert lines[2:4] == [
        "| ewc | 1.00 | – | 0.00 | 2.70 | 0.0 |",
        "| dco | 9.00 | – | 0.00 | 1.46 | 0.0 |",
    ]
    assert lines[5].startswith("Seeds: 1. Preset: fast. Changed or chosen: all: learning rate 0.01")
    assert "; ewc: strength 7" in lines[5]
    assert "; dco: theta 2, " in lines[5]
    assert "uncoupled layers" in lines[5]
    with pytest.raises(DCOError, match="no runs of permuted-mnist"):
        tables.make_table(["beside-paper", "permuted-mnist", "b"], results)


def test_table_1_has_the_runs_nearest_to_the_preset(results):
    published = DCOCompPlugin.published("permuted-mnist")
    training = {"epochs": 10, "batch_size": 128, "lr": 1e-3, "weight_decay": 1e-3}
    place = {"benchmark": "permuted-mnist", "protocol": "permuted-mnist", "training": training}
    other = made_run("dco-comp", 1, 9.0, published | {"k": 100}, **place)
    nearest = [made_run("dco-comp", seed, 5.0 + seed, published, **place) for seed in (1, 2)]
    unprinted = made_run("lwf", 1, 3.0, {}, **place)
    write_study(study_path("b", results), Study({"0": replace(other, name="0")}))
    runs = {run.name: run for run in (*nearest, unprinted)}
    write_study(study_path("c", results), Study(runs))
    write_study(study_path("d", results), Study({nearest[0].name: nearest[0]}))  # there twice
    lines = tables.make_table(["table-1", "permuted-mnist", "b", "c", "d"], results).splitlines()
    assert lines[0] == "| method | paper % | near its settings % |"
    assert lines[2] == "| Naive | 17.41 | – |"
    assert lines[8:] == [
        "| DCO-COMP | 4.84 | 6.50 ± 0.71 |", "", "Near the paper's settings: seeds: 2.",
    ]  # fmt: skip


def test_capacity_tells_how_much_worse_than_naive_a_task_is_learned(results):
    runs = {}
    for method, error in (("dco", 4.0), ("naive", 1.0)):
        for data, share in (("permuted-digits", 0.2), ("permuted-digits-narrow", 0.8)):
            config = {"method": method, "seed": 1, "data": data}
            start = {"metric": "CapacityStart", "stream": "train", "trained": 2, "value": share}
            metrics = metrics_of(np.array([[1.0, 50.0], [1.0, error * (1 + share)]]))
            metrics = pd.concat([metrics, pd.DataFrame([start] if method == "dco" else [])])
            runs[method + data] = Run(method + data, config, {"seconds": 1.0}, metrics)
    write_study(study_path("capacity", results), Study(runs))
    assert tables.make_table(["capacity"], results).splitlines()[2:4] == [
        "| 0 to 0.5 | 1 | 3.6 | 3.6 | 3.6 |",
        "| 0.8 to 0.9 | 1 | 5.4 | 5.4 | 5.4 |",
    ]


@pytest.mark.parametrize("what", [["errors", "b"], ["settings", "b", "b", "theta"]])
@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b'"fwi"', b""),
        (b'"average": 2.0', b'"average": 1.0'),
        (b'"k": 5', b'"k": 6'),
        (b",0.02", b",0.01"),
        (b"\n1,", b"\n0,"),
    ],
)
def test_a_table_of_a_changed_study_is_refused(results, what, was, becomes):
    path = study_path("b", results)
    text = lzma.decompress(path.read_bytes())
    assert was in text
    path.write_bytes(lzma.compress(text.replace(was, becomes)))
    with pytest.raises(DCOError, match=r"b\.csv\.xz: .* Restore the file"):
        tables.make_table(what, results)


def test_no_table_is_too_wide_or_has_settings_strings():
    for page in tables.pages():
        for match in tables._TABLE.finditer(page.read_text()):
            table = match[0].splitlines()[1:]
            rows = [line for line in table if line.startswith("|")]
            assert all(row.count("|") <= error_tables.WIDEST + 1 for row in rows), page
            assert not any(re.search(r"\w=\S", row) for row in rows), page


@pytest.mark.parametrize("end", ["", "one,3,0,0\n", "one,3,0"])
def test_changed_measurements_are_refused(tmp_path, end):
    path = study_path("faults", tmp_path)
    frame = pd.DataFrame([{"fault": name, "tried": 3, "lost": 0, "wrong": 0} for name in "ab"])
    write_measurements(path, frame, {"command": "c"})
    assert "| **together** | **6** |" in tables.make_table(["faults"], tmp_path)
    lines = lzma.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    path.write_bytes(lzma.compress(("".join(lines[:3]) + end).encode()))
    with pytest.raises(DCOError, match=r"faults\.csv\.xz: .* measure again"):
        tables.make_table(["faults"], tmp_path)


def test_unknown_table_is_refused():
    with pytest.raises(SettingError, match="no table 'pie'"):
        tables.make_table(["pie"])


def test_typed_number_is_found_and_mended(tmp_path, monkeypatch, results, capsys):
    page = tmp_path / "README.md"
    (tmp_path / "docs").mkdir()
    page.write_text("Hello\n<!-- table: errors b -->\n| typed | 1 |\n<!-- end of table -->\nBye\n")
    monkeypatch.setattr(tables, "_REPOSITORY", tmp_path)
    monkeypatch.setattr(tables.make_table, "__defaults__", (results,))
    assert main(["tables", "--check"]) == 1
    assert "README.md: a table differs" in capsys.readouterr().out
    assert main(["tables"]) == 0
    assert "2.50 ± 0.71" in page.read_text()
    assert "typed" not in page.read_text()
    assert page.read_text().startswith("Hello\n")
    assert page.read_text().endswith("Bye\n")
    assert main(["tables", "--check"]) == 0
