import json

import pytest

from avalanche_dco.errors import SettingError
from benchmarks import tables
from benchmarks.__main__ import main


def test_all_tables_agree_with_the_results(capsys):
    """Fails when a table in README.md or docs/ was typed, or results have come since."""
    assert main(["tables", "--check"]) == 0, capsys.readouterr().out


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
            "settings": {"k": 5, "theta": 0.2},
        }
        outcome = {"average": average, "fwi": 1.0, "bwt": 1.0, "memory_bytes": 2e6}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "outcome.json").write_text(json.dumps(outcome | {"peak_megabytes": 10.0}))
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
