"""Compare how far the outputs of a learned task move with what DCO-KRON's curvature predicts.

DCO-KRON learns the first task of a stream, then the second. Compared is the mean squared change of
the outputs on the first task's training images, summed over outputs: as the curvature of the first
task predicts it from the way that the weights have gone, to first order in that way, half way along
a straight line, and as it is. Runs and settings are those of the comparison of all methods.

Example:
  python -m benchmarks kron-drift --data-root DIR
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.func import functional_call, jvp
from tqdm import tqdm

from avalanche_dco import DCOKronPlugin
from avalanche_dco.core.kronecker import Curvature
from benchmarks.commands.arguments import seed_number
from benchmarks.runs.kept import add_out_argument, write_measurements
from benchmarks.runs.learning import learn
from benchmarks.runs.planning import Assignment, Plan, Request
from benchmarks.runs.provenance import provenance
from benchmarks.streams.catalogue import TASKS, Data

Weights = dict[str, Tensor]
_TRAINING = {"lr": 0.01, "precision": "bfloat16"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="folder with the data sets")
    parser.add_argument("--benchmark", default="fashion-mnist", help="default: fashion-mnist")
    parser.add_argument("--strengths", type=float, nargs="+", default=[100.0, 1000.0])
    parser.add_argument("--seeds", type=seed_number, nargs="+", default=[1, 2, 3], metavar="N")
    parser.add_argument("--images", type=int, default=2000, help="of the first task")
    add_out_argument(parser, "kron-drift")


def run(args: argparse.Namespace) -> int:
    """Train, and write down one row per strength and seed."""
    training = [Assignment(None, name, value) for name, value in _TRAINING.items()]
    training.append(Assignment(None, "experiences", 2))
    data = Data(args.data_root, None)
    plan = Plan(Request(args.benchmark, ["dco-kron"], "default", data, training))
    pairs = [(strength, seed) for strength in args.strengths for seed in args.seeds]
    rows = []
    for strength, seed in tqdm(pairs, unit="run"):
        first = TASKS[args.benchmark].build(seed, data).train_stream[0].dataset
        images = torch.stack([first[index][0] for index in range(args.images)])
        noted = _Noted()
        outcome = learn(plan.job("dco-kron", seed, {"dco_lambda": strength}), noted, _quietly)
        changes = drift(noted.network, noted.weights, noted.now, noted.curvature, images)
        rows.append({"strength": strength, "seed": seed, **changes, "bwt": outcome.summary["bwt"]})
    table = pd.DataFrame(rows)
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    made = {"benchmark": args.benchmark, "images": args.images, "training": _TRAINING}
    write_measurements(args.out, table, provenance() | made)
    return 0


class _Noted:
    """The network and its curvature after the first experience, noted in place of a checkpoint."""

    def load(self, strategy: SupervisedTemplate) -> tuple[SupervisedTemplate, int]:
        self._model = strategy.model
        return strategy, 0

    def save(self, strategy: SupervisedTemplate) -> None:
        (plugin,) = (one for one in strategy.plugins if isinstance(one, DCOKronPlugin))
        self.curvature = plugin.curvature
        self.network = copy.deepcopy(strategy.model).eval()
        self.weights = dict(self.network.named_parameters())

    @property
    def now(self) -> Weights:
        return {name: weight.detach() for name, weight in self._model.named_parameters()}


def _quietly(done: float, total: int) -> None:
    pass


@torch.no_grad()
def drift(
    network: nn.Module, before: Weights, after: Weights, curvature: Curvature, images: Tensor
) -> dict[str, Any]:
    """How far weights and outputs have moved, and what was to be expected.

    :param network: in eval mode; its own weights do not count.
    :param curvature: of the outputs at ``before``.
    """
    way = {name: after[name] - weight for name, weight in before.items()}

    def outputs(weights: Weights) -> Tensor:
        return functional_call(network, weights, (images,))

    def squared(change: Tensor) -> float:
        return float(change.double().square().sum(1).mean())

    start, first_order = jvp(outputs, (dict(before),), (way,))[:2]
    half = {name: weight + way[name] / 2 for name, weight in before.items()}
    return {
        "way": length(way),
        "weights": length(before),
        "outputs": squared(start),
        "predicted": predicted(way, curvature),
        "first_order": squared(first_order),
        "half_way": squared(outputs(half) - start),
        "actual": squared(outputs(after) - start),
    }


def length(weights: Weights) -> float:
    """The Euclidean norm of all weights together."""
    return sum(float(part.double().square().sum()) for part in weights.values()) ** 0.5


def predicted(way: Weights, curvature: Curvature) -> float:
    r"""Sum over layers of tr(S dW A dW^T), for layers without groups and biases."""
    total = 0.0
    for name, factors in curvature.layers.items():
        (A,), (S,) = factors.A.double(), factors.S.double()
        change = way[name].flatten(1).double()
        total += float((S @ change @ A * change).sum())
    return total
