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
from benchmarks.studies.faults.child import CRASHED, REFUSED, Child
from benchmarks.studies.faults.damage import DAMAGES
from benchmarks.studies.faults.interrupted_run import EXPERIENCES, Reference
from benchmarks.studies.faults.study import inject
from benchmarks.studies.faults.tally import Tally

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

    def test_a_checkpoint_that_is_gone(self, whole, tmp_path):
        tally = Tally("gone")
        assert tally.examine(whole[0], tmp_path, finished=2) == 0
        assert (tally.lost, tally.wrong) == (1, 0)

    def test_a_checkpoint_that_cannot_be_read(self, whole, tmp_path):
        (tmp_path / "run.ckpt").write_text("?")
        tally = Tally("unreadable")
        tally.examine(whole[0], tmp_path, finished=1)
        assert (tally.lost, tally.wrong) == (1, 1)

    def test_a_run_that_went_another_way(self, whole, tmp_path):
        reference, folder = whole
        shutil.copy(folder / "whole" / "run.ckpt", tmp_path)
        tally = Tally("another way")
        tally.examine(reference, tmp_path, EXPERIENCES)
        assert (tally.lost, tally.wrong) == (0, 0)
        other = Reference("DCO", reference.benchmark, ["?"] * (EXPERIENCES + 1))
        tally.examine(other, tmp_path, EXPERIENCES)
        assert (tally.lost, tally.wrong) == (0, 1)

    def test_a_changed_log_that_is_read(self, whole, monkeypatch):
        monkeypatch.setattr("avalanche_dco.logging.frames.verify_lines", lambda *args: None)
        tally = Tally("log")
        DAMAGES["bytes changed of a metrics log"](tally, *whole, 3, Random(2))
        assert (tally.tried, tally.lost) == (12, 0)
        assert tally.wrong > 3

    def test_a_changed_checkpoint_that_is_loaded(self, whole, monkeypatch):
        monkeypatch.setattr(
            "benchmarks.studies.faults.damage.maybe_load_checkpoint", lambda *args: args
        )
        tally = Tally("checkpoint")
        DAMAGES["end cut off of a checkpoint"](tally, *whole, 1, Random(2))
        assert (tally.tried, tally.wrong) == (4, 4)
        assert tally.notes[0] == "a damaged file was loaded in silence"

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
