from __future__ import annotations

import pytest

from benchmarks.__main__ import main
from benchmarks.commands import tables
from benchmarks.runs.kept import read_measurements, study_path, write_measurements
from tests.support.learning import QUICK


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for method in ("dco", "dco-comp"):
        arguments = ["--experiences", "2", "--k", str(QUICK["k"])]
        output = ["--out", str(study_path("long-stream", folder))]
        assert main(["long-stream", method, *arguments, *output]) == 0
    return folder


def test_every_experience_is_measured(results):
    rows, config = read_measurements(study_path("long-stream", results))
    assert sorted(config) == ["dco", "dco-comp"]
    rows = rows[rows["method"] == "dco"]
    assert rows["experiences"].tolist() == [1, 2]
    one, two = (row for _, row in rows.iterrows())
    assert two["plugin_bytes"] == 2 * one["plugin_bytes"]
    assert two["steps_counted"] == two["steps_made"] == 2 * one["steps_made"]
    assert one["step_ms"] > 0
    assert one["process_bytes"] > 10**7


def test_the_table_shows_both_methods_and_wrong_counters(results):
    table = tables.make_table(["long-stream"], results)
    assert "| DCO-COMP | 2 |" in table
    assert "| DCO | 2 |" in table
    assert "Counters: all right." in table
    path = study_path("long-stream", results)
    frame, config = read_measurements(path)
    frame.loc[(frame["method"] == "dco") & (frame["experiences"] == 2), "steps_counted"] += 1
    write_measurements(path, frame, config)
    assert "Counters: WRONG for DCO after 2." in tables.make_table(["long-stream"], results)
