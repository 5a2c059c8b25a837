r"""Error against cost: which part of DCO's work buys how much.

Examples:
  python -m benchmarks cost-of-dco --benchmark split-mnist --data-root ~/data
  python -m benchmarks cost-of-dco --benchmark permuted-mnist --variants default every-32 \
      --data-root ~/data

Every variant of DCO but the default and the paper's changes one thing of sampled directions with a
strength of 100; DCO-COMP has its default, and directions that are trained. Errors are those on a
validation split: a tenth of each class is held out of the training data. Networks, epochs and
learning rates are the preset paper's; of Permuted MNIST the first three tasks are learned, for
three epochs each. Times are the processor's, of one thread, over those of Naive with the same seed.

Writes the study `cost-of-dco` and docs/figures/cost-of-dco.svg. The variant `paper`, half an hour
per seed, is measured only if it is named. Where it is not, the figure has the paper's setting with
its kept results on test data (study `table-1`), whose time is that of a clock.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from avalanche.training.plugins import EvaluationPlugin
from matplotlib.figure import Figure

from avalanche_dco import DCOCompPlugin, DCOPlugin, seed_everything
from avalanche_dco.core.curvature import CurvatureEstimator
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors
from avalanche_dco.core.sampled import SampledDirections
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import error_metrics
from avalanche_dco.plots.style import look_of
from avalanche_dco.plugins.support.gradients import LogitSampler, assign, outputs_of, trainable
from avalanche_dco.plugins.support.sampling import BatchStream
from benchmarks.methods import Method, get_method, with_plugin
from benchmarks.presets import PRESETS
from benchmarks.report.figures import save_svg
from benchmarks.report.overview import finish_panel
from benchmarks.report.study_tables import against_naive
from benchmarks.runs.kept import (
    RESULTS,
    add_out_argument,
    read_measurements,
    read_study,
    study_path,
    write_measurements,
)
from benchmarks.runs.learning import make_strategy
from benchmarks.runs.provenance import provenance
from benchmarks.runs.training import Training
from benchmarks.streams.catalogue import TASKS, Data, classes_of
from benchmarks.streams.tensors import first_experiences, held_out

_FIGURE = RESULTS.parent.parent / "docs" / "figures" / "cost-of-dco.svg"
_SHORTER: dict[str, dict[str, Any]] = {"permuted-mnist": {"epochs": 3, "experiences": 3}}
_SAMPLES = 1000


class FactoredDCO(DCOPlugin):
    """Trains directions on gradients of single samples, which are factored.

    With m gradients of rank one as directions themselves, codes and their gradients are products
    of small matrices (:meth:`Directions.cross`): m (r + c) k operations per parameter instead of
    m r c k.
    """

    starts_from_samples = False
    updates = 50
    decay = 0.99

    def _learn_directions(self, strategy: Any, stream: Any, x_star: Any) -> Any:
        constrained = self._constrained(strategy)
        found = _sampled(strategy, constrained, 4 * self.k, x_star)
        gradients = found.like_trained().directions
        if self.starts_from_samples:
            start = _sampled(strategy, constrained, self.k, x_star).like_trained().directions
        else:
            start = Directions.random(constrained, self.k)
        tensors = [t.requires_grad_() for f in start.factors.values() for t in (f.U, f.V)]
        optimizer = torch.optim.Adam(tensors, lr=self.autoencoder_lr)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.decay)
        with torch.enable_grad():
            for _ in range(self.updates):
                batch = gradients.select(torch.randperm(gradients.k)[: self.gradients_per_update])
                energy = batch.gram().diagonal().sum()
                C = start.cross(batch)
                lost = ((start.gram() @ C - 2 * C) * C).sum() / energy
                optimizer.zero_grad()
                (self.rho * lost).backward()
                optimizer.step()
                schedule.step()
        for f in start.factors.values():
            f.U, f.V = f.U.detach(), f.V.detach()
        return start, torch.ones(self.k)


class SampledAndFitted(FactoredDCO):
    """The same from sampled directions on, with fewer updates."""

    starts_from_samples = True
    updates = 10


class EigenDCO(DCOPlugin):
    """The k largest eigendirections of each layer's curvature, from DCO-KRON's factors."""

    def _learn_directions(self, strategy: Any, stream: Any, x_star: Any) -> Any:
        constrained = self._constrained(strategy)
        assign(trainable(strategy.model), x_star)
        strategy.model.eval()
        estimator = CurvatureEstimator(strategy.model, constrained)
        chosen = torch.randperm(len(strategy.adapted_dataset))[:_SAMPLES].tolist()
        batches = BatchStream(strategy.adapted_dataset.subset(chosen), 32)
        for batch in itertools.islice(batches, _SAMPLES // 32):
            estimator.observe(partial(outputs_of, strategy, batch), 32)
        factors = {}
        for name, layer in estimator.finish().layers.items():
            (s, U), (a, V) = (torch.linalg.eigh(part[0]) for part in (layer.S, layer.A))
            weights = s.clamp(min=0)[:, None] * a.clamp(min=0)
            largest = weights.flatten().topk(min(self.k, weights.numel()))
            i, j = largest.indices // len(a), largest.indices % len(a)
            roots = largest.values.pow(0.25)
            factors[name] = Factors(U[:, i] * roots, V[:, j] * roots, constrained[name].shape)
        return Directions(self.k, factors), torch.ones(self.k)


def _sampled(strategy: Any, constrained: Any, k: int, x_star: Any) -> Any:
    strategy.model.eval()
    chosen = torch.randperm(len(strategy.adapted_dataset))[:k].tolist()
    stream = iter(BatchStream(strategy.adapted_dataset.subset(chosen), 1))
    sampled = SampledDirections(constrained, k)
    LogitSampler(strategy, stream, constrained, k, x_star=x_star).sample(sampled.add)
    return sampled.finish()


@dataclass(frozen=True)
class Variant:
    """A plugin and its settings.

    :param title: in words.
    :param settings: of the plugin, where they differ from its defaults.
    :param plugin: the plugin.
    """

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    plugin: type[DCOPlugin | DCOCompPlugin] = DCOPlugin


_SAMPLED = {"directions": "sampled", "dco_lambda": 100.0}
_TRAINED = {"directions": "trained", "dco_lambda": 100.0, "gradients_per_update": 16}
VARIANTS = {
    "default": Variant("the default"),
    "sampled": Variant("sampled directions", _SAMPLED),
    "every-1": Variant("penalty after every update", _SAMPLED | {"penalty_every": 1}),
    "every-32": Variant("penalty after 32 updates", _SAMPLED | {"penalty_every": 32}),
    "push-2": Variant("push of 2 epochs", _SAMPLED | {"push_epochs": 2}),
    "push-10": Variant("push of 10 epochs", _SAMPLED | {"push_epochs": 10}),
    "k-200": Variant("200 directions", _SAMPLED | {"k": 200}),
    "coupled": Variant("coupled layers", _SAMPLED | {"couple_layers": True}),
    "eigen": Variant("closed-form directions", {"dco_lambda": 100.0}, EigenDCO),
    "factored": Variant("50 factored updates", _SAMPLED, FactoredDCO),
    "sampled-factored": Variant("sampled, then 10 factored updates", _SAMPLED, SampledAndFitted),
    "trained-50": Variant("50 updates with m = 16", _TRAINED | {"autoencoder_updates": 50}),
    "trained-200": Variant("200 updates with m = 16", _TRAINED),
    "trained-m-4": Variant("50 updates with m = 4",
                           _TRAINED | {"autoencoder_updates": 50, "gradients_per_update": 4}),
    "trained-decay": Variant("50 updates with m = 16, rate times 0.99",
                             _TRAINED | {"autoencoder_updates": 50, "autoencoder_lr_decay": 0.99}),
    "trained-stop": Variant("updates with m = 16 until the error stops to fall",
                            _TRAINED | {"autoencoder_tolerance": 0.05}),
    "comp": Variant("DCO-COMP", plugin=DCOCompPlugin),
    "comp-trained": Variant("DCO-COMP, trained with m = 16",
                            _TRAINED | {"autoencoder_updates": 50, "compression_updates": 20},
                            DCOCompPlugin),
    (_PAPER := "paper"): Variant("the paper's setting"),
}  # fmt: skip
_LOOKS = {"default": (1, "o", 30), "comp": (3, "o", 30), "comp-trained": (3, "o", 30),
          _PAPER: (2, "*", 90)}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--benchmark", choices=["split-mnist", "permuted-mnist"], required=True)
    cheap = [name for name in VARIANTS if name != _PAPER]
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=cheap)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--data-root", type=Path, required=True, help="folder that holds MNIST")
    add_out_argument(parser, "cost-of-dco")


def run(args: argparse.Namespace) -> int:
    """Measure what is not in the study yet, and draw the figure."""
    torch.set_num_threads(1)
    for seed, name in itertools.product(args.seeds, ["naive", *args.variants]):
        rows: list[dict[Any, Any]] = []
        config = provenance(1)
        if args.out.exists():
            frame, config = read_measurements(args.out)
            rows = frame.to_dict("records")
        key = {"benchmark": args.benchmark, "variant": name, "seed": seed}
        if any(key.items() <= row.items() for row in rows):
            continue
        training = PRESETS["default"][args.benchmark].training
        training = replace(training, **_SHORTER.get(args.benchmark, {}))
        title = "Naive" if name == "naive" else VARIANTS[name].title
        found = measured(args.benchmark, name, seed, training, args.data_root)
        rows.append(key | {"what": title} | found)
        write_measurements(args.out, pd.DataFrame(rows), config)
        print(rows[-1], flush=True)
    if args.out == study_path("cost-of-dco"):
        save_svg(_FIGURE, plot, read_measurements(args.out)[0])
    return 0


def measured(
    benchmark: str, name: str, seed: int, training: Training, data_root: Path
) -> dict[str, float]:
    """Errors in % and processor seconds of one run."""
    task = TASKS[benchmark]
    stream = held_out(task.build(seed, Data(data_root)), seed)
    classes = classes_of(stream)
    if training.experiences is not None:
        stream = first_experiences(stream, training.experiences)
    seed_everything(seed)
    settings: Mapping[str, Any] = {}
    method = get_method("naive")
    if name != "naive":
        variant = VARIANTS[name]
        method = Method("dco", with_plugin(variant.plugin), variant.plugin)
        settings = DCOPlugin.published(benchmark) if name == _PAPER else variant.settings
    strategy = make_strategy(
        method,
        settings,
        task.model(classes, training.precision),
        training,
        evaluator=EvaluationPlugin(error_metrics(), loggers=[PandasLogger()]),
    )
    seconds = 0.0
    for experience in stream.train_stream:
        start = time.process_time()
        strategy.train(experience)
        seconds += time.process_time() - start
        strategy.eval(stream.test_stream)
    metrics = strategy.evaluator.loggers[0].to_frame()
    values = metrics[metrics["value"].notna()].groupby("metric")["value"].agg(list)
    names = {"average": "AverageError", "fwi": "FWIError", "bwt": "BWTError"}
    return {name: 100 * values[m][-1] for name, m in names.items()} | {"seconds": seconds}


def _paper_on_test_data(benchmark: str) -> dict[str, Any]:
    """The average test error of the paper's setting, and its time over Naive's, as kept."""
    outcomes = [
        {"method": run.method, **run.outcome}
        for run in read_study(study_path("table-1")).runs.values()
        if run.benchmark == benchmark
    ]
    means = pd.DataFrame(outcomes).groupby("method")[["average", "seconds"]].mean()
    dco, naive = means.loc["dco"], means.loc["naive"]
    return {
        "variant": _PAPER,
        "what": "the paper's setting (test data)",
        "average": dco["average"],
        "ratio": dco["seconds"] / naive["seconds"],
    }


def plot(frame: pd.DataFrame) -> Figure:
    """Error over time, one panel per benchmark.

    :param frame: the study.
    """
    shown = against_naive(frame).reset_index()
    shown = shown[shown["variant"] != "naive"]
    benchmarks = list(shown["benchmark"].unique())
    figure = Figure(figsize=(5.5 * len(benchmarks), 4.4), layout="constrained")
    panels = figure.subplots(1, len(benchmarks), squeeze=False)[0]
    for axes, benchmark in zip(panels, benchmarks, strict=True):
        rows = shown[shown["benchmark"] == benchmark].to_dict("records")
        points = [(row["ratio"], row["average"]) for row in rows]
        if benchmark not in _SHORTER and all(row["variant"] != _PAPER for row in rows):
            rows.append(_paper_on_test_data(benchmark))
        for row in rows:
            point = row["ratio"], row["average"]
            color, marker, size = _LOOKS.get(row["variant"], (0, "o", 30))
            axes.scatter(*point, color=look_of(color)["color"], marker=marker, s=size)
            axes.annotate(row["what"], point, (4, 3), textcoords="offset points", fontsize=7)
        finish_panel(axes, benchmark, points)
        axes.set(xlabel="Training time over Naive's", ylabel="Average validation error (%)")
    return figure
