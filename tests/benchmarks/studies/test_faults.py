"""A few of the faults that ``make faults`` injects by the hundred, and whether it would notice."""

from __future__ import annotations

import shutil
import signal
import time
from random import Random

import pytest

from benchmarks.__main__ import main
from benchmarks.commands import tables
from benchmarks.runs.kept import read_measurements, study_path
from benchmarks.studies.faults import study as faults
from benchmarks.studies.faults.in_files import FILE_FAULTS
from benchmarks.studies.faults.run import EXPERIENCES, Reference
from benchmarks.studies.faults.study import inject
from benchmarks.studies.faults.trial import CRASHED, REFUSED, Child, Tally, Trial

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_nothing_is_lost_and_nothing_is_wrong():
    tallies = inject(1, seed=1, methods=["DCO-COMP"])
    assert [tally.notes for tally in tallies if tally.lost or tally.wrong] == []
    tried = {tally.fault: tally.tried for tally in tallies}
    assert tried.pop("small disk full", 1) == 1  # where one may mount
    assert len(tried) == 21
    assert sum(tried.values()) == 9 + 12 * 4


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_is_wrong_in_hundreds():
    tallies = inject(10, seed=int(time.time()), methods=["DCO", "DCO-COMP"])
    assert sum(tally.tried for tally in tallies) >= 500
    assert [tally.notes for tally in tallies if tally.lost or tally.wrong] == []


class TestItWouldNotice:
    @pytest.fixture(scope="class")
    def whole(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("runs")
        return Reference("DCO").make(folder / "whole"), folder

    @pytest.fixture
    def trial(self, whole):
        return Trial(Tally("some"), *whole, Random(2))

    def test_a_checkpoint_that_is_gone(self, trial, tmp_path):
        assert trial.examine(tmp_path, finished=2) == 0
        assert (trial.tally.lost, trial.tally.wrong) == (1, 0)

    def test_a_checkpoint_that_cannot_be_read(self, trial, tmp_path):
        (tmp_path / "run.ckpt").write_text("?")
        trial.examine(tmp_path, finished=1)
        assert (trial.tally.lost, trial.tally.wrong) == (1, 1)

    def test_a_run_that_went_another_way(self, trial, tmp_path):
        shutil.copy(trial.folder / "whole" / "run.ckpt", tmp_path)
        trial.examine(tmp_path, EXPERIENCES)
        assert (trial.tally.lost, trial.tally.wrong) == (0, 0)
        fingerprints = ["?"] * (EXPERIENCES + 1)
        trial.reference = Reference("DCO", trial.reference.benchmark, fingerprints)
        trial.examine(tmp_path, EXPERIENCES)
        assert (trial.tally.lost, trial.tally.wrong) == (0, 1)

    def test_a_process_that_ends_in_another_way_than_allowed(self, trial, tmp_path):
        trial.meet(tmp_path / "run", trial.runner(tmp_path / "run"), (REFUSED,))
        assert trial.tally.wrong == 1
        assert trial.tally.notes[0].startswith("ended with 0")

    def test_a_changed_log_that_is_read(self, trial, monkeypatch):
        monkeypatch.setattr("avalanche_dco.logging.frames.verify_lines", lambda *args: None)
        for _ in range(12):
            FILE_FAULTS["bytes changed of a metrics log"](trial)
        assert trial.tally.lost == 0
        assert trial.tally.wrong > 3

    def test_a_changed_checkpoint_that_is_loaded(self, trial, monkeypatch):
        monkeypatch.setattr(
            "benchmarks.studies.faults.in_files.maybe_load_checkpoint", lambda *args: args
        )
        FILE_FAULTS["end cut off of a checkpoint"](trial)
        assert trial.tally.notes == ["a damaged file was loaded in silence"]

    def test_how_a_process_ended(self):
        def crash(report):
            report("begun")
            raise ZeroDivisionError

        status, events = Child(crash).ended()
        assert status == CRASHED
        assert events[0] == "begun"
        assert "ZeroDivisionError" in events[1]
        child = Child(lambda report: time.sleep(60))
        child.kill()
        assert child.ended() == (-signal.SIGKILL, [])
        assert REFUSED not in (0, CRASHED)


def test_the_command_writes_the_table(tmp_path, monkeypatch, capsys):
    def few(times, seed, methods):
        return [Tally("one", 3), Tally("two", 4, 0, 1, ["it went wrong"])]

    monkeypatch.setattr(faults, "inject", few)
    assert main(["faults", "--out", str(study_path("faults", tmp_path))]) == 1
    captured = capsys.readouterr()
    assert "two: it went wrong" in captured.err
    assert captured.out.startswith("7 faults, 1 with something lost or wrong")
    frame, _ = read_measurements(study_path("faults", tmp_path))
    assert frame.columns.tolist() == ["fault", "tried", "lost", "wrong"]
    table = tables.make_table(["faults"], tmp_path)
    assert "| two | 4 | 0 | 1 |" in table
    assert "| **together** | **7** | **0** | **1** |" in table
