"""The pandas logger: what it keeps, and what it survives."""

import copy
import doctest
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dill
import numpy as np
import pandas as pd
import pytest
import torch
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.evaluation.metric_results import AlternativeValues, MetricValue, TensorImage
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import JointTraining, Naive
from PIL import Image
from torch import nn

import avalanche_dco
from avalanche_dco.errors import LogError, SettingError
from avalanche_dco.logging import COLUMNS, PandasLogger, read_log, values
from avalanche_dco.metrics import error_metrics, names
from avalanche_dco.metrics.names import MetricName, NameParts
from benchmarks.streams.digits import INPUT_SIZE, permuted_digits

ROOT = Path(avalanche_dco.__file__).parent.parent


def log(logger: PandasLogger, *numbers: float, name: str = "Loss/train_phase") -> None:
    for number in numbers:
        logger.log_single_metric(name, number, 0)


def strategy_with(logger: PandasLogger, kind: type = Naive) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUT_SIZE, 16), nn.ReLU(), nn.Linear(16, 10))
    return kind(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=256,
        eval_mb_size=512,
        evaluator=EvaluationPlugin(
            error_metrics(matrix=True),
            accuracy_metrics(minibatch=True, epoch=True, experience=True, stream=True),
            loss_metrics(epoch=True, experience=True),
            loggers=[logger],
        ),
    )


# What is kept


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_run_is_in_the_frame_as_the_evaluator_has_it(tmp_path: Path, on_disk: bool) -> None:
    logger = PandasLogger(tmp_path / "logs" / "run.csv") if on_disk else PandasLogger()
    strategy = strategy_with(logger)
    streams = permuted_digits(2)
    strategy.eval(streams.test_stream)
    for experience in streams.train_stream:
        strategy.train(experience)
        strategy.eval(streams.test_stream)
    frame = logger.to_frame()
    assert tuple(frame.columns) == COLUMNS
    assert frame["row"].tolist() == list(range(len(frame)))
    collected = strategy.evaluator.get_all_metrics()
    assert set(frame["name"]) == set(collected)
    for name, (x, recorded) in collected.items():
        rows = frame[frame["name"] == name]
        assert rows["x"].tolist() == x
        if isinstance(recorded[0], float):
            assert rows["value"].tolist() == recorded  # to the last bit, also through the file
        else:
            assert [json.loads(text) for text in rows["other"]] == [
                value.matrix.tolist() for value in recorded
            ]
    average = frame[frame["metric"] == "AverageError"]
    assert average["trained"].tolist() == [1, 2]
    assert average["training_experience"].tolist() == [0, 1]
    assert average["stream"].tolist() == ["test", "test"]
    assert average["task"].isna().all()
    cells = frame[(frame["metric"] == "ErrorMatrix") & frame["experience"].notna()]
    assert cells["trained"].tolist() == [0, 0, 1, 1, 2, 2]
    assert cells["experience"].tolist() == [0, 1, 0, 1, 0, 1]
    minibatch = frame[frame["metric"] == "Top1_Acc_MB"]
    assert set(minibatch["phase"]) == {"train"}
    assert (minibatch["trained"] == minibatch["training_experience"] + 1).all()
    assert frame["time"].is_monotonic_increasing


class StartMetric:
    """A custom metric that speaks before the first iteration of a training."""

    def before_training_exp(self, strategy: Any) -> MetricValue:
        number = strategy.experience.current_experience
        name = f"CapacityStart/train_phase/train_stream/Task000/Exp{number:03}"
        return MetricValue(self, name, 0.5, 0)


def test_a_metric_at_the_start_of_a_training_belongs_to_it(tmp_path: Path) -> None:
    logger = PandasLogger(tmp_path / "run.csv")
    strategy = strategy_with(logger)
    strategy.evaluator.metrics.append(StartMetric())
    strategy.train(permuted_digits(2).train_stream)
    frame = logger.to_frame()
    rows = frame[frame["metric"] == "CapacityStart"]
    assert rows["experience"].tolist() == [0, 1]
    assert rows["training_experience"].tolist() == [0, 1]
    assert rows["trained"].tolist() == [1, 2]


def test_joint_training_names_no_single_experience() -> None:
    logger = PandasLogger()
    strategy = strategy_with(logger, JointTraining)
    strategy.train(permuted_digits(2).train_stream)
    frame = logger.to_frame()
    assert set(frame["trained"]) == {1}
    assert frame["training_experience"].isna().all()


@pytest.mark.parametrize(
    ("value", "number", "other"),
    [
        (0.1 + 0.2, 0.1 + 0.2, None),
        (3, 3.0, None),
        (True, 1.0, None),
        (np.float32(0.5), 0.5, None),
        (torch.tensor(0.25), 0.25, None),
        (torch.tensor([0.25]), 0.25, None),
        (float("inf"), float("inf"), None),
        (-float("inf"), -float("inf"), None),
        (float("nan"), None, None),
        (torch.tensor([[1.0, float("nan")], [float("inf"), 2.0]]), None, [[1, None], [None, 2]]),
        (np.arange(3), None, [0, 1, 2]),
        ('a "quoted", text\nin two lines', None, 'a "quoted", text\nin two lines'),
        (AlternativeValues(Image.new("RGB", (2, 2)), torch.ones(2)), None, [1, 1]),
        (Image.new("RGB", (2, 2)), None, {"type": "Image"}),
        (TensorImage(torch.zeros(3, 2, 2)), None, {"type": "TensorImage"}),
        (b"weights", None, {"type": "bytes"}),
    ],
)
def test_every_kind_of_value_is_kept(
    tmp_path: Path, value: Any, number: float | None, other: Any
) -> None:
    logger = PandasLogger(tmp_path / "run.csv")
    logger.log_metrics([MetricValue(None, "M/eval_phase/test_stream", value, 7)])  # type: ignore[arg-type]
    (row,) = logger.to_frame().itertuples()
    assert row.x == 7
    if number is None:
        assert np.isnan(row.value)
    else:
        assert row.value == number
    if other is None:
        assert pd.isna(row.other)
    else:
        assert json.loads(row.other) == other


def test_a_dictionary_gives_a_line_for_each_key() -> None:
    logger = PandasLogger()
    logger.log_metrics([MetricValue(None, "M/eval_phase", {"a": 1.0, "b": 2.0}, 0)])  # type: ignore[arg-type]
    frame = logger.to_frame()
    assert frame["name"].tolist() == ["M/eval_phase/a", "M/eval_phase/b"]
    assert frame["metric"].tolist() == ["M/a", "M/b"]
    assert frame["phase"].tolist() == ["eval", "eval"]


def test_names() -> None:
    assert doctest.testmod(values).failed == 0
    assert values.parse_name("NA") == ("NA", None, None, None, None)
    assert values.parse_name("GPU/0/train_phase/out_stream/Task012") == (
        "GPU/0",
        "train",
        "out",
        12,
        None,
    )
    logger = PandasLogger()
    log(logger, 1.0, name="NA")
    log(logger, 1.0, name='odd, "name"')
    assert logger.to_frame()["metric"].tolist() == ["NA", 'odd, "name"']


def test_a_name_that_knows_its_parts_is_not_parsed() -> None:
    assert doctest.testmod(names).failed == 0
    parts = NameParts("odd/Task007", "eval", "a/b", None, 3)
    name = MetricName(parts)
    assert name == "odd/Task007/eval_phase/a/b_stream/Exp003"
    assert values.parse_name(name) == parts
    assert values.parse_name(pickle.loads(pickle.dumps(name))) == parts


def test_an_empty_log_is_an_empty_frame(tmp_path: Path) -> None:
    for logger in (PandasLogger(), PandasLogger(tmp_path / "run.csv")):
        frame = logger.to_frame()
        assert frame.empty
        assert tuple(frame.columns) == COLUMNS


# Going on


def test_the_same_path_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    log(PandasLogger(path), 1.0, 2.0)
    second = PandasLogger(path)
    log(second, 3.0)
    frame = second.to_frame()
    assert frame["value"].tolist() == [1.0, 2.0, 3.0]
    assert frame["row"].tolist() == [0, 1, 2]
    assert frame["start"].tolist() == [0, 0, 1]
    assert path.read_text().count("row,start") == 1


@pytest.mark.parametrize("cut", range(1, 40, 6))
def test_a_line_cut_off_is_mended(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "run.csv"
    log(PandasLogger(path), 1.0, 2.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with pytest.warns(UserWarning, match="cut off"):
        assert read_log(path)["value"].tolist() == [1.0]
    assert path.read_bytes() == whole[:-cut]  # reading changes nothing
    with pytest.warns(UserWarning, match="cut off"):
        logger = PandasLogger(path)
    log(logger, 3.0)
    frame = logger.to_frame()
    assert frame["value"].tolist() == [1.0, 3.0]
    assert frame["row"].tolist() == [0, 1]


@pytest.mark.parametrize("left", [0, 1, 30])
def test_a_header_cut_off_is_mended(tmp_path: Path, left: int) -> None:
    path = tmp_path / "run.csv"
    PandasLogger(path)
    path.write_bytes(path.read_bytes()[:left])
    if left:
        with pytest.warns(UserWarning, match="cut off"):
            logger = PandasLogger(path)
    else:
        logger = PandasLogger(path)
    log(logger, 1.0)
    assert logger.to_frame()["value"].tolist() == [1.0]


@pytest.mark.parametrize("content", ["notes", "a,b\n1,2\n", "row,start\n0,0\n"])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(content)
    with pytest.raises(SettingError, match="Choose another path"):
        PandasLogger(path)
    with pytest.raises(SettingError, match="not a metrics log"):
        read_log(path)
    assert path.read_text() == content


def test_lines_after_a_checkpoint_are_replaced_by_the_run_that_goes_on_from_it(
    tmp_path: Path,
) -> None:
    logger = PandasLogger(tmp_path / "run.csv")
    log(logger, 0.0, 1.0)
    checkpoint = dill.dumps(logger)
    log(logger, 2.0, 3.0, 4.0)
    resumed = dill.loads(checkpoint)
    assert resumed.to_frame()["value"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    log(resumed, 2.5)
    assert resumed.to_frame()["value"].tolist() == [0.0, 1.0, 2.5]
    log(resumed, 3.5)
    assert resumed.to_frame()["value"].tolist() == [0.0, 1.0, 2.5, 3.5]
    assert len((tmp_path / "run.csv").read_text().splitlines()) == 1 + 5 + 2  # nothing was lost


def test_a_memory_log_travels_with_the_checkpoint() -> None:
    logger = PandasLogger()
    log(logger, 0.0)
    for clone in (copy.deepcopy(logger), dill.loads(dill.dumps(logger))):
        log(clone, 1.0)
        assert clone.to_frame()["value"].tolist() == [0.0, 1.0]
    assert logger.to_frame()["value"].tolist() == [0.0]


def test_a_run_resumed_from_avalanche_s_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dill.settings, "byref", True)
    streams = permuted_digits(3)
    path = tmp_path / "run.csv"
    killed = strategy_with(PandasLogger(path))
    killed.train(streams.train_stream[0])
    killed.eval(streams.test_stream)
    save_checkpoint(killed, str(tmp_path / "checkpoint.pkl"))
    killed.train(streams.train_stream[1])  # logged, but lost: the run dies here

    strategy = strategy_with(PandasLogger(path))
    strategy, start = maybe_load_checkpoint(strategy, str(tmp_path / "checkpoint.pkl"))
    assert start == 1
    for experience in streams.train_stream[start:]:
        strategy.train(experience)
        strategy.eval(streams.test_stream)
    frame = read_log(path)
    assert frame["row"].tolist() == list(range(len(frame)))
    for name, (x, recorded) in strategy.evaluator.get_all_metrics().items():
        rows = frame[frame["name"] == name]
        assert rows["x"].tolist() == x
        if isinstance(recorded[0], float):
            assert rows["value"].tolist() == recorded
    average = frame[frame["metric"] == "AverageError"]
    assert average["trained"].tolist() == [1, 2, 3]


CHILD = """
import os, sys
from avalanche_dco.logging import PandasLogger
logger = PandasLogger(sys.argv[1])
number = 0
while True:
    logger.log_single_metric("Loss_MB/train_phase/train_stream/Task000", number / 7, number)
    number += 1
    os.write(1, b"%d\\n" % number)  # the value is logged: it must never be lost again
"""


def test_a_killed_process_loses_at_most_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert child.stdout is not None
    for _ in range(500):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read()
    child.wait()
    assert child.returncode == -signal.SIGKILL
    confirmed = int(rest.rpartition(b"\n")[0].rpartition(b"\n")[2] or 500)
    logger = PandasLogger(path)
    frame = logger.to_frame()
    assert confirmed >= 500
    assert confirmed <= len(frame) <= confirmed + 1
    assert frame["value"].tolist() == [number / 7 for number in range(len(frame))]
    log(logger, -1.0)
    assert logger.to_frame()["row"].tolist() == list(range(len(frame) + 1))
    assert logger.to_frame()["value"].iloc[-1] == -1.0


# What cannot be written


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel refuses to let any file grow further, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_said_and_the_log_goes_on_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    logger = PandasLogger(path)
    log(logger, 1.0)
    with (
        file_size_limit(path.stat().st_size + 10),
        pytest.raises(OSError, match=r"cannot be written .* 1 values logged before are kept"),
    ):
        log(logger, 2.0)
    with pytest.warns(UserWarning, match="cut off"):
        log(logger, 3.0)
    assert logger.to_frame()["value"].tolist() == [1.0, 3.0]


def test_a_directory_that_cannot_be_written_is_said_at_once() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        user = os.geteuid()
        try:
            if user == 0:  # root may write anywhere
                os.seteuid(65534)
            with pytest.raises(PermissionError, match="give PandasLogger a path"):
                PandasLogger(Path(directory) / "run.csv")
        finally:
            os.seteuid(user)
            os.chmod(directory, 0o755)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="cannot be written"):
        PandasLogger(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot be written"):
        PandasLogger(tmp_path / "file" / "run.csv")
    with pytest.raises(SettingError, match="not a file"):
        PandasLogger("/dev/full")


def test_sync_reports_a_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = PandasLogger(tmp_path / "run.csv")
    log(logger, 1.0)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        logger.after_eval(SimpleNamespace())


# Parquet


def test_parquet_is_written_beside_the_csv_file(tmp_path: Path) -> None:
    logger = PandasLogger(tmp_path / "run.csv", parquet=True)
    strategy = strategy_with(logger)
    streams = permuted_digits(2)
    strategy.train(streams.train_stream[0])
    after_training = pd.read_parquet(tmp_path / "run.parquet")
    strategy.eval(streams.test_stream)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "run.parquet"), logger.to_frame())
    assert 0 < len(after_training) < len(logger.to_frame())
    assert not list(tmp_path.glob("*.part"))


def test_parquet_on_a_full_disk_is_said_and_nothing_is_left_behind(tmp_path: Path) -> None:
    logger = PandasLogger(tmp_path / "run.csv", parquet=True)
    log(logger, 1.0)
    logger.after_eval(SimpleNamespace())
    before = (tmp_path / "run.parquet").read_bytes()
    log(logger, *map(float, range(99)))
    with (
        file_size_limit(100),
        pytest.raises(OSError, match=r"cannot be written \(File too large\).*CSV") as raised,
    ):
        logger.after_eval(SimpleNamespace())
    assert raised.value.filename == str(tmp_path / "run.parquet")
    assert (tmp_path / "run.parquet").read_bytes() == before
    assert not list(tmp_path.glob("*.part"))
    logger.after_eval(SimpleNamespace())
    assert len(pd.read_parquet(tmp_path / "run.parquet")) == 100


def test_parquet_without_pyarrow_or_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingError, match=r'PandasLogger\("run.csv", parquet=True\)'):
        PandasLogger(parquet=True)
    monkeypatch.setattr("avalanche_dco.logging.pandas_logger.find_spec", lambda name: None)
    with pytest.raises(SettingError, match="pip install pyarrow"):
        PandasLogger(tmp_path / "run.csv", parquet=True)
    assert not (tmp_path / "run.csv").exists()


def test_a_line_that_has_changed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    log(PandasLogger(path), 0.25, 0.5, 0.75)
    path.write_text(path.read_text().replace(",0.5,", ",0.6,"))  # not within a time stamp
    for read in (read_log, PandasLogger):
        with pytest.raises(LogError, match="is damaged: line 3 does not have the checksum"):
            read(path)


def test_another_process_that_writes_to_the_same_log_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    one = PandasLogger(path)
    log(one, 1.0)
    other = PandasLogger(path)
    log(other, 2.0)
    with pytest.raises(LogError, match="another process writes to it too"):
        log(one, 3.0)
    log(other, 4.0)
    assert read_log(path)["value"].tolist() == [1.0, 2.0, 4.0]


def test_a_name_with_a_line_feed_stays_on_its_line(tmp_path: Path) -> None:
    logger = PandasLogger(tmp_path / "run.csv")
    logger.log_single_metric("two\nlines", 1.0, 0)
    assert logger.to_frame()["name"].tolist() == ["two lines"]
