import json
import re
from pathlib import Path

import pandas as pd
import pytest

from avalanche_dco.errors import DCOError, SettingError
from benchmarks.__main__ import main
from benchmarks.commands import tables
from benchmarks.runs.records import checked_outcome, seal

REPOSITORY = Path(__file__).resolve().parent.parent.parent.parent


def test_all_tables_agree_with_the_results(capsys):
    """Fails when a table in README.md or docs/ was typed, or results have come since."""
    assert main(["tables", "--check"]) == 0, capsys.readouterr().out


def test_the_report_in_docs_agrees_with_the_results():
    """Fails when results have come or changed since `make report`."""
    reported = pd.read_csv(REPOSITORY / "docs" / "report" / "results.csv").set_index("folder")
    results = REPOSITORY / "benchmarks" / "results"
    makefile = (REPOSITORY / "Makefile").read_text()
    (folders,) = re.findall(r"^REPORTED := (.*)$", makefile, flags=re.MULTILINE)
    kept = {
        str(path.parent.relative_to(results)): json.loads(path.read_text())["average"]
        for name in folders.split()
        for path in (results / name).glob("*/outcome.json")
    }
    assert reported["average"].to_dict() == pytest.approx(kept)


@pytest.fixture
def results(tmp_path):
    for seed, average in ((1, 2.0), (2, 3.0)):
        folder = tmp_path / "b" / f"run{seed}"
        folder.mkdir(parents=True)
        config = {
            "benchmark": "b",
            "method": "dco",
            "seed": seed,
            "training": {"lr": 0.001, "weight_decay": 0.5},
            "settings": {"k": 5, "theta": 0.2, "couple_layers": True},
        }
        outcome = {"average": average, "fwi": 1.0, "bwt": 1.0, "memory_bytes": 2e6}
        (folder / "errors.csv").write_text("after_experience,experience,error_percent\n")
        (folder / "config.json").write_text(json.dumps(config))
        seal(folder, outcome | {"peak_megabytes": 10.0})
    return tmp_path


def test_seeds_of_one_setting_are_averaged(results):
    lines = tables.make_table(["errors", "b"], results).splitlines()
    assert len(lines) == 3
    assert lines[2] == (
        "| b | dco (k=5) | 0.001 | 0.5 | 2 | 2.50 ± 0.71 | 1.00 ± 0.00 | 1.00 ± 0.00 | 2.0 | 10 |"
    )


def test_runs_are_told_apart_by_the_settings_asked_for(results):
    assert tables.make_table(["settings", "b", "b", "theta"], results).splitlines() == [
        "| theta | seeds | average error % | FWI % | BWT % |",
        "| --- | --- | --- | --- | --- |",
        "| 0.2 | 2 | 2.50 ± 0.71 | 1.00 ± 0.00 | 1.00 ± 0.00 |",
    ]


def test_settings_of_several_folders_make_one_table(results):
    (results / "b" / "run2").rename(results / "elsewhere")
    (results / "c").mkdir()
    (results / "elsewhere").rename(results / "c" / "run2")
    lines = tables.make_table(["settings", "b,c", "b", "theta"], results).splitlines()
    assert lines[2:] == ["| 0.2 | 2 | 2.50 ± 0.71 | 1.00 ± 0.00 | 1.00 ± 0.00 |"]


def resettle(folder, **settings):
    """Give a run other settings; None takes one away."""
    outcome, path = checked_outcome(folder), folder / "config.json"
    config = json.loads(path.read_text())
    settings = config["settings"] | settings
    config["settings"] = {name: value for name, value in settings.items() if value is not None}
    path.write_text(json.dumps(config))
    seal(folder, outcome)


def test_runs_that_differ_in_a_setting_that_is_not_shown_are_not_averaged(results):
    resettle(results / "b" / "run2", rho=7.0)
    lines = tables.make_table(["errors", "b"], results).splitlines()
    assert [line.split(" | ")[4:6] for line in lines[2:]] == [["1", "2.00"], ["1", "3.00"]]


def test_a_setting_that_is_missing_in_an_older_run_does_not_part_seeds(results):
    resettle(results / "b" / "run1", couple_layers=None)
    (line,) = tables.make_table(["errors", "b"], results).splitlines()[2:]
    assert "| 2 | 2.50 ± 0.71 |" in line


def test_a_setting_that_came_later_has_its_default_in_older_runs(results):
    for folder in (results / "b").iterdir():
        resettle(folder, couple_layers=None)
    lines = tables.make_table(["settings", "b", "b", "couple_layers"], results).splitlines()
    assert lines[2].startswith("| True | 2 | 2.50")


def test_a_run_older_than_the_weighted_compression_had_the_paper_s_loss(results):
    for folder in (results / "b").iterdir():
        config = json.loads((folder / "config.json").read_text()) | {"method": "dco-comp"}
        outcome = checked_outcome(folder)
        (folder / "config.json").write_text(json.dumps(config))
        seal(folder, outcome)
    resettle(results / "b" / "run2", compression_loss="gradients")
    lines = tables.make_table(["errors", "b"], results).splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == [
        "dco-comp (k=5, compression_loss=directions)",
        "dco-comp (k=5)",
    ]


def test_methods_stand_beside_the_paper_best_first(results):
    settings = {
        "dco": {"theta": 2.0, "couple_layers": False, "dco_lambda": 100.0},
        "ewc": {"ewc_lambda": 7},
    }
    for method, average in (("dco", 9.0), ("ewc", 1.0)):
        folder = results / "b" / method
        folder.mkdir()
        config = {
            "benchmark": "split-mnist",
            "preset": "fast",
            "method": method,
            "training": {"lr": 0.01, "weight_decay": 0, "later_lr_factor": 1.0},
            "settings": settings[method],
        }
        outcome = {"average": average, "fwi": None, "bwt": 0.5, "memory_bytes": 0, "seconds": 90.0}
        (folder / "errors.csv").write_text("after_experience,experience,error_percent\n")
        (folder / "config.json").write_text(json.dumps(config))
        seal(folder, outcome | {"peak_megabytes": 10.0})
    lines = tables.make_table(["beside-paper", "split-mnist", "b"], results).splitlines()
    assert lines[2:] == [
        "| ewc | lr=0.01, wd=0, ewc_lambda=7 | fast | 1 | 1.00 | – | 0.50 | 2.70 | 1.5 | 0.0 |",
        "| dco | lr=0.01, wd=0, theta=2.0, couple_layers=False | fast "
        "| 1 | 9.00 | – | 0.50 | 1.46 | 1.5 | 0.0 |",
    ]
    with pytest.raises(DCOError, match="no runs of permuted-mnist"):
        tables.make_table(["beside-paper", "permuted-mnist", "b"], results)


@pytest.mark.parametrize("what", [["errors", "b"], ["settings", "b", "b", "theta"]])
@pytest.mark.parametrize(
    ("name", "was", "becomes"),
    [
        ("outcome.json", '"fwi"', ""),
        ("outcome.json", '"average": 2.0', '"average": 1.0'),
        ("config.json", '"k": 5', '"k": 6'),
    ],
)
def test_a_table_of_changed_runs_is_refused(results, what, name, was, becomes):
    path = results / "b" / "run1" / name
    path.write_text(path.read_text().replace(was, becomes))
    with pytest.raises(DCOError, match="run1: its files"):
        tables.make_table(what, results)


def test_a_cut_measurement_is_refused(tmp_path):
    (tmp_path / "core_speed").mkdir()
    (tmp_path / "core_speed" / "threads1.json").write_text('{"threads": ')
    with pytest.raises(DCOError, match=r"threads1\.json cannot be read"):
        tables.make_table(["core-speed"], tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fault,tried,lost,wrong\none,3,0,0\ntwo,4,0\n", "line 3 has not"),
        ("fault,tried,lost,wrong\none,3,0,\n", "line 2 has not"),
        ("fault,tried,lost,wrong\none,3,0,0,0\n", "line 2 has not"),
        ("fault,tried,lost,wrong\none,3,0,1", "its end is missing"),
        ("fault,tried,lost,wrong\n", "its end is missing"),
        ("", "its end is missing"),
    ],
)
def test_a_cut_line_of_measurements_is_refused(tmp_path, text, message):
    (tmp_path / "reliability").mkdir()
    (tmp_path / "reliability" / "faults.csv").write_text(text)
    with pytest.raises(DCOError, match=rf"faults\.csv is damaged: {message}"):
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
