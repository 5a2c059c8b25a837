"""Section 3 of the paper: the cone, measured and drawn.

Trains the paper's small network on two classes to convergence, follows the optimizer further,
and writes the eigenvalues of G G^T, f(alpha, beta, v_i) and h(sigma, V_s) into the study
`landscape`, and Observations 1, 2 and 3 as figures.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from avalanche_dco.errors import SettingError
from avalanche_dco.landscape import GradientSpectrum, LossLandscape, trajectory_spectrum
from benchmarks.runs.kept import RESULTS, add_measurements, add_out_argument
from benchmarks.runs.provenance import provenance
from benchmarks.studies.landscape import figures, observations
from benchmarks.studies.landscape.setups import SETUPS, Setup, train_to_convergence

FIGURES = RESULTS.parent.parent / "docs" / "figures" / "landscape"
_NOT_RECORDED = {"data_root", "npz", "out", "figures", "command", "run"}  # paths of one machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", choices=sorted(SETUPS), required=True, help="which of the setups")
    add("--npz", type=Path, help="CIFAR-10 as one .npz file with x_train and y_train")
    add_out_argument(parser, "landscape")
    add("--figures", type=Path, default=FIGURES, help="folder (default: docs/figures/landscape)")
    add("--data-root", type=Path, default=Path("data"), help="torchvision's root (default: data)")
    add("--seed", type=int, default=0, help="of the network, the batches and the draws")
    add("--draws", type=int, default=3000, help="perturbations per subspace for h")
    add("--steps", type=int, default=6000, help="gradients after convergence")
    add("--tolerance", type=float, default=2e-4, help="fall of the loss that counts as saturated")
    add("--window", type=int, default=1000, help="training steps between two looks at the loss")
    add("--max-steps", type=int, default=60000, help="training steps at most")
    add(
        "--samples-per-draw",
        type=int,
        default=512,
        help="training images a draw of h is evaluated on, every image being used by as many "
        "draws as any other; 0: all of them (the same h, as many times slower)",
    )


def evaluation_batches(setup: Setup, samples: int, seed: int) -> list:
    """The training data in random parts of about ``samples`` images each; 0 for a single part."""
    if samples < 0:
        raise SettingError(f"--samples-per-draw {samples}: use 0 (all) or more.")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(setup.targets), generator=generator)
    parts = max(1, round(len(order) / samples)) if samples else 1
    return [(setup.inputs[part], setup.targets[part]) for part in order.tensor_split(parts)]


def trained(setup: Setup, args: argparse.Namespace) -> tuple[nn.Module, GradientSpectrum, dict]:
    """A converged network, the spectrum of its further gradients, and how training went."""
    torch.manual_seed(args.seed)
    model = setup.network()
    optimizer = setup.sgd(model)
    limits = {name: getattr(args, name) for name in ("seed", "window", "tolerance", "max_steps")}
    training = train_to_convergence(model, optimizer, setup, **limits)
    spectrum = trajectory_spectrum(
        model,
        nn.CrossEntropyLoss(),
        optimizer,
        setup.batches(args.seed + 1),
        steps=args.steps,
        progress=partial(tqdm, total=args.steps, desc="gradients", unit="step"),
    )
    spectrum.vector(observations.SUBSPACES[-1])  # too few gradients: fail now, not in minutes
    return model, spectrum, training


def run(args: argparse.Namespace) -> int:
    if args.npz is not None and args.data != "cifar10":
        raise SettingError(f"--npz is for --data cifar10, not for {args.data}.")
    seconds: dict[str, float] = {}
    setup = SETUPS[args.data](args.data_root, args.npz)
    batches = evaluation_batches(setup, args.samples_per_draw, args.seed)
    with _timed(seconds, "training and spectrum"):
        model, spectrum, training = trained(setup, args)
    if not training["converged"]:
        print(f"not converged after {training['steps']} steps: raise --max-steps or --tolerance")
    landscape = LossLandscape(model, nn.CrossEntropyLoss(), batches)
    tables = _tables(landscape, spectrum, args, seconds)
    facts = {
        "samples": len(setup.targets),
        "parameters": landscape.parameters.size,
        "rank": len(spectrum.eigenvalues),
        "mean_gradient_norm": spectrum.mean.norm().item(),
        "training": training,
        "seconds": seconds,
    }
    frame = pd.concat([table.assign(table=name) for name, table in tables.items()])
    add_measurements(args.out, "data", args.data, frame, _record(args) | facts)
    drawn = figures.draw(tables, setup.title, args.data, args.figures)
    print(summary(tables))
    print(f"numbers: {args.out}\nfigures: " + ", ".join(str(path) for path in drawn))
    return 0


def _record(args: argparse.Namespace) -> dict:
    given = {name: value for name, value in vars(args).items() if name not in _NOT_RECORDED}
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())
    command = f"python -m benchmarks landscape {flags}"
    return provenance(torch.get_num_threads()) | {"command": command} | given


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[part] = round(time.perf_counter() - start, 2)


def _tables(
    landscape: LossLandscape,
    spectrum: GradientSpectrum,
    args: argparse.Namespace,
    seconds: dict[str, float],
) -> dict[str, pd.DataFrame]:
    tables = {"spectrum": observations.eigenvalues(spectrum)}
    with _timed(seconds, "observation 1"):
        tables["observation1"] = observations.observation1(landscape, spectrum)
    with _timed(seconds, "observation 2"):
        tables["observation2"] = observations.observation2(
            landscape,
            spectrum,
            draws=args.draws,
            seed=args.seed,
            spread_draws=args.samples_per_draw > 0,
        )
    with _timed(seconds, "observation 3"):
        tables["axis"] = axis = observations.axis(landscape, spectrum)
        last, level = observations.alpha_of_descent(axis), 2 * float(axis["loss"].iloc[0])
        tables["cone"] = observations.cone(landscape, spectrum, alpha_max=last, level=level)
        tables["observation3"] = observations.observation3(landscape, spectrum, tables["cone"])
    return tables


def summary(tables: dict[str, pd.DataFrame]) -> str:
    """The three observations in numbers, as text."""
    near, far = (
        observations.mean_rise(
            observations.within(tables["observation3"], tables["cone"], half_widths),
            ["index", "alpha"],
        ).unstack("alpha")
        for half_widths in (1.5, 3.0)
    )
    cone = tables["cone"].set_index(["index", "alpha"])
    along = tables["spectrum"].set_index("index")["cosine"].abs()
    parts = {
        "Observation 1: mean rise of the loss for |beta| <= 3, by index": observations.mean_rise(
            tables["observation1"], ["index"]
        )
        .to_frame("rise")
        .T,
        "Observation 2: h(sigma, V_s), by s and sigma": tables["observation2"].pivot_table(
            index="s", columns="sigma", values="h"
        ),
        "Observation 3: mean rise of the loss up to 1.5 half-widths of the cone at x*": near,
        "The same up to 3 half-widths": far,
        "Width of the cone (loss below twice that at x*), by index and alpha": (
            cone["beta_minus"] + cone["beta_plus"]
        ).unstack("alpha"),
    }
    text = "\n".join(f"\n{title}\n{table.to_string()}" for title, table in parts.items())
    for index in along.index[along > observations.ON_AXIS][:1]:
        text += (
            f"\n\nv_{index} is the averaged gradient itself (cosine {along[index]:.3f}): "
            "the cone's axis, along which it is open on one side."
        )
    return text
