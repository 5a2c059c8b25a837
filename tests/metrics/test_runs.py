"""The error metrics in real Avalanche runs, against predictions made by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.models import MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import JointTraining, Naive
from torch import nn

from avalanche_dco.metrics import error_metrics
from avalanche_dco.metrics.recorder import _labels
from benchmarks.streams.digits import INPUT_SIZE, permuted_digits, split_digits

NAMES = [f"{name}/eval_phase/test_stream" for name in ("AverageError", "FWIError", "BWTError")]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUT_SIZE, 32), nn.ReLU(), nn.Linear(32, 10))


class TwoWayHeads(MultiTaskModule):
    """A shared layer and, for each task, a head of its own for the task's two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.max_class_label = 10
        self.shared = nn.Linear(INPUT_SIZE, 32)
        self.heads = nn.ModuleList(nn.Linear(32, 2) for _ in range(5))

    def forward_single_task(self, x: torch.Tensor, task_label: int) -> torch.Tensor:
        scores = torch.full((len(x), 10), -torch.inf)
        scores[:, 2 * task_label : 2 * task_label + 2] = self.heads[task_label](
            self.shared(x).relu()
        )
        return scores


def make(model: nn.Module, kind: type = Naive, **options: Any) -> Any:
    return kind(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=64,
        eval_mb_size=100,
        evaluator=EvaluationPlugin(error_metrics(matrix=True)),
        **options,
    )


def predicted_error(model: nn.Module, experience: Any) -> float:
    """The error of one experience, sample by sample, without Avalanche's evaluation."""
    model.eval()
    wrong = 0
    for x, y, task in experience.dataset.eval():
        batch = x.unsqueeze(0)
        with torch.no_grad():
            scores = (
                model(batch, torch.tensor([task]))
                if isinstance(model, TwoWayHeads)
                else model(batch)
            )
        wrong += int(scores.argmax()) != int(y)
    return wrong / len(experience.dataset)


@pytest.mark.parametrize(
    ("benchmark", "model"),
    [
        (lambda: permuted_digits(3), mlp),
        (lambda: split_digits(5), mlp),
        (lambda: split_digits(5), TwoWayHeads),
    ],
    ids=["domain-incremental", "class-incremental", "task-incremental"],
)
def test_three_scenarios_agree_with_predictions_by_hand(
    benchmark: Callable[[], Any], model: Callable[[], nn.Module]
) -> None:
    streams, net = benchmark(), model()
    strategy = make(net)
    e = []
    for n, experience in enumerate(streams.train_stream, start=1):
        strategy.train(experience)
        metrics = strategy.eval(streams.test_stream)
        e.append([predicted_error(net, one) for one in streams.test_stream])
        average, fwi, bwt = (metrics[name] for name in NAMES)
        assert average == pytest.approx(sum(e[n - 1][j] for j in range(n)) / n)
        assert fwi == pytest.approx(sum(e[j][j] for j in range(n)) / n)
        assert bwt == pytest.approx(sum(e[n - 1][j] - e[j][j] for j in range(n)) / n)
        assert average == pytest.approx(fwi + bwt)
    np.testing.assert_allclose(metrics["ErrorMatrix/eval_phase/test_stream"].matrix, e)
    iterations, values = strategy.evaluator.get_all_metrics()[NAMES[0]]
    assert len(values) == len(e)
    assert iterations == sorted(set(iterations))


def test_periodic_evaluation_during_training() -> None:
    streams, net = permuted_digits(2), mlp()
    strategy = make(net, train_epochs=2, eval_every=1)
    evaluated: list[list[float]] = []
    for experience in streams.train_stream:
        strategy.train(experience, eval_streams=[streams.test_stream])
        evaluated.append([predicted_error(net, one) for one in streams.test_stream])
    recorded = strategy.evaluator.get_all_metrics()
    # Before the first training there is nothing to average. Then an evaluation after each of
    # two epochs, one before the second training (still of the first), and two more.
    assert len(recorded[NAMES[0]][1]) == 2 + 1 + 2
    own = [evaluated[j][j] for j in range(2)]
    assert recorded[NAMES[0]][1][-1] == pytest.approx(np.mean(evaluated[-1]))
    assert recorded[NAMES[1]][1][-1] == pytest.approx(np.mean(own))
    assert recorded[NAMES[1]][1][1:3] == pytest.approx([own[0], own[0]])


def test_an_evaluation_after_training_replaces_the_periodic_one() -> None:
    streams, net = permuted_digits(2), mlp()
    strategy = make(net, eval_every=1)
    strategy.train(streams.train_stream[0], eval_streams=[streams.test_stream])
    with torch.no_grad():  # what a plugin may do after the last periodic evaluation
        for weight in net.parameters():
            weight.zero_()
    metrics = strategy.eval(streams.test_stream)
    assert metrics[NAMES[1]] == pytest.approx(predicted_error(net, streams.test_stream[0]))
    assert metrics[NAMES[1]] > 0.8


def test_joint_training_has_seen_everything_at_once() -> None:
    streams, net = permuted_digits(3), mlp()
    strategy = make(net, JointTraining)
    strategy.train(streams.train_stream)
    metrics = strategy.eval(streams.test_stream)
    errors = [predicted_error(net, one) for one in streams.test_stream]
    assert metrics[NAMES[0]] == pytest.approx(np.mean(errors))
    assert metrics[NAMES[1]] == pytest.approx(np.mean(errors))
    assert metrics[NAMES[2]] == 0.0


def test_the_parts_of_an_online_stream_are_one_training() -> None:
    streams, net = permuted_digits(2), mlp()
    strategy = make(net)
    online = split_online_stream(streams.train_stream, experience_size=500, drop_last=True)
    e = []
    for index, part in enumerate(online):
        strategy.train(part)
        if index % 2 == 1:  # 1,347 samples: two whole parts of each experience
            metrics = strategy.eval(streams.test_stream)
            e.append([predicted_error(net, one) for one in streams.test_stream])
    assert len(e) == 2
    assert metrics[NAMES[0]] == pytest.approx(np.mean(e[1]))
    assert metrics[NAMES[1]] == pytest.approx((e[0][0] + e[1][1]) / 2)
    assert metrics["ErrorMatrix/eval_phase/test_stream"].matrix.shape == (2, 2)


def test_targets_may_be_one_hot_or_outputs_labels() -> None:
    labels = torch.tensor([2, 0])
    assert _labels(labels).tolist() == [2, 0]
    assert _labels(torch.nn.functional.one_hot(labels)).tolist() == [2, 0]
