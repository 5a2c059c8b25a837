"""The same comparison by processes and by Ray, on a Ray of two workers on this machine."""

import json

import numpy as np
import pytest

pytest.importorskip("ray", reason="an extra: pip install '.[ray]'")

from benchmarks.__main__ import main
from benchmarks.runs.execution import execute
from tests.support.benchmark_runs import quick_job, run_options, tiny_flags
from tests.support.run_folders import matrix_of

METHODS = ["naive", "ewc", "dco"]


def test_ray_gives_the_same_numbers_and_loses_no_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = [*tiny_flags("dco"), "--training", "epochs=1", "--set", "ewc.ewc_lambda=1e9"]
    command = ["run", "--benchmark", "split-digits", "--methods", *METHODS, *settings]
    ray = ["--runner", "ray", "--jobs", "2", "--json", "--out", str(tmp_path / "ray")]
    assert main([*command, *ray]) == 1  # EWC diverges
    *runs, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted((run["method"], run["event"]) for run in runs) == [
        ("dco", "done"),
        ("ewc", "failed"),
        ("naive", "done"),
    ]
    assert (end["runs"], end["failed"]) == (3, 1)
    for method in ("naive", "dco"):
        job = quick_job(method)
        execute(job, run_options(tmp_path / "here"), lambda *_: None)
        by_ray, here = (tmp_path / place / job.folder_name for place in ("ray", "here"))
        np.testing.assert_array_equal(matrix_of(by_ray), matrix_of(here))
        assert json.loads((by_ray / "config.json").read_text())["threads"] == "1"
