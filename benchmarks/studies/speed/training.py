"""Times of whole trainings against Naive's, and of what else was made faster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader

from avalanche_dco.baselines.per_sample import mean_transformed_gradients
from avalanche_dco.errors import DCOError
from avalanche_dco.landscape import LossLandscape
from avalanche_dco.models import MLP, ConvNet, mlp_256
from benchmarks.methods import get_method
from benchmarks.runs.execution import RunOptions
from benchmarks.runs.jobs import Job
from benchmarks.runs.planning import Assignment, Plan, Request
from benchmarks.runs.progress import run_jobs
from benchmarks.runs.provenance import provenance
from benchmarks.runs.runners import in_processes
from benchmarks.runs.training import Bfloat16Training
from benchmarks.streams.catalogue import Data
from benchmarks.streams.data_path import ShuffledBatches
from benchmarks.streams.digits import split_digits
from benchmarks.studies.speed.core import QUICK, Action, Row, Sizes, alternately, compared

METHODS = ("naive", "ewc", "si", "rwalk", "gpm", "mas", "lwf", "dco", "dco-comp", "dco-kron")
_EXPERIENCES = {"split-digits": 5, "split-mnist": 2}
_OWN = {"dco", "dco-comp", "dco-kron"}  # measured with the defaults of their plugins
_QUICK_DCO = {"k": 4}


def trainings(sizes: Sizes, data_root: Path | None) -> Iterator[Row]:
    """Whole trainings, in a process each, all methods in turn for each seed, against Naive's.

    The network, epochs and batches of each benchmark are the preset paper's; the plugins of this
    package have their default settings.

    :param sizes: how much is measured.
    :param data_root: folder that holds MNIST; without it Split MNIST is left out.
    """
    threads = torch.get_num_threads()
    benchmarks = ["split-digits", *(["split-mnist"] if data_root else [])]
    jobs = [
        job
        for name in benchmarks
        for seed in sizes.seeds
        for job in _jobs(Plan(_request(name, data_root, sizes)), seed, quick=sizes == QUICK)
    ]
    with TemporaryDirectory() as folder:
        options = RunOptions(Path(folder), threads, provenance(threads))
        results = run_jobs(jobs, in_processes(1), options)
    for failed in (result for result in results if result.summary is None):
        raise DCOError(f"{failed.job.title} failed: {failed.failure}")
    of = {(one.job.protocol, one.job.method, one.job.seed): one.summary or {} for one in results}
    for name in benchmarks:
        for method in METHODS:
            runs = [(of[name, method, seed], of[name, "naive", seed]) for seed in sizes.seeds]
            yield {
                "case": f"{name}: {method}",
                "seconds": fmean(own["seconds"] for own, _ in runs),
                "against": f"{name}: naive",
                "ratio": fmean(own["seconds"] / naive["seconds"] for own, naive in runs),
                "memory_mb": fmean(own["memory_bytes"] / 1e6 for own, _ in runs),
                "peak_mb": fmean(own["peak_megabytes"] - naive["peak_megabytes"]
                                 for own, naive in runs),
            }  # fmt: skip


def _request(benchmark: str, data_root: Path | None, sizes: Sizes) -> Request:
    training = [Assignment(None, "experiences", _EXPERIENCES[benchmark])]
    if sizes == QUICK:
        training = [Assignment(None, "experiences", 2), Assignment(None, "epochs", 1)]
    return Request(benchmark, METHODS, "paper", Data(data_root), training=training)


def _jobs(plan: Plan, seed: int, *, quick: bool) -> Iterator[Job]:
    for name in METHODS:
        tried: dict[str, Any] = {}
        if name in _OWN:
            tried = dict(get_method(name).resolved({}))
            tried |= {n: v for n, v in _QUICK_DCO.items() if quick and n in tried}
        elif plan.open_names(name):  # strengths, which take no time
            tried = {n: values[0] for n, values in plan.grid(name).items()}
        yield plan.job(name, seed, tried)


def others(sizes: Sizes) -> Iterator[Row]:
    """What else was made faster, each against the plain way of doing it.

    :param sizes: how much is measured.
    """
    for actions, repeats in (
        (_fisher(sizes.samples), sizes.repeats),
        (_convolutions(min(64, sizes.samples)), sizes.repeats),
        (_batches(), sizes.repeats),
        (_perturbed(12 * sizes.samples, draws=max(100, sizes.samples // 5)), 1),
    ):
        yield from compared(alternately(repeats, actions))


def _fisher(samples: int) -> dict[str, Action]:
    model = mlp_256().eval()
    x, y = torch.randn(samples, 784), torch.randint(10, (samples,))
    return {
        "EWC's Fisher information, one backward pass per sample": lambda: one_by_one(model, x, y),
        "EWC's Fisher information, in batches": lambda: in_batches(model, x, y),
    }


def one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The mean squared gradient by its definition: a forward and backward pass per sample."""
    fisher = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for sample, label in zip(x.split(1), y.split(1), strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(sample), label).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            fisher[name] += parameter.grad.square()
    return {name: value / len(x) for name, value in fisher.items()}


def in_batches(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The same as EWCPlugin computes it."""
    tasks = torch.zeros(len(x), dtype=torch.long)
    batches = zip(x.split(256), y.split(256), tasks.split(256), strict=True)
    return mean_transformed_gradients(model, batches, nn.CrossEntropyLoss(), torch.square)


def _convolutions(batch: int) -> dict[str, Action]:
    channels_last = ConvNet(10).to(memory_format=torch.channels_last)
    networks = {
        "ConvNet's training step, contiguous": ConvNet(10),
        "ConvNet's training step, channels last": channels_last,
        "ConvNet's training step, channels last in bfloat16": Bfloat16Training(channels_last),
    }
    return {name: _training_step(network, batch) for name, network in networks.items()}


def _training_step(network: nn.Module, batch: int) -> Action:
    inputs, targets = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizer.step()

    return step


def _batches() -> dict[str, Action]:
    dataset = split_digits(1).train_stream[0].dataset
    loader = DataLoader(dataset, 32, shuffle=True, collate_fn=dataset.collate_fn)
    tensors = ShuffledBatches(next(iter(DataLoader(dataset, len(dataset)))), 32)
    return {
        "an epoch of batches, fetched sample by sample": lambda: list(loader),
        "an epoch of batches, cut from tensors": lambda: list(tensors),
    }


def _perturbed(samples: int, draws: int) -> dict[str, Action]:
    model = MLP(64, hidden_size=30, num_classes=2).eval()
    x, y = torch.randn(samples, 64), torch.randint(2, (samples,))
    parts = [(x[part], y[part]) for part in torch.randperm(samples).tensor_split(24)]
    landscape = LossLandscape(model, nn.CrossEntropyLoss(), parts)
    start = parameters_to_vector(model.parameters()).detach().clone()
    basis = torch.linalg.qr(torch.randn(len(start), 50)).Q

    def one_at_a_time() -> None:
        with torch.no_grad():
            for draw in torch.randn(draws, 50):
                vector_to_parameters(
                    start + basis @ draw / math.sqrt(len(start)), model.parameters()
                )
                nn.functional.cross_entropy(model(x), y)
        vector_to_parameters(start, model.parameters())

    return {
        "losses in a subspace, one perturbed model at a time": one_at_a_time,
        "losses in a subspace, LossLandscape": lambda: landscape.loss_in_subspace(
            basis, [1.0], draws=draws
        ),
    }
