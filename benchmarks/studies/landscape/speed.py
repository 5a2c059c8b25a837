"""Time h for many perturbed models at once against one forward pass at a time, side by side.

Same network, subspaces, sigmas and number of draws, one run. `one at a time` writes every perturbed
vector into the model and passes all the training data through it. `together` is what
`python -m benchmarks landscape` does: the draws are shared out among parts of the data, which is an
unbiased estimate of the same h; its standard error is compared too. `together, all data` passes all
the data through every perturbed model under vmap, for the first subspace only.
"""

import argparse
import math
import time
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from tqdm import tqdm

from avalanche_dco.landscape import GradientSpectrum, LossLandscape
from benchmarks.studies.landscape.observations import SIGMAS, SUBSPACES, observation2
from benchmarks.studies.landscape.setups import SETUPS, Setup
from benchmarks.studies.landscape.study import (
    add_measurement_arguments,
    evaluation_batches,
    trained,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", choices=["digits", "mnist"], default="mnist")
    add_measurement_arguments(parser)
    parser.add_argument("--out", type=Path, help="also write the table to this CSV file")


def one_at_a_time(
    model: nn.Module, setup: Setup, spectrum: GradientSpectrum, draws: int, seed: int
) -> pd.DataFrame:
    """Estimate h as written in the paper, with the same draws as :func:`observation2`."""
    generator = torch.Generator().manual_seed(seed)
    start = parameters_to_vector(model.parameters()).detach().clone()
    tables = []
    with torch.no_grad(), tqdm(total=draws * len(SUBSPACES), desc="one at a time") as bar:
        for last in SUBSPACES:
            basis = spectrum.subspace(last).to(start)
            losses = torch.zeros(draws, len(SIGMAS), dtype=torch.float64)
            for row, draw in enumerate(torch.randn(draws, basis.shape[1], generator=generator)):
                direction = basis @ draw / math.sqrt(len(start))
                for column, sigma in enumerate(SIGMAS):
                    vector_to_parameters(start + sigma * direction, model.parameters())
                    outputs = model(setup.inputs)
                    losses[row, column] = nn.functional.cross_entropy(outputs, setup.targets)
                bar.update()
            error = losses.std(0) / math.sqrt(draws)
            columns = {"sigma": SIGMAS, "h": losses.mean(0), "standard_error": error}
            tables.append(pd.DataFrame({"s": last, **columns}))
    vector_to_parameters(start, model.parameters())
    return pd.concat(tables, ignore_index=True)


def run(args: argparse.Namespace) -> int:
    setup = SETUPS[args.data](args.data_root, None)
    batches = evaluation_batches(setup, args.samples_per_draw, args.seed)
    model, spectrum, _ = trained(setup, args)
    model.eval()
    landscape = LossLandscape(model, nn.CrossEntropyLoss(), batches)
    first = spectrum.subspace(SUBSPACES[0])
    times = [time.perf_counter()]
    spread = observation2(landscape, spectrum, draws=args.draws, seed=args.seed, spread_draws=True)
    times.append(time.perf_counter())
    landscape.loss_in_subspace(first, SIGMAS, draws=args.draws, spread_draws=False)
    times.append(time.perf_counter())
    single = one_at_a_time(model, setup, spectrum, args.draws, args.seed)
    times.append(time.perf_counter())

    each = args.draws * len(SIGMAS)
    table = pd.DataFrame(
        {
            "way": ["together", "together, all data", "one at a time"],
            "losses": [each * len(SUBSPACES), each, each * len(SUBSPACES)],
            "seconds": pd.Series(times).diff().to_numpy()[1:],
        }
    )
    table["ms_per_loss"] = 1e3 * table["seconds"] / table["losses"]
    table["times_faster"] = table["ms_per_loss"].iloc[-1] / table["ms_per_loss"]
    joint = (spread["standard_error"] ** 2 + single["standard_error"] ** 2) ** 0.5
    apart = ((spread["h"] - single["h"]) / joint).abs()
    error = spread["standard_error"] / single["standard_error"]
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    print(
        f"h of the two ways differs by at most {apart.max():.2f} joint standard errors; the "
        f"standard error of `together` is {error.median():.2f} times that of `one at a time` in "
        f"the median of {len(error)} cases (at most {error.max():.2f}), so that for the same "
        f"standard error it is {(table['times_faster'].iloc[0] / error**2).median():.3g} times "
        f"faster in the median; {torch.get_num_threads()} thread(s)"
    )
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(args.out, index=False, float_format="%.5g")
        merged = single.merge(spread, on=["s", "sigma"], suffixes=("_one_at_a_time", "_together"))
        merged.to_csv(args.out.with_name("speed_h.csv"), index=False, float_format="%.8g")
    return 0
