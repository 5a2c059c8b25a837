"""Compare sums of curvatures over many permutations of MNIST, on validation data.

Examples:
  python -m benchmarks task-sums --data-root ~/data --sums mean traces --strengths 10 30 100
  python -m benchmarks task-sums --data-root ~/data --network mlp-256 --sums mean

A plain loop trains one network on one permutation after the other, with DCO-KRON's estimate and
damped step. A tenth of the training data is held out, and all errors are on it; test data are not
looked at. Every run is added to the study --out; a run that is there already is not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from avalanche.benchmarks.datasets.external_datasets.mnist import get_mnist_dataset
from matplotlib.figure import Figure
from torch import Tensor, nn

from avalanche_dco import DCOKronPlugin
from avalanche_dco.core.curvature import CurvatureEstimator
from avalanche_dco.core.kronecker import KroneckerFactors
from avalanche_dco.models import MLP
from avalanche_dco.plots.style import look_of
from benchmarks.report.figures import save_svg
from benchmarks.runs.kept import Study, add_out_argument, kept_run, read_study
from benchmarks.runs.provenance import provenance
from benchmarks.runs.records import Run
from benchmarks.streams.tensors import flat_tensors
from benchmarks.studies.task_sums.sums import SUMS, TaskSum

BATCH_OF_ESTIMATE = 32
SAMPLES, DAMP_EVERY, NEGLIGIBLE = (
    DCOKronPlugin.SETTINGS[name].default for name in ("samples", "damp_every", "negligible")
)
SHOWN = (5, 10, 20, 50)
"""After how many tasks the average error of all tasks so far is measured."""


@dataclass(frozen=True)
class Network:
    """What learns the stream, and how.

    :param lr: of SGD with momentum 0.9.
    """

    hidden_size: int
    hidden_layers: int
    tasks: int
    epochs: int
    lr: float


NETWORKS = {
    "mlp-100-100": Network(100, 2, tasks=50, epochs=1, lr=0.02),
    "mlp-100-100-longer": Network(100, 2, tasks=10, epochs=5, lr=0.02),
    "mlp-256": Network(256, 3, tasks=20, epochs=4, lr=0.02),
}
_BATCH = 128


@dataclass(frozen=True)
class Setting:
    """One run.

    :param network: one of :data:`NETWORKS`.
    :param sum: one of :data:`SUMS`.
    :param growth: p, where the curvature of n tasks counts n^p times their mean: 1 for their sum,
        0 for their mean.
    :param floor: the share of its mean diagonal that is added to the diagonal of every task's S.
    :param seed: of the network, the permutations, the batches and the validation split.
    """

    network: str
    sum: str
    strength: float
    growth: float
    floor: float
    seed: int

    @property
    def name(self) -> str:
        """The run's name in the study."""
        growth = f"-growth{self.growth:g}" if self.growth != 1 else ""
        floor = f"-floor{self.floor:g}" if self.floor else ""
        return f"{self.network}-{self.sum}-lambda{self.strength:g}{growth}{floor}-seed{self.seed}"

    def strength_after(self, tasks: int) -> float:
        """What the sum over so many tasks is multiplied by."""
        return self.strength * tasks ** (self.growth - 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-root", type=Path, required=True, help="folder with MNIST/raw/...")
    parser.add_argument("--network", choices=NETWORKS, default="mlp-100-100")
    parser.add_argument("--sums", nargs="+", choices=SUMS, default=list(SUMS))
    parser.add_argument("--strengths", nargs="+", type=float, default=[30.0])
    parser.add_argument("--growths", nargs="+", type=float, default=[1.0])
    parser.add_argument("--floors", nargs="+", type=float, default=[0.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--tasks", type=int, help="permutations; fewer than usual for a quick look")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="also draw free directions")
    add_out_argument(parser, "task-sums")


def run(args: argparse.Namespace) -> int:
    """Run what is not there yet, print a line for everything asked for."""
    torch.set_num_threads(1)  # small matrices
    images, labels = flat_tensors(get_mnist_dataset(str(args.data_root))[0])
    network = NETWORKS[args.network]
    network = replace(network, tasks=args.tasks or network.tasks)
    for seed, strength, growth, floor, name in itertools.product(
        args.seeds, args.strengths, args.growths, args.floors, args.sums
    ):
        setting = Setting(args.network, name, strength, growth, floor, seed)
        make = partial(measure, setting, network, images, labels)
        print(line(kept_run(args.out, setting.name, make)), flush=True)
    if args.figure is not None:
        save_svg(args.figure, draw, read_study(args.out), args.network)
    return 0


def line(run: Run) -> str:
    """A run in a line."""
    metrics = run.metrics
    average = metrics[metrics["metric"] == "AverageError"]
    errors = ", ".join(
        f"{100 * value:.2f} after {trained}"
        for trained, value in zip(average["trained"], average["value"], strict=True)
    )
    newest = metrics[metrics["metric"] == "NewError"]["value"]
    last = f"newest task {100 * newest.iloc[-1]:.2f}"
    return f"{run.name}: {errors}; {last}; {run.outcome['seconds']:.0f} s"


def measure(setting: Setting, network: Network, images: Tensor, labels: Tensor) -> Run:
    """Learn the stream.

    :param network: what learns it; may have fewer tasks than usual.
    :param images: training data, of which a tenth is held out.
    """
    started = time.perf_counter()
    torch.manual_seed(setting.seed)
    order = torch.randperm(len(images))
    held, kept = order[: len(order) // 10], order[len(order) // 10 :]
    permutations = [torch.randperm(images.shape[1]) for _ in range(network.tasks)]
    model = MLP(
        images.shape[1],
        hidden_size=network.hidden_size,
        hidden_layers=network.hidden_layers,
        num_classes=int(labels.max()) + 1,
    )
    memory = {name: SUMS[setting.sum]() for name, _ in model.named_parameters()}
    rows: list[tuple[str, int, float]] = []

    def error(task: int) -> float:
        with torch.no_grad():
            guesses = model(images[held][:, permutations[task]]).argmax(1)
        return float((guesses != labels[held]).double().mean())

    for task, permutation in enumerate(permutations):
        x, y = images[kept][:, permutation], labels[kept]
        strength = setting.strength_after(task) if task else 0.0
        _train(model, x, y, memory if task else {}, strength, network)
        chosen = torch.randperm(len(x))[:SAMPLES]
        for name, factors in _estimated(model, x[chosen], setting.floor).items():
            memory[name].add(factors)
        n = task + 1
        rows.append(("NewError", n, error(task)))
        if n in SHOWN or n == network.tasks:
            rows.append(("AverageError", n, sum(map(error, range(n))) / n))
        if n % 5 == 0 or n == 1:
            for name, summed in memory.items():
                rows.append((f"FreeShare/{name}", n, summed.free_share(setting.strength_after(n))))
    frame = pd.DataFrame(rows, columns=["metric", "trained", "value"])
    frame = frame.assign(stream="validation", experience=None, training_experience=None)
    config = vars(setting) | vars(network) | {"batch_size": _BATCH} | provenance()
    seconds = round(time.perf_counter() - started, 1)
    return Run(setting.name, config, {"seconds": seconds}, frame)


def _train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    memory: dict[str, TaskSum],
    strength: float,
    network: Network,
) -> None:
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=network.lr, momentum=0.9)
    steps = {name: m.step(strength, NEGLIGIBLE) for name, m in memory.items()}
    before = {name: parameters[name].detach().clone() for name in steps}

    @torch.no_grad()
    def damp() -> None:
        for name, step in steps.items():
            parameter = parameters[name]
            parameter.sub_(step((parameter - before[name])[None])[0])
            before[name].copy_(parameter)

    for number, batch in enumerate(_batches(len(x), network.epochs), start=1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        if number % DAMP_EVERY == 0:
            damp()
    damp()


def _batches(samples: int, epochs: int) -> Iterator[Tensor]:
    for _ in range(epochs):
        yield from torch.randperm(samples).split(_BATCH)


def _estimated(model: nn.Module, x: Tensor, floor: float) -> dict[str, KroneckerFactors]:
    estimator = CurvatureEstimator(model, dict(model.named_parameters()))
    for part in x.split(BATCH_OF_ESTIMATE):
        estimator.observe(partial(model, part), len(part))
    found = estimator.finish().layers
    return {
        name: KroneckerFactors(f.A, f.S + floor * f.S.diagonal(dim1=1, dim2=2).mean() * _eye(f.S))
        for name, f in found.items()
    }


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


FIRST = "FreeShare/1.weight"
"""The first layer has most of the weights."""
_GROWTHS = {1.0: "", 0.5: " / √n", 0.0: " / n"}


def points(study: Study, network: str) -> pd.DataFrame:
    """One row per run and number of tasks: the shares, and the error on the newest task in %.

    :param study: its runs of one Kronecker product per layer are taken.
    """
    frames = []
    for run in study.runs.values():
        if (run.config["network"], run.config["sum"]) == (network, "mean"):
            wide = run.metrics.pivot_table(index="trained", columns="metric", values="value")
            frames.append(wide.dropna(subset=[FIRST]).assign(run=run.name, label=strength_of(run)))
    return pd.concat(frames).assign(newest=lambda rows: 100 * rows["NewError"]).reset_index()


def strength_of(run: Run) -> str:
    """Strength and growth in a word."""
    config = run.config
    return f"λ = {config['strength']:g}{_GROWTHS[config['growth']]}"


def draw(study: Study, network: str) -> Figure:
    """Both sides: shares over tasks with the default, and the error against the share for all."""
    rows = points(study, network)
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    default = rows[rows["label"] == "λ = 100 / n"]
    for index, name in enumerate(c for c in rows.columns if c.startswith("FreeShare/")):
        label = name.removeprefix("FreeShare/")
        left.plot(default["trained"], default[name], label=label, **look_of(index))
    left.set(xlabel="Tasks learned", ylabel="Share of free directions", ylim=(-0.03, 1.03))
    for index, (strength, runs) in enumerate(rows.groupby("label", sort=False)):
        right.plot(runs[FIRST], runs["newest"], label=str(strength), **look_of(index))
    right.set(xlabel="Share of free directions, first layer", ylabel="Error on the newest task (%)")
    right.set_xlim(1.0, 0.0)
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=9)
    return figure
