"""Runs that are killed, started twice or fail, in real processes."""

import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.runs import execution
from benchmarks.runs.execution import FolderCheckpoints, exclusively, execute
from benchmarks.runs.planning import Assignment
from benchmarks.runs.records import read_outcome
from benchmarks.runs.runners import ENDS, Event, in_processes, threads_per_job
from tests.support.benchmark_runs import quick_job, run_options, tiny_flags
from tests.support.run_folders import matrix_of

ROOT = Path(__file__).resolve().parent.parent.parent.parent


METHODS = ["naive", "a-gem", "dco"]
FLAGS = [*tiny_flags("dco"), "--training", "epochs=2", "--jobs", "2", "--json"]
COMPARE = ["compare", "--benchmark", "split-digits", "--methods", *METHODS, *FLAGS, "--out"]


def errors(out: Path) -> dict[str, list[list[float]]]:
    folders = sorted(path.parent for path in out.glob("*/outcome.json"))
    return {folder.name: matrix_of(folder).tolist() for folder in folders}


def test_a_killed_comparison_ends_with_the_numbers_of_an_undisturbed_one(
    tmp_path, monkeypatch, capsys
):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *COMPARE, str(killed)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not list(killed.glob("*/checkpoint.pt")):  # in the middle of a run
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait_until_nobody_holds(list(killed.glob("*/.lock")))  # its processes end with it
    finished = {path: path.stat().st_mtime_ns for path in killed.glob("*/outcome.json")}
    assert len(finished) < len(METHODS)
    assert main([*COMPARE, str(killed)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["done"] * 3 + ["end"]
    for method in METHODS:
        execute(quick_job(method, epochs=2), run_options(undisturbed), lambda *_: None)
    assert errors(killed) == errors(undisturbed)
    assert all(path.stat().st_mtime_ns == then for path, then in finished.items())
    left = {path.name for folder in killed.glob("split-*") for path in folder.iterdir()}
    assert left == {"config.json", "metrics.csv", "outcome.json"}
    assert (killed / "report" / "report.html").exists()


def _wait_until_nobody_holds(locks: list[Path]) -> None:
    assert locks
    for lock in locks:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)


class InterruptionError(Exception):
    pass


@pytest.mark.parametrize("method", ["ewc", "dco-comp"])
def test_an_interrupted_run_goes_on_from_its_last_experience(tmp_path, monkeypatch, method):
    whole, parts = run_options(tmp_path / "whole"), run_options(tmp_path / "parts")
    job = quick_job(method)
    shown = execute(job, whole, lambda *_: None)
    trained: list[float] = []

    def interrupt(done: float, total: int) -> None:
        if done == 3:
            raise InterruptionError

    monkeypatch.setattr(execution, "_now_and_then", lambda on_progress: on_progress)
    with pytest.raises(InterruptionError):
        execute(job, parts, interrupt)
    folder = parts.out / job.folder_name
    assert (folder / "checkpoint.pt").exists()
    assert read_outcome(folder) is None
    again = execute(job, parts, lambda done, total: trained.append(done))
    assert min(trained) == 2  # two had been finished and kept; the third was not yet
    assert errors(parts.out) == errors(whole.out)
    for name in ("average", "gradient_evaluations_by_experience", "memory_bytes"):
        assert again[name] == shown[name]
    assert not (folder / "checkpoint.pt").exists()


@pytest.mark.parametrize("damage", ["checkpoint", "cut config", "no config", "commit"])
def test_a_state_that_cannot_be_trusted_is_not_used(tmp_path, monkeypatch, damage):
    job, where = quick_job("naive"), run_options(tmp_path)
    folder = tmp_path / job.folder_name

    def interrupt(done: float, total: int) -> None:
        if done == 3:
            raise InterruptionError

    monkeypatch.setattr(execution, "_now_and_then", lambda on_progress: on_progress)
    with pytest.raises(InterruptionError):
        execute(job, where, interrupt)
    if damage == "checkpoint":
        content = (folder / "checkpoint.pt").read_bytes()
        (folder / "checkpoint.pt").write_bytes(content[: len(content) // 2])
    elif damage == "cut config":
        content = (folder / "config.json").read_bytes()
        (folder / "config.json").write_bytes(content[: len(content) // 2])
    elif damage == "no config":
        (folder / "config.json").write_text("[]")
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"git_commit": "another"}))
    trained: list[float] = []
    with pytest.warns(UserWarning, match="begins anew"):
        execute(job, where, lambda done, total: trained.append(done))
    assert min(trained) == 0
    assert read_outcome(folder) is not None


def test_a_resumed_run_keeps_its_number_of_threads(tmp_path, monkeypatch):
    job, where = quick_job("naive"), run_options(tmp_path)
    checkpoints = FolderCheckpoints(tmp_path / job.folder_name)
    assert execution._prepare(tmp_path / job.folder_name, job, where, checkpoints) == 1
    (tmp_path / job.folder_name / "checkpoint.pt").touch()
    more = execution.RunOptions(tmp_path, 2, where.made_by)
    assert execution._prepare(tmp_path / job.folder_name, job, more, checkpoints) == 1


def _hold(folder, held, release):
    with exclusively(folder, lambda: None):
        held.set()
        release.wait()


def test_a_second_process_waits_for_the_first_and_takes_its_result(tmp_path):
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    job, where = quick_job("naive"), run_options(tmp_path)
    first = context.Process(target=_hold, args=(tmp_path / job.folder_name, held, release))
    first.start()
    held.wait()
    waited: list[bool] = []

    def on_wait() -> None:
        waited.append(True)
        release.set()

    execute(job, where, lambda *_: None, on_wait)
    first.join()
    assert waited == [True]
    assert not (tmp_path / job.folder_name / ".lock").exists()


def test_a_lock_ends_with_its_process(tmp_path):
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, held, release))
    process.start()
    held.wait()
    process.kill()
    process.join()
    waited: list[bool] = []
    with exclusively(tmp_path, lambda: waited.append(True)):
        assert waited == []


def test_a_process_that_dies_takes_no_other_run_with_it(tmp_path):
    """One run diverges, one process is killed from outside, the third ends well."""
    diverges = quick_job("ewc", settings=[Assignment(None, "ewc_lambda", 1e9)])
    killed = quick_job("naive", epochs=100_000)
    fine = quick_job("naive")
    events: list[Event] = []
    for event in in_processes(2)([diverges, killed, fine], run_options(tmp_path)):
        events.append(event)
        if event.kind == "progress" and event.job == 1:
            os.kill(_holder(tmp_path / killed.folder_name / ".lock"), signal.SIGKILL)
    ends = {event.job: event for event in events if event.kind in ENDS}
    assert [ends[job].kind for job in range(3)] == ["failed", "lost", "done"]
    assert "lower the learning rate" in ends[0].content
    assert "exit code -9" in ends[1].content
    assert ends[2].content == read_outcome(tmp_path / fine.folder_name)


def _holder(lock: Path) -> int:
    """The process that holds a lock file open."""
    for child in multiprocessing.active_children():
        files = Path(f"/proc/{child.pid}/fd")
        if any(link.exists() and link.resolve() == lock for link in files.iterdir()):
            assert child.pid is not None
            return child.pid
    raise AssertionError("nobody holds it")


def test_threads_are_shared_out(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_per_job(jobs, cores=8) for jobs in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [threads_per_job(jobs, cores=8) for jobs in (1, 8)] == [2, 1]
