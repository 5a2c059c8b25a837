from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import dill
import pytest
import torch
from avalanche.logging import CSVLogger, TextLogger
from avalanche.models import IncrementalClassifier, SimpleMLP
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Cumulative
from torch import nn

from avalanche_dco import maybe_load_checkpoint, save_checkpoint
from avalanche_dco.errors import CheckpointError
from avalanche_dco.persistence import files
from tests.support.checkpointed import (
    PLUGINS,
    fingerprint,
    finish,
    make_strategy,
    run,
    short_digits,
)
from tests.support.learning import naive, small_mlp, split_blobs, weights_of

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def digits():
    return short_digits()


@pytest.mark.filterwarnings("ignore:.*Plugin does not protect", "ignore:k=6 is less")
class TestBitForBit:
    @pytest.mark.parametrize("method", PLUGINS)
    def test_a_continued_run_equals_an_uninterrupted_one(self, method, digits, tmp_path):
        whole = make_strategy(method)
        finish(whole, digits, 0, 4)
        expected = fingerprint(whole)

        interrupted = make_strategy(method)
        finish(interrupted, digits, 0, 2)
        save_checkpoint(interrupted, tmp_path / "run.ckpt")
        interrupted.train(digits.train_stream[2])  # lost

        continued, first = maybe_load_checkpoint(
            make_strategy(method, seed=77), tmp_path / "run.ckpt"
        )
        assert first == 2
        finish(continued, digits, first, 4)
        assert fingerprint(continued) == expected

    def test_so_does_one_continued_in_a_new_process(self, tmp_path):
        """And one that is started there anew: "dco-logits" has no checkpoint to go on from."""
        expected = {method: run(method, tmp_path / "whole", 2) for method in PLUGINS}
        for method in PLUGINS:
            if method != "dco-logits":
                run(method, tmp_path, 1)
        program = [sys.executable, "-m", "tests.support.checkpointed", str(tmp_path), "2", *PLUGINS]
        done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=True)
        printed = [line.split() for line in done.stdout.splitlines()]
        assert {line[0]: line[1] for line in printed if line[0] in PLUGINS} == expected

    def test_a_growing_head_with_momentum(self, tmp_path):
        class Growing(nn.Module):  # defined in a function: has no name to be imported by
            def __init__(self):
                super().__init__()
                self.features = nn.Linear(6, 8)
                self.head = IncrementalClassifier(8, 1)

            def forward(self, x):
                return self.head(self.features(x).relu())

        benchmark = split_blobs(3)
        path = tmp_path / "run.ckpt"

        def strategy():
            torch.manual_seed(2)
            return naive(Growing(), [PLUGINS["dco"]()])

        whole = strategy()
        for experience in benchmark.train_stream:
            whole.train(experience)
        cut = strategy()
        for experience in benchmark.train_stream[:2]:
            cut.train(experience)
        save_checkpoint(cut, path)
        continued, first = maybe_load_checkpoint(strategy(), path)
        continued.train(benchmark.train_stream[first])
        assert torch.equal(weights_of(continued.model), weights_of(whole.model))

    def test_a_strategy_that_keeps_data(self, digits, tmp_path):
        def strategy():
            torch.manual_seed(3)
            model = nn.Linear(64, 10)
            return Cumulative(
                model=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                criterion=nn.CrossEntropyLoss(),
                train_mb_size=32,
                evaluator=EvaluationPlugin(loggers=[]),
            )

        whole, cut = strategy(), strategy()
        torch.manual_seed(4)
        finish(whole, digits, 0, 3)
        torch.manual_seed(4)
        finish(cut, digits, 0, 1, tmp_path / "run.ckpt")
        continued, first = maybe_load_checkpoint(strategy(), tmp_path / "run.ckpt")
        finish(continued, digits, first, 3)
        assert fingerprint(continued) == fingerprint(whole)


def test_without_a_file_training_starts_with_the_first_experience(tmp_path):
    strategy = make_strategy("ewc")
    assert maybe_load_checkpoint(strategy, tmp_path / "none") == (strategy, 0)
    assert maybe_load_checkpoint(strategy, str(tmp_path / "none")) == (strategy, 0)


def test_dill_is_left_as_it_is(digits, tmp_path, capsys):
    settings, pickler = dict(dill.settings), dill.Pickler
    finish(make_strategy("ewc"), digits, 0, 1, tmp_path / "run.ckpt")
    maybe_load_checkpoint(make_strategy("ewc"), tmp_path / "run.ckpt", map_location="cpu")
    assert dill.settings == settings
    assert dill.Pickler is pickler
    assert capsys.readouterr().out == ""


def test_the_data_of_the_stream_stay_out_of_the_file(digits, tmp_path):
    strategy = make_strategy("ewc")
    finish(strategy, digits, 0, 1, tmp_path / "run.ckpt")
    data = sum(sample[0].nbytes for sample in digits.train_stream[0].dataset)
    weights = sum(tensor.nbytes for tensor in strategy.model.state_dict().values())
    assert (tmp_path / "run.ckpt").stat().st_size < 8 * weights + data


def test_csv_and_text_logs_are_continued(digits, tmp_path):
    def strategy():
        torch.manual_seed(1)
        return naive(
            nn.Linear(64, 10),
            evaluator=EvaluationPlugin(
                loggers=[
                    CSVLogger(str(tmp_path / "csv")),
                    TextLogger(open(tmp_path / "log.txt", "a")),
                ]
            ),
        )

    first = strategy()
    finish(first, digits, 0, 1, tmp_path / "run.ckpt")
    file = tmp_path / "csv" / "training_results.csv"
    finished = file.read_text()
    first.train(digits.train_stream[1])
    assert len(file.read_text()) > len(finished)
    again, next_experience = maybe_load_checkpoint(strategy(), tmp_path / "run.ckpt")
    assert file.read_text() == finished
    finish(again, digits, next_experience, 2)
    lines = file.read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["training_exp", "0", "0", "1", "1"]
    again.evaluator.loggers[1].file.flush()
    assert (tmp_path / "log.txt").read_text().count("Resuming from checkpoint") == 1


class TestRefusals:
    @pytest.fixture
    def saved(self, digits, tmp_path):
        finish(make_strategy("ewc"), digits, 0, 1, tmp_path / "run.ckpt")
        return tmp_path / "run.ckpt"

    def test_in_the_middle_of_an_experience(self, digits, tmp_path):
        strategy = make_strategy("ewc")
        strategy.experience = digits.train_stream[0]
        with pytest.raises(CheckpointError, match="in the middle of an experience"):
            save_checkpoint(strategy, tmp_path / "run.ckpt")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("other", "reason"),
        [
            (lambda: make_strategy("mas"), r"was \[EWCPlugin.* and is \[MASPlugin"),
            (
                lambda: Cumulative(
                    model=(model := small_mlp()),
                    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                    criterion=nn.CrossEntropyLoss(),
                ),
                "the strategy was Naive and is Cumulative",
            ),
            (lambda: naive(nn.Linear(64, 10)), "its model was Sequential and is Linear"),
            (
                lambda: naive(small_mlp(), [PLUGINS["ewc"]()]),
                r"parameter '0.weight' has shape \[8, 6\] in this model and has shape \[16, 64\]",
            ),
            (
                lambda: naive(nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), [PLUGINS["ewc"]()]),
                r"parameter '1.weight' has shape \[4, 4\] in this model and has shape \[16\] in",
            ),
            (
                lambda: naive(nn.Sequential(*[nn.PReLU()] * 6), [PLUGINS["ewc"]()]),
                "in the file",
            ),
        ],
    )
    def test_another_run(self, saved, other, reason):
        strategy = other()
        before, random = dict(vars(strategy)), torch.get_rng_state()
        with pytest.raises(CheckpointError, match=reason):
            maybe_load_checkpoint(strategy, saved)
        assert vars(strategy) == before
        assert torch.equal(torch.get_rng_state(), random)

    @pytest.mark.parametrize(("saved", "built"), [(2, 1), (1, 2)])
    def test_a_deeper_or_shallower_model(self, saved, built, tmp_path):
        path = tmp_path / "run.ckpt"
        save_checkpoint(naive(SimpleMLP(hidden_layers=saved)), path)
        with pytest.raises(CheckpointError, match=r"'features\.3\..* is missing in th(is|e)"):
            maybe_load_checkpoint(naive(SimpleMLP(hidden_layers=built)), path)

    @pytest.mark.parametrize(
        ("map_location", "reason"),
        [
            ("cuda:77", "'cuda:77' names no device of this machine .*use map_location='cpu'"),
            ("grammophone", "'grammophone' names no device"),
            ({"cuda:0": "cuda:77"}, "'cuda:77' names no device"),
            ({"cpu": "meta"}, "random generators have to stay there.*write map_location='meta'"),
        ],
    )
    def test_a_device_that_is_not_there(self, saved, map_location, reason):
        strategy = make_strategy("ewc")
        before, random = dict(vars(strategy)), torch.get_rng_state()
        with pytest.raises(CheckpointError, match=reason):
            maybe_load_checkpoint(strategy, saved, map_location)
        assert vars(strategy) == before
        assert torch.equal(torch.get_rng_state(), random)

    def test_devices_by_name_are_taken(self, saved):
        strategy, first = maybe_load_checkpoint(make_strategy("ewc"), saved, {"cuda:0": "cpu"})
        assert (first, strategy.device) == (1, torch.device("cpu"))

    def test_a_folder_that_may_not_be_entered(self, tmp_path):
        strategy, path = make_strategy("ewc"), tmp_path / "locked" / "run.ckpt"
        path.parent.mkdir()
        path.parent.chmod(0)
        user = os.geteuid()
        try:
            if user == 0:  # root may enter anything
                os.seteuid(65534)
            with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
                maybe_load_checkpoint(strategy, path)
            with pytest.raises(CheckpointError, match=r"cannot be written: Perm.* is still whole"):
                files.write_sealed(path, {}, b"")
        finally:
            os.seteuid(user)
            path.parent.chmod(0o755)

    def test_something_that_cannot_be_saved(self, digits, saved):
        before = saved.read_bytes()
        strategy = make_strategy("ewc")
        strategy.plugins[0].iterator = (i for i in range(3))
        with pytest.raises(CheckpointError, match=r"cannot be saved.*generator"):
            save_checkpoint(strategy, saved)
        assert saved.read_bytes() == before
        assert [file.name for file in saved.parent.iterdir()] == ["run.ckpt"]

    def test_a_class_that_is_gone(self, digits, saved, monkeypatch):
        monkeypatch.delattr("avalanche_dco.baselines.ewc.EWCPlugin")
        with pytest.raises(CheckpointError, match=r"cannot be rebuilt: Attr.*written with"):
            maybe_load_checkpoint(make_strategy("mas"), saved)

    def test_a_checkpoint_of_avalanche_or_any_other_file(self, saved):
        saved.write_bytes(b"PK\x03\x04 and so on")
        with pytest.raises(CheckpointError, match="not a checkpoint of avalanche_dco"):
            maybe_load_checkpoint(make_strategy("ewc"), saved)

    def test_another_format(self, saved, monkeypatch):
        monkeypatch.setattr(files, "FORMAT", 3)
        with pytest.raises(CheckpointError, match=r"has the file format '2'.* reads 3"):
            maybe_load_checkpoint(make_strategy("ewc"), saved)

    def test_an_empty_file_and_a_folder(self, saved, tmp_path):
        saved.write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"run.ckpt is empty; .*start from the first"):
            maybe_load_checkpoint(make_strategy("ewc"), saved)
        with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
            maybe_load_checkpoint(make_strategy("ewc"), tmp_path)


class TestWriting:
    def test_left_over_parts_are_cleared_away_and_nothing_else(self, digits, tmp_path):
        others = ("other.ckpt.0123abcd.part", "run.ckpt.5.0123abcd.part", "run.ckpt.note")
        for name in ("run.ckpt.0123abcd.part", *others):
            (tmp_path / name).write_text("")
        finish(make_strategy("ewc"), digits, 0, 1, tmp_path / "run.ckpt")
        assert {path.name for path in tmp_path.iterdir()} == {"run.ckpt", *others}

    def test_two_processes_on_one_path_get_an_error_and_the_file_is_whole(
        self, tmp_path, monkeypatch
    ):
        path, replace = tmp_path / "run.ckpt", os.replace

        def be_overtaken(part, target):
            monkeypatch.setattr(os, "replace", replace)
            files.write_sealed(path, {}, b"two")
            replace(part, target)

        monkeypatch.setattr(os, "replace", be_overtaken)
        with pytest.raises(CheckpointError, match="another process seems to save to the same"):
            files.write_sealed(path, {}, b"one")
        assert files.read_sealed(path)[1] == b"two"

    def test_a_path_below_a_file(self, digits, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match="cannot be written: Not a directory"):
            save_checkpoint(make_strategy("ewc"), tmp_path / "file" / "run.ckpt")

    def test_a_full_disk_leaves_the_previous_file(self, tmp_path, monkeypatch):
        def fail(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        path = tmp_path / "run.ckpt"
        path.write_text("before")
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(CheckpointError, match=r"No space left on device.* is still whole"):
            save_checkpoint(make_strategy("ewc"), path)
        assert path.read_text() == "before"
        assert [file.name for file in tmp_path.iterdir()] == ["run.ckpt"]
