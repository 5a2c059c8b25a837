"""A run's folder that is moved, its logs, and starts that came to nothing."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.logging import CSVLogger, TensorboardLogger, TextLogger
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_dco import maybe_load_checkpoint, save_checkpoint
from avalanche_dco.errors import CheckpointError, LogError
from avalanche_dco.logging import PandasLogger, read_log
from tests.support.learning import naive, split_blobs

COMPARED = ["row", "name", "value", "x", "trained"]


def strategy_in(folder: Path, *, loggers: bool = True) -> Any:
    """A strategy with every logger that writes to files."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(1)
    writing = [
        PandasLogger(folder / "run.csv"),
        CSVLogger(str(folder / "csv")),
        TextLogger((folder / "log.txt").open("a")),
        TensorboardLogger(str(folder / "tensorboard")),
    ]
    metrics = [accuracy_metrics(epoch=True, experience=True), loss_metrics(epoch=True)]
    evaluator = EvaluationPlugin(*metrics, loggers=writing if loggers else [])
    return naive(nn.Linear(6, 6), evaluator=evaluator)


def go_on(folder: Path, stop: int) -> Any:
    benchmark = split_blobs(3)
    strategy, first = maybe_load_checkpoint(strategy_in(folder), folder / "run.ckpt")
    for experience in benchmark.train_stream[first:stop]:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)
        save_checkpoint(strategy, folder / "run.ckpt")
    for logger in strategy.evaluator.loggers:
        getattr(logger, "file", None) and logger.file.flush()
    return strategy


def test_a_moved_run_logs_where_it_is_now(tmp_path: Path) -> None:
    a, b, whole = tmp_path / "a", tmp_path / "b", tmp_path / "whole"
    go_on(whole, 3)
    go_on(a, 2)
    a.rename(b)
    strategy = go_on(b, 3)
    assert not a.exists()
    assert read_log(b / "run.csv")[COMPARED].equals(read_log(whole / "run.csv")[COMPARED])
    assert strategy.evaluator.loggers[0].to_frame().equals(read_log(b / "run.csv"))
    for name in ("training_results.csv", "eval_results.csv"):
        assert (b / "csv" / name).read_text() == (whole / "csv" / name).read_text()
    text = (b / "log.txt").read_text()
    assert text.count("Resuming from checkpoint") == 1
    assert text.count("Start of training phase") == 3
    assert strategy.evaluator.loggers[3].writer.log_dir == b / "tensorboard"


def test_the_checkpoint_alone_may_be_moved_with_a_warning(tmp_path: Path) -> None:
    go_on(tmp_path / "a", 1)
    (tmp_path / "b").mkdir()
    shutil.move(tmp_path / "a" / "run.ckpt", tmp_path / "b")
    before = (tmp_path / "a" / "run.csv").read_bytes()
    values = len(read_log(tmp_path / "a" / "run.csv"))
    with pytest.warns(UserWarning, match=rf"b/run.csv has 0 values, and .*a/run.csv, had {values}"):
        go_on(tmp_path / "b", 2)
    assert (tmp_path / "a" / "run.csv").read_bytes() == before
    assert read_log(tmp_path / "b" / "run.csv")["row"].iloc[0] == values


def test_a_file_that_no_logger_has_opened_anew_and_that_is_gone(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    go_on(a, 1)
    strategy, first = maybe_load_checkpoint(strategy_in(b, loggers=False), a / "run.ckpt")
    assert first == 1
    (a / "run.csv").unlink()
    with pytest.raises(LogError, match=r"a/run.csv is gone: .*PandasLogger for the new path"):
        strategy.train(split_blobs(3).train_stream[1])
    assert not (a / "run.csv").exists()
    shutil.rmtree(a / "csv")
    with pytest.raises(CheckpointError, match=r"had .*training_results.csv open for writing"):
        maybe_load_checkpoint(strategy_in(b, loggers=False), a / "run.ckpt")


def test_the_checkpoint_of_another_run_leaves_the_files_alone(tmp_path: Path) -> None:
    go_on(tmp_path / "a", 1)
    other = strategy_in(tmp_path / "b")
    other.model = nn.Linear(5, 6)
    header = (tmp_path / "b" / "csv" / "eval_results.csv").read_text()
    with pytest.raises(CheckpointError, match="belongs to another model"):
        maybe_load_checkpoint(other, tmp_path / "a" / "run.ckpt")
    assert (tmp_path / "b" / "csv" / "eval_results.csv").read_text() == header
    assert read_log(tmp_path / "b" / "run.csv").empty


def test_a_start_that_was_killed_before_the_first_checkpoint_is_replaced(tmp_path: Path) -> None:
    go_on(tmp_path / "whole", 2)
    whole = read_log(tmp_path / "whole" / "run.csv")
    killed = strategy_in(tmp_path / "run")
    killed.train(split_blobs(3).train_stream[0])  # and dies
    lines = len((tmp_path / "run" / "run.csv").read_text().splitlines())
    with pytest.warns(UserWarning, match=rf"{lines - 1} values of an earlier start"):
        go_on(tmp_path / "run", 2)
    frame = read_log(tmp_path / "run" / "run.csv")
    assert frame[COMPARED].equals(whole[COMPARED])
    assert set(frame["start"]) == {1}
    everything = (tmp_path / "run" / "run.csv").read_text().splitlines()
    assert len(everything) == lines + len(whole)  # nothing was taken out of the file


def test_values_logged_before_the_checkpoint_was_looked_for_stay(tmp_path: Path) -> None:
    PandasLogger(tmp_path / "run.csv").log_single_metric("earlier", 1.0, 0)
    strategy = strategy_in(tmp_path)
    strategy.evaluator.loggers[0].log_single_metric("now", 2.0, 0)
    maybe_load_checkpoint(strategy, tmp_path / "run.ckpt")
    strategy.evaluator.loggers[0].log_single_metric("later", 3.0, 0)
    assert read_log(tmp_path / "run.csv")["name"].tolist() == ["earlier", "now", "later"]
