r"""The supplement's one-dimensional example: F along the trajectory of SGD, and at the optimum.

Sampled are f_1 = 2 (x-1)^2 and f_2 = 2 (x+1)^2 with probability 0.1 each, f_3 = 5 x^2 with 0.8;
F is the mean squared gradient along x <- x - eta * gradient. With eta = 0 the point stays at the
optimum and F is the Fisher information; with eta > 0 it is the one-dimensional G G^T.
"""

import argparse

import pandas as pd
import torch
from tqdm import tqdm

from avalanche_dco.errors import SettingError
from benchmarks.runs.kept import add_out_argument, write_measurements
from benchmarks.runs.provenance import provenance

ETAS = (0.08, 0.05, 0.01, 0.0)
PAPER = {0.08: 5.62, 0.05: 4.65, 0.01: 3.70, 0.0: 3.53}
# gradient = slope * x + offset, for f_1, f_2, f_3
_SLOPES = torch.tensor([4.0, 4.0, 10.0], dtype=torch.float64)
_OFFSETS = torch.tensor([-4.0, 4.0, 0.0], dtype=torch.float64)
_PROBABILITIES = torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)


def analytic(eta: float) -> float:
    """F in the stationary state: 3.2 + 83.2 v with the stationary variance v of x."""
    if eta == 0:
        return 3.2
    contraction = 0.2 * (1 - 4 * eta) ** 2 + 0.8 * (1 - 10 * eta) ** 2
    return 3.2 + 83.2 * 3.2 * eta**2 / (1 - contraction)


def sampled(
    eta: float, *, runs: int, steps: int, burn_in: int, generator: torch.Generator
) -> tuple[float, float]:
    """F by simulation and its standard error, from independent runs that start at x = 0.

    :param burn_in: steps that take each run to the stationary state, before gradients are averaged.
    """
    x = torch.zeros(runs, dtype=torch.float64)
    total = torch.zeros_like(x)
    for step in range(burn_in + steps):
        chosen = torch.multinomial(_PROBABILITIES, runs, replacement=True, generator=generator)
        gradient = _SLOPES[chosen] * x + _OFFSETS[chosen]
        if step >= burn_in:
            total += gradient.square()
        x -= eta * gradient
    per_run = total / steps
    return per_run.mean().item(), (per_run.std() / runs**0.5).item()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=1000, help="independent runs")
    parser.add_argument("--steps", type=int, default=10000, help="gradients averaged per run")
    parser.add_argument("--burn-in", type=int, default=200, help="steps before these")
    parser.add_argument("--seed", type=int, default=0)
    add_out_argument(parser, "fisher-example")


def run(args: argparse.Namespace) -> int:
    if args.runs < 2 or args.steps < 1 or args.burn_in < 0:
        raise SettingError(
            "a standard error needs --runs 2 or more, --steps 1 or more, --burn-in 0 or more."
        )
    sizes = {name: getattr(args, name) for name in ("runs", "steps", "burn_in")}
    generator = torch.Generator().manual_seed(args.seed)
    results = [sampled(eta, **sizes, generator=generator) for eta in tqdm(ETAS, unit="eta")]
    table = pd.DataFrame(results, columns=["sampled", "standard_error"])
    table.insert(0, "eta", ETAS)
    table["analytic"] = table["eta"].map(analytic)
    table["errors_off"] = (table["sampled"] - table["analytic"]) / table["standard_error"]
    table["paper"] = table["eta"].map(PAPER)
    table["paper_over_analytic"] = table["paper"] / table["analytic"]
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4f}"))
    write_measurements(args.out, table, provenance() | sizes | {"seed": args.seed})
    return 0
