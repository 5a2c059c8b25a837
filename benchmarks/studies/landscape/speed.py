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
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from tqdm import tqdm

from avalanche_dco.landscape import GradientSpectrum, LossLandscape
from benchmarks.studies.landscape.observations import SIGMAS, SUBSPACES, observation2
from benchmarks.studies.landscape.setups import SETUPS, Setup
from benchmarks.studies.landscape.study import evaluation_batches, trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m benchmarks landscape-speed``.

    :param parser: the command's parser.
    """
    add = parser.add_argument
    add("--data", choices=["digits", "mnist"], default="mnist")
    add("--data-root", type=Path, default=Path("data"), help="torchvision's root (default: data)")
    add("--draws", type=int, default=3000, help="perturbations per subspace")
    add("--samples-per-draw", type=int, default=512, help="training images per draw, `together`")
    add("--steps", type=int, default=6000, help="gradients after convergence")
    add("--max-steps", type=int, default=60000, help="training steps at most")
    add("--seed", type=int, default=0)
    add("--out", type=Path, help="also write the table to this CSV file")


def one_at_a_time(
    model: nn.Module, setup: Setup, spectrum: GradientSpectrum, draws: int, seed: int
) -> pd.DataFrame:
    """Estimate h as written in the paper, with the same draws as :func:`observation2`.

    :param model: the network at x*.
    :param setup: where the data is.
    :param spectrum: of the gradients after convergence.
    :param draws: perturbations per subspace.
    :param seed: seed of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    criterion = nn.CrossEntropyLoss()
    start = parameters_to_vector(model.parameters()).detach().clone()
    rows = []
    with torch.no_grad(), tqdm(total=draws * len(SUBSPACES), desc="one at a time") as bar:
        for last in SUBSPACES:
            basis = spectrum.subspace(last).to(start)
            normal = torch.randn(draws, basis.shape[1], generator=generator)
            losses: dict[float, list[Tensor]] = {sigma: [] for sigma in SIGMAS}
            for draw in normal:
                direction = basis @ draw / math.sqrt(len(start))
                for sigma in SIGMAS:
                    vector_to_parameters(start + sigma * direction, model.parameters())
                    losses[sigma].append(criterion(model(setup.inputs), setup.targets))
                bar.update()
            for sigma, values in losses.items():
                stacked = torch.stack(values).double()
                error = stacked.std().item() / math.sqrt(draws)
                mean = stacked.mean().item()
                rows.append({"s": last, "sigma": sigma, "h": mean, "standard_error": error})
    vector_to_parameters(start, model.parameters())
    return pd.DataFrame(rows)


def _row(way: str, losses: int, start: float) -> dict[str, object]:
    seconds = time.perf_counter() - start
    return {"way": way, "losses": losses, "seconds": seconds, "ms_per_loss": 1e3 * seconds / losses}


def run(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks landscape-speed``.

    :param args: the parsed options.
    """
    setup = SETUPS[args.data](args.data_root, None)
    model, spectrum, _ = trained(
        setup,
        seed=args.seed,
        window=1000,
        tolerance=2e-4,
        max_steps=args.max_steps,
        steps=args.steps,
    )
    model.eval()
    criterion = nn.CrossEntropyLoss()
    parts = LossLandscape(
        model, criterion, evaluation_batches(setup, args.samples_per_draw, args.seed)
    )
    total = args.draws * len(SUBSPACES) * len(SIGMAS)

    start = time.perf_counter()
    spread = observation2(parts, spectrum, draws=args.draws, seed=args.seed, spread_draws=True)
    rows = [_row("together", total, start)]
    start = time.perf_counter()
    parts.loss_in_subspace(
        spectrum.subspace(SUBSPACES[0]), SIGMAS, draws=args.draws, spread_draws=False
    )
    rows.append(_row("together, all data", args.draws * len(SIGMAS), start))
    start = time.perf_counter()
    single = one_at_a_time(model, setup, spectrum, args.draws, args.seed)
    rows.append(_row("one at a time", total, start))

    table = pd.DataFrame(rows)
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
        "faster in the median; "
        f"{torch.get_num_threads()} thread(s)"
    )
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(args.out, index=False, float_format="%.5g")
        merged = single.merge(spread, on=["s", "sigma"], suffixes=("_one_at_a_time", "_together"))
        merged.to_csv(args.out.with_name("speed_h.csv"), index=False, float_format="%.8g")
    return 0
