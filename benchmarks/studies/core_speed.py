"""Measure the tensor core against the machine's matrix products and against autograd.

Ratios of times taken in one run (MLP-256, the paper's k and m by default):

- the rate of an autoencoder update over that of as much work in large single-precision matrix
  products, and its time against the paper's encoder and decoder with autograd in three forms: the
  convolutions of its supplement, the matrices of its Section 4.2, and a careful one that computes
  diagonals only;
- the penalty with its gradient over the two matrix products it consists of.

Each pair is measured alternately, several times, and the medians are compared. Only an idle
machine gives figures that mean anything.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d

from avalanche_dco.core.autoencoder import DirectionAutoencoder
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import matrix_shape
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.models import mlp_256
from benchmarks.studies.timing import add_timing_arguments, alternately, prepare, show

_SIDE = 2048  # of the square matrices whose product gives the machine's rate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--k", type=int, default=1000, help="directions (default 1000)")
    parser.add_argument("--m", type=int, default=128, help="gradients per update (default 128)")
    parser.add_argument("--tasks", type=int, default=4, help="past tasks in the penalty")
    add_timing_arguments(parser, repeats=5)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    x = {name: p.detach() for name, p in mlp_256().named_parameters()}
    figures = {name: getattr(args, name) for name in ("threads", "k", "m", "tasks")}
    figures |= measure_autoencoder(x, args.k, args.m, args.repeats)
    show(figures | measure_penalty(x, args.k * args.tasks, args.repeats), args.out)
    return 0


def measure_autoencoder(x: dict[str, Tensor], k: int, m: int, repeats: int) -> dict[str, float]:
    """One update against the machine's rate and against the same update with autograd."""
    some = [{name: 1e-2 * torch.randn_like(t) for name, t in x.items()} for _ in range(8)]
    autoencoder = DirectionAutoencoder(Directions.random(x, k))
    rivals = {
        name: AutogradAutoencoder(Directions.random(x, k), *form) for name, form in FORMS.items()
    }
    square = torch.randn(_SIDE, _SIDE)

    def gradients() -> Iterator[dict[str, Tensor]]:
        return itertools.islice(itertools.cycle(some), m)

    def update() -> None:
        for gradient in gradients():
            autoencoder.observe(gradient)
        autoencoder.update()

    # Two matrix products per gradient, 2 k d operations each: what the formula cannot do without.
    work = 2 * 2 * k * sum(t.numel() for t in x.values()) * m
    # As much work in square products, as a short burst runs faster than the machine can sustain.
    products = max(1, round(work / (2 * _SIDE**3)))

    def multiply() -> None:
        for _ in range(products):
            square @ square

    multiplied, streamed = alternately(repeats, multiply, update)
    ours, *theirs = alternately(
        1, update, *(lambda rival=rival: rival.update(gradients()) for rival in rivals.values())
    )
    rate, sgemm = work / streamed, products * 2 * _SIDE**3 / multiplied
    return {
        "sgemm_gflops": sgemm / 1e9,
        "update_seconds": streamed,
        "update_gflops": rate / 1e9,
        "update_share_of_sgemm": rate / sgemm,
        **{f"{name}_seconds": t for name, t in zip(rivals, theirs, strict=True)},
        **{f"speedup_over_{name}": t / ours for name, t in zip(rivals, theirs, strict=True)},
    }


# Encoder and decoder of one parameter for a batch of gradients (n x r x c), in three forms.


def _encode_convolutions(G: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """The supplement: a 1 x c convolution, then an r x 1 one, per direction."""
    rows = conv2d(G[:, None], V.T[:, None, None, :])  # n x k x r x 1
    return conv2d(rows, U.T[:, None, :, None], groups=U.shape[1])[:, :, 0, 0]


def _decode_convolutions(codes: Tensor, U: Tensor, V: Tensor) -> Tensor:
    rows = conv_transpose2d(codes[:, :, None, None], U.T[:, None, :, None], groups=U.shape[1])
    return conv_transpose2d(rows, V.T[:, None, None, :])[:, 0]


def _encode_matrices(G: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """Section 4.2 to the letter: diag(U^T M V), with the k x k matrix."""
    return (U.T @ G @ V).diagonal(dim1=1, dim2=2)


def _decode_matrices(codes: Tensor, U: Tensor, V: Tensor) -> Tensor:
    return U @ torch.diag_embed(codes) @ V.T


def _encode_diagonals(G: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """The best one can write with autograd: nothing off the diagonal is computed."""
    return ((G @ V) * U).sum(1)


def _decode_diagonals(codes: Tensor, U: Tensor, V: Tensor) -> Tensor:
    return (U * codes[:, None, :]) @ V.T


Form = Callable[[Tensor, Tensor, Tensor], Tensor]
FORMS: dict[str, tuple[Form, Form, int]] = {
    "convolutions": (_encode_convolutions, _decode_convolutions, 8),
    "matrices": (_encode_matrices, _decode_matrices, 1),
    "diagonals": (_encode_diagonals, _decode_diagonals, 8),
}
"""Encoder, decoder, and gradients per batch: a decoder's output is as large as all of them."""


class AutogradAutoencoder:
    """An encoder and a decoder, trained with autograd."""

    def __init__(self, directions: Directions, encode: Form, decode: Form, batch: int):
        self._encode, self._decode, self._batch = encode, decode, batch
        self._layers = [
            (name, f.U.requires_grad_(), f.V.requires_grad_())
            for name, f in directions.factors.items()
        ]
        self._optimizer = torch.optim.Adam([t for _, U, V in self._layers for t in (U, V)])

    def update(self, gradients: Iterator[dict[str, Tensor]]) -> None:
        self._optimizer.zero_grad()
        while batch := list(itertools.islice(gradients, self._batch)):
            G = {
                name: torch.stack([g[name].reshape(matrix_shape(g[name].shape)) for g in batch])
                for name, _, _ in self._layers
            }
            codes = torch.stack([self._encode(G[n], U, V) for n, U, V in self._layers]).sum(0)
            loss = torch.stack(
                [(self._decode(codes, U, V) - G[n]).square().sum() for n, U, V in self._layers]
            ).sum()
            loss.backward()
        self._optimizer.step()


def measure_penalty(x: dict[str, Tensor], columns: int, repeats: int) -> dict[str, float]:
    """Value and gradient against the two matrix products per parameter they consist of."""
    leaves = {name: t.clone().requires_grad_() for name, t in x.items()}
    directions = Directions.random(x, columns)
    penalty = Penalty(directions, torch.zeros(columns))

    def products() -> None:
        for name, f in directions.factors.items():
            x[name] @ f.V
            f.U @ f.V.T

    bare, full = alternately(4 * repeats, products, lambda: penalty(leaves, 100.0, 20.0).backward())
    return {
        "penalty_products_seconds": bare,
        "penalty_seconds": full,
        "penalty_over_products": full / bare,
    }
