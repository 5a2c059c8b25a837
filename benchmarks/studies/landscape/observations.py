"""The paper's three observations as tables, and what decides whether they hold.

``landscape`` is the loss around x*, ``spectrum`` that of the gradients after convergence, and
``axis_table`` and ``cone_table`` are what :func:`axis` and :func:`cone` returned.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from avalanche_dco.landscape import GradientSpectrum, LossLandscape

LINE_INDICES = (1, 2, 5, 10, 20, 50, 100, 200, 400)
CONE_INDICES = (1, 10, 50, 200)
SUBSPACES = (50, 100, 150, 200, 250, 300, 350, 400)
SIGMAS = (1.0, 2.0, 5.0, 10.0, 20.0)
ON_AXIS = 0.95  # |cosine| with the averaged gradient above which v_i is the axis itself
BETAS = torch.linspace(-3, 3, 61, dtype=torch.float64)


def eigenvalues(spectrum: GradientSpectrum) -> pd.DataFrame:
    """Eigenvalues of G G^T / n, and the cosine of every eigenvector with the averaged gradient."""
    cosine = spectrum.eigenvectors.T @ spectrum.mean / spectrum.mean.norm()
    values = spectrum.eigenvalues / spectrum.count
    index = range(1, len(values) + 1)
    return pd.DataFrame({"index": index, "eigenvalue": values, "cosine": cosine})


def axis(landscape: LossLandscape, spectrum: GradientSpectrum) -> pd.DataFrame:
    """The loss along -ḡ, on the cone's axis."""
    length = torch.cat(
        [torch.zeros(1, dtype=torch.float64), torch.logspace(-2, 1.5, 71, dtype=torch.float64)]
    )
    alphas = length / spectrum.mean.norm()
    losses = landscape.loss_at(-alphas[:, None], spectrum.mean[None])
    return pd.DataFrame({"alpha": alphas, "length": length, "loss": losses})


def alpha_of_descent(axis_table: pd.DataFrame, share: float = 0.9) -> float:
    """The least alpha that has done a share of the descent from x* to the axis's least loss."""
    losses = axis_table["loss"].to_numpy()
    enough = losses <= losses[0] - share * (losses[0] - losses.min())
    return float(axis_table["alpha"].to_numpy()[enough.argmax()])


def observation1(landscape: LossLandscape, spectrum: GradientSpectrum) -> pd.DataFrame:
    """f(0, beta, v_i) for eigenvectors of several indices."""
    tables = []
    for index in tqdm(LINE_INDICES, desc="observation 1", unit="vector"):
        losses = landscape.loss_on_plane(
            spectrum.mean, spectrum.vector(index), torch.zeros(1, dtype=torch.float64), BETAS
        )
        tables.append(pd.DataFrame({"index": index, "beta": BETAS, "loss": losses[0]}))
    return pd.concat(tables, ignore_index=True)


def observation2(
    landscape: LossLandscape,
    spectrum: GradientSpectrum,
    *,
    draws: int,
    seed: int,
    spread_draws: bool,
) -> pd.DataFrame:
    """h(sigma, V_s) for eight subspaces of 50 eigenvectors and five sigmas."""
    generator = torch.Generator().manual_seed(seed)
    tables = []
    total = draws * len(SUBSPACES)
    with tqdm(total=total, desc="observation 2", unit="draw") as bar:
        for last in SUBSPACES:
            estimate = landscape.loss_in_subspace(
                spectrum.subspace(last),
                SIGMAS,
                draws=draws,
                spread_draws=spread_draws,
                generator=generator,
                progress=bar.update,
            )
            columns = {"h": estimate.mean, "standard_error": estimate.standard_error}
            tables.append(pd.DataFrame({"s": last, "sigma": SIGMAS, **columns}))
    return pd.concat(tables, ignore_index=True)


def cone(
    landscape: LossLandscape, spectrum: GradientSpectrum, *, alpha_max: float, level: float
) -> pd.DataFrame:
    """How far one may go along ±v_i before the loss exceeds a level, as alpha grows."""
    alphas = torch.linspace(0, alpha_max, 9, dtype=torch.float64)
    tables = []
    for index in tqdm(CONE_INDICES, desc="cone", unit="vector"):
        ways = landscape.cone_boundary(spectrum.mean, spectrum.vector(index), alphas, level=level)
        columns = {"beta_minus": ways[:, 0], "beta_plus": ways[:, 1]}
        tables.append(pd.DataFrame({"index": index, "alpha": alphas, "level": level, **columns}))
    return pd.concat(tables, ignore_index=True)


def observation3(
    landscape: LossLandscape, spectrum: GradientSpectrum, cone_table: pd.DataFrame
) -> pd.DataFrame:
    """f(alpha, beta, v_i) for five alphas; beta up to three half-widths of the cone at x*."""
    alphas = torch.from_numpy(np.sort(cone_table["alpha"].unique())[::2].copy())
    tables = []
    for index in tqdm(CONE_INDICES, desc="observation 3", unit="vector"):
        betas = torch.linspace(-3, 3, 121, dtype=torch.float64) * half_width(cone_table, index)
        losses = landscape.loss_on_plane(spectrum.mean, spectrum.vector(index), alphas, betas)
        grid = torch.cartesian_prod(alphas, betas)
        columns = {"alpha": grid[:, 0], "beta": grid[:, 1], "loss": losses.flatten()}
        tables.append(pd.DataFrame({"index": index, **columns}))
    return pd.concat(tables, ignore_index=True)


def half_width(cone_table: pd.DataFrame, index: int) -> float:
    """Half the width of the cone along v_i at x* (alpha = 0).

    A side on which the cone is open, as along its axis, is left out; 100 if both are.
    """
    start = cone_table[(cone_table["index"] == index) & (cone_table["alpha"] == 0)].iloc[0]
    walls = [wall for wall in (start["beta_minus"], start["beta_plus"]) if np.isfinite(wall)]
    return float(np.mean(walls)) if walls else 100.0


def within(table: pd.DataFrame, cone_table: pd.DataFrame, half_widths: float) -> pd.DataFrame:
    """The rows of Observation 3 with beta up to so many half-widths of the cone at x*."""
    reach = table["index"].map(lambda index: half_widths * half_width(cone_table, index))
    return table[table["beta"].abs() <= reach * (1 + 1e-6)]


def mean_rise(table: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Mean over beta of f(alpha, beta, v_i) - f(alpha, 0, v_i): how steep the curve is."""

    def rise(curve: pd.DataFrame) -> float:
        losses = curve["loss"].to_numpy()
        return float((losses - losses[curve["beta"].abs().to_numpy().argmin()]).mean())

    return table.groupby(list(by))[["beta", "loss"]].apply(rise)
