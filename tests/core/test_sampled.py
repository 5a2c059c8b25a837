"""Sampled directions against dense gradients and singular value decompositions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from avalanche_dco.core.penalty import Penalty
from avalanche_dco.core.sampled import SampledDirections
from avalanche_dco.errors import GradientError
from tests.support.problems import explicit_matrix, flat, seeds, shapes

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def sampled(gradients):
    sampler = SampledDirections(gradients[0], len(gradients))
    for gradient in gradients:
        sampler.add(gradient)
    return sampler.finish()


def rank_one(shape, seed):
    """Gradients that are rank one per parameter."""
    generator = torch.Generator().manual_seed(seed)

    def part(size):
        rows = size[0] if size else 1
        columns = torch.Size(size[1:]).numel()
        u, v = (torch.randn(n, generator=generator).double() for n in (rows, columns))
        return torch.outer(u, v).reshape(size)

    return {name: part(size) for name, size in shape.items()}


@given(shapes, seeds)
def test_gradients_of_rank_one_are_the_directions(shape, seed):
    gradients = [rank_one(shape, seed + i) for i in range(3)]
    result = sampled(gradients)
    G = torch.stack([flat(gradient) for gradient in gradients], 1)
    torch.testing.assert_close(explicit_matrix(result.directions), G / 3**0.5, **EXACT)
    assert result.lost == pytest.approx(0, abs=1e-10)
    assert result.vanished == 0


@given(shapes, seeds)
def test_shares_are_those_of_the_gradients_along_the_directions(shape, seed):
    result = sampled([rank_one(shape, seed + i) for i in range(4)])
    W = explicit_matrix(result.directions)
    expected = (W.T @ W).square().sum(1) / W.square().sum()
    torch.testing.assert_close(result.shares(), expected, **EXACT)


@given(seeds, st.integers(2, 7), st.integers(2, 7))
def test_of_others_the_nearest_matrix_of_rank_one_is_taken(seed, rows, columns):
    generator = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(rows, rows, generator=generator).double()).Q
    right = torch.linalg.qr(torch.randn(columns, columns, generator=generator).double()).Q
    singular = 0.1 ** torch.arange(min(rows, columns)).double()
    G = left[:, : len(singular)] * singular @ right[:, : len(singular)].T
    result = sampled([{"w": G}])
    nearest = torch.outer(left[:, 0], right[:, 0]).reshape(-1, 1)
    torch.testing.assert_close(explicit_matrix(result.directions), nearest, rtol=0, atol=1e-4)
    assert result.lost == pytest.approx(1 - 1 / float(singular.square().sum()), abs=1e-6)


def test_the_penalty_is_the_mean_squared_change_of_the_outputs():
    """In a network with biases, to first order."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    parameters = dict(network.named_parameters())
    x_star = {name: p.detach().clone() for name, p in parameters.items()}
    x, e = torch.randn(6, 5).double(), torch.randn(6, 3).double()
    sampler = SampledDirections(parameters, 6)
    for i in range(6):
        output = (network(x[i : i + 1]) * e[i]).sum()
        grads = torch.autograd.grad(output, list(parameters.values()))
        sampler.add(dict(zip(parameters, grads, strict=True)))
    penalty = Penalty.keeping(x_star, sampler.finish().directions, couple_layers=True)
    before = network(x).detach()
    with torch.no_grad():
        for p in parameters.values():
            p.add_(torch.randn_like(p), alpha=1e-5)
    change = ((network(x) - before) * e).sum(1).square().mean()
    value = penalty(x_star | {n: p.detach() for n, p in parameters.items()}, 1.0)
    assert value.item() == pytest.approx(change.item(), rel=1e-3)


@pytest.mark.parametrize("size", [1e-18, 1e15, 1e36])
def test_any_finite_size(size):
    """In single precision, where squares of such gradients over- or underflow."""
    gradients = [
        {"w": (g["w"] * size).float()} for g in (rank_one({"w": (4, 3)}, s) for s in (1, 2))
    ]
    result = sampled(gradients)
    G = torch.stack([flat(gradient) for gradient in gradients], 1).double()
    W = explicit_matrix(result.directions).double()
    assert torch.isfinite(W).all()
    assert torch.isfinite(result.directions.gram()).all()
    torch.testing.assert_close(W / W.norm(), G / G.norm(), rtol=1e-4, atol=1e-5)
    if size < 1:
        torch.testing.assert_close(W, G / 2**0.5, rtol=1e-4, atol=1e-24)


def test_gradients_that_vanish_are_counted_and_have_no_direction():
    gradients = [rank_one({"w": (4, 3)}, 1), {"w": torch.zeros(4, 3).double()}]
    result = sampled(gradients)
    assert result.vanished == 0.5
    assert not explicit_matrix(result.directions)[:, 1].any()
    nothing = sampled(gradients[1:])
    assert (nothing.vanished, nothing.lost) == (1, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_gradient_is_refused_by_name(bad):
    gradient = rank_one({"a": (2, 3), "b": (3,)}, 1)
    gradient["b"][1] = bad
    with pytest.raises(GradientError, match="gradient of 'b' is infinite or not a number"):
        sampled([rank_one({"a": (2, 3), "b": (3,)}, 2), gradient])


@given(shapes, seeds)
def test_like_trained_ones_they_have_a_largest_eigenvalue_of_one(shape, seed):
    result = sampled([rank_one(shape, seed + i) for i in range(4)])
    trained = result.like_trained()
    W, scaled = explicit_matrix(result.directions), explicit_matrix(trained.directions)
    torch.testing.assert_close(scaled / scaled.norm(), W / W.norm(), **EXACT)
    assert 0.99 < torch.linalg.matrix_norm(scaled, ord=2).item() < 1.2  # by power iteration
