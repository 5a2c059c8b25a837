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
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from avalanche.training.plugins import EvaluationPlugin
from matplotlib.figure import Figure

from avalanche_dco import DCOPlugin, seed_everything
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import error_metrics
from avalanche_dco.plots.style import look_of
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
from benchmarks.studies.dco_variants import PAPER, VARIANTS

_FIGURE = RESULTS.parent.parent / "docs" / "figures" / "cost-of-dco.svg"
_SHORTER: dict[str, dict[str, Any]] = {"permuted-mnist": {"epochs": 3, "experiences": 3}}
_LOOKS = {"default": (1, "o", 30), "comp": (3, "o", 30), "comp-trained": (3, "o", 30),
          PAPER: (2, "*", 90)}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--benchmark", choices=["split-mnist", "permuted-mnist"], required=True)
    cheap = [name for name in VARIANTS if name != PAPER]
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
        settings = DCOPlugin.published(benchmark) if name == PAPER else variant.settings
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
        "variant": PAPER,
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
    figure = Figure(figsize=(4.6 * len(benchmarks), 5.4), layout="constrained")
    panels = figure.subplots(1, len(benchmarks), squeeze=False)[0]
    drawn: dict[tuple[int, str], Any] = {}
    for axes, benchmark in zip(panels, benchmarks, strict=True):
        rows = shown[shown["benchmark"] == benchmark].to_dict("records")
        points = [(row["ratio"], row["average"]) for row in rows]
        if benchmark not in _SHORTER and all(row["variant"] != PAPER for row in rows):
            rows.append(_paper_on_test_data(benchmark))
        for row in rows:
            point = row["ratio"], row["average"]
            number = 1 + list(VARIANTS).index(row["variant"])
            color, marker, size = _LOOKS.get(row["variant"], (0, "o", 30))
            drawn[number, row["what"]] = axes.scatter(
                *point, color=look_of(color)["color"], marker=marker, s=size
            )
            axes.annotate(str(number), point, (4, 3), textcoords="offset points", fontsize=8)
        finish_panel(axes, benchmark, points)
        axes.set(
            yscale="linear",  # too narrow a range for a logarithmic one
            xlabel="Training time over Naive's",
            ylabel="Average validation error (%)",
        )
    figure.legend(
        [drawn[key] for key in sorted(drawn)],
        [f"{number}: {what}" for number, what in sorted(drawn)],
        loc="outside lower center",
        ncols=3,
        fontsize=8,
    )
    return figure
