from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.__main__ import main
from benchmarks.commands import tables
from tests.support.learning import QUICK


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for method in ("dco", "dco-comp"):
        arguments = ["--experiences", "2", "--k", str(QUICK["k"])]
        output = ["--output", str(folder / "reliability")]
        assert main(["long-stream", method, *arguments, *output]) == 0
    return folder


def test_every_experience_is_measured(results):
    rows = pd.read_csv(results / "reliability" / "long-stream-dco.csv")
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
    assert table.count("right") == 2
    path = results / "reliability" / "long-stream-dco.csv"
    text = path.read_text()
    path.write_text(text.replace(",88,88,", ",88,87,"))
    assert "WRONG" in tables.make_table(["long-stream"], results)
    path.write_text(text)
