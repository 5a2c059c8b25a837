"""One run, five loggers, the same three numbers, and a hand computation that agrees."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.logging import (
    CSVLogger,
    InteractiveLogger,
    TensorboardLogger,
    TextLogger,
)
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from wandb.proto import wandb_internal_pb2

from avalanche_dco.logging import PandasLogger, WandBLogger
from avalanche_dco.metrics import error_metrics
from benchmarks.streams.digits import INPUT_SIZE, permuted_digits

NAMES = [f"{name}/eval_phase/test_stream" for name in ("AverageError", "FWIError", "BWTError")]
MATRIX = "ErrorMatrix/eval_phase/test_stream"
EXPERIENCES = 3


def from_text(text: str) -> dict[str, list[float]]:
    return {
        name: [float(value) for value in re.findall(rf"{name} = (-?[\d.]+)", text)]
        for name in NAMES
    }


def wandb_records(content: bytes) -> Iterator[Any]:
    """The records of an offline run: 32 KiB blocks of chunks with crc, length and kind."""
    head, block = 7, 32768
    position, record = head, b""
    while position + head <= len(content):
        left = block - position % block
        if left < head:
            position += left
            continue
        length = int.from_bytes(content[position + 4 : position + 6], "little")
        kind = content[position + 6]
        position += head
        record += content[position : position + length]
        position += length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def from_wandb(directory: Path) -> dict[str, list[Any]]:
    (log,) = directory.glob("wandb/offline-run-*/*.wandb")
    values: dict[str, list[Any]] = {}
    for record in wandb_records(log.read_bytes()):
        for item in record.history.item:
            name = item.key or ".".join(item.nested_key)
            values.setdefault(name, []).append(json.loads(item.value_json))
    return values


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_five_loggers_and_a_hand_computation_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    streams = permuted_digits(EXPERIENCES)
    model = nn.Sequential(nn.Linear(INPUT_SIZE, 32), nn.ReLU(), nn.Linear(32, 10))
    tensorboard = TensorboardLogger(tmp_path / "tb")
    frame_logger = PandasLogger(tmp_path / "run.csv")
    with (tmp_path / "log.txt").open("w") as text_file:
        loggers = [
            InteractiveLogger(),
            TextLogger(text_file),
            tensorboard,
            WandBLogger(
                run_name="agree", dir=tmp_path, save_code=False, params={"mode": "offline"}
            ),
            frame_logger,
            CSVLogger(str(tmp_path / "csv")),  # must not trip over what it does not know
        ]
        evaluator = EvaluationPlugin(
            error_metrics(matrix=True), accuracy_metrics(experience=True), loggers=loggers
        )
        strategy = Naive(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=64,
            eval_mb_size=128,
            evaluator=evaluator,
        )
        e = []
        for experience in streams.train_stream:
            strategy.train(experience)
            metrics = strategy.eval(streams.test_stream)
            accuracy = "Top1_Acc_Exp/eval_phase/test_stream/Task000/Exp{:03}"
            e.append([1 - metrics[accuracy.format(j)] for j in range(EXPERIENCES)])
    wandb.finish()
    tensorboard.writer.close()

    rounds = range(1, EXPERIENCES + 1)
    by_hand = {
        NAMES[0]: [sum(e[n - 1][:n]) / n for n in rounds],
        NAMES[1]: [sum(e[j][j] for j in range(n)) / n for n in rounds],
        NAMES[2]: [sum(e[n - 1][j] - e[j][j] for j in range(n)) / n for n in rounds],
    }
    assert by_hand[NAMES[2]][-1] > 0.1  # the run forgot: the numbers are no zeros

    printed = from_text(capsys.readouterr().out)
    written = from_text((tmp_path / "log.txt").read_text())
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    online = from_wandb(tmp_path)
    frame = frame_logger.to_frame()
    for name in NAMES:
        expected = pytest.approx(by_hand[name], abs=1e-9)
        assert evaluator.get_all_metrics()[name][1] == expected
        assert evaluator.get_last_metrics()[name] == pytest.approx(by_hand[name][-1])
        assert frame.loc[frame["name"] == name, "value"].tolist() == expected
        assert online[name] == expected
        # Single precision, and four printed digits.
        assert [event.value for event in events.Scalars(name)] == pytest.approx(
            by_hand[name], abs=1e-6
        )
        assert printed[name] == pytest.approx(by_hand[name], abs=5.1e-5)
        assert written[name] == printed[name]

    assert len(events.Images(MATRIX)) == EXPERIENCES
    assert online[f"{MATRIX}._type"] == ["image-file"] * EXPERIENCES
    assert (
        "         3" + "".join(f"{error:9.4f}" for error in e[-1])
        in (tmp_path / "log.txt").read_text()
    )
    last = frame[frame["name"] == MATRIX].iloc[-1]
    assert json.loads(last["other"]) == [pytest.approx(row) for row in e]
