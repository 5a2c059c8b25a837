"""The share of a gradient in the span of directions equals the explicit projection's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors
from avalanche_dco.core.span import DirectionSpan, energy, mean_share
from tests.support.problems import directions, explicit_matrix, flat, seeds, shapes, weights


def explicit_share(W: Tensor, g: Tensor) -> float:
    """||Q Q^T g||^2 / ||g||^2, Q an orthonormal basis of W's columns from an SVD."""
    lengths = torch.linalg.vector_norm(W, dim=0)
    Q, sizes, _ = torch.linalg.svd(W / lengths.clamp_min(1e-300), full_matrices=False)
    Q = Q[:, sizes > 1e-5 * sizes[0]]
    return ((Q.T @ g).square().sum() / g.square().sum()).item()


def share(of: Directions, gradient: dict[str, Tensor]) -> float:
    return DirectionSpan(of).shares([gradient]).item()


@settings(max_examples=60, deadline=None)
@given(shape=shapes, k=st.integers(1, 6), seed=seeds)
def test_equals_the_explicit_projection(shape, k, seed):
    W, g = directions(shape, k, seed), weights(shape, seed + 1)
    assert share(W, g) == pytest.approx(explicit_share(explicit_matrix(W), flat(g)), abs=1e-8)


@settings(max_examples=60, deadline=None)
@given(shape=shapes, k=st.integers(1, 5), seed=seeds, data=st.data())
def test_equals_the_explicit_projection_where_directions_repeat(shape, k, seed, data):
    once = directions(shape, k, seed)
    columns = data.draw(st.lists(st.integers(0, k - 1), min_size=k + 1, max_size=3 * k + 1))
    W, g = once.select(torch.tensor(columns)), weights(shape, seed + 1)
    # Copies of other lengths: dependent, but not equal.
    for f in W.factors.values():
        f.U *= torch.linspace(-2, 3, len(columns), dtype=torch.float64) + 0.01
    assert torch.linalg.matrix_rank(explicit_matrix(W)) < W.k
    assert share(W, g) == pytest.approx(explicit_share(explicit_matrix(W), flat(g)), abs=1e-8)


@settings(max_examples=30, deadline=None)
@given(shape=shapes, seed=seeds)
def test_more_directions_than_weights_leave_no_room(shape, seed):
    g = weights(shape, seed)
    d = len(flat(g))
    W = directions(shape, 2 * d, seed + 1)
    assert torch.linalg.matrix_rank(explicit_matrix(W)) == d
    assert share(W, g) == pytest.approx(1.0, abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(shape=shapes, k=st.integers(1, 4), seed=seeds, scale=st.sampled_from([1e-12, 1.0, 1e9]))
def test_a_gradient_in_the_span_is_all_in_it_and_one_beside_it_is_not(shape, k, seed, scale):
    W = directions(shape, k, seed)
    inside = W.decode(torch.randn(k, dtype=torch.float64) * scale)
    assert share(W, inside) == pytest.approx(1.0, abs=1e-8)

    Q = torch.linalg.qr(explicit_matrix(W)).Q
    beside = flat(weights(shape, seed + 1))
    beside -= Q @ (Q.T @ beside)
    beside -= Q @ (Q.T @ beside)
    parts = dict(
        zip(shape, beside.split([f.shape.numel() for f in W.factors.values()]), strict=True)
    )
    g = {name: scale * part.reshape(shape[name]) for name, part in parts.items()}
    assert share(W, g) == pytest.approx(0.0, abs=1e-8)


@settings(max_examples=30, deadline=None)
@given(shape=shapes, k=st.integers(1, 12), seed=seeds, copies=st.integers(1, 3))
def test_lies_between_0_and_1_in_float32_too(shape, k, seed, copies):
    exact = directions(shape, k, seed)
    single = Directions(
        k, {n: Factors(f.U.float(), f.V.float(), f.shape) for n, f in exact.factors.items()}
    )
    for _ in range(copies - 1):
        single = single.cat(single)
    gradients = [
        {name: part.float() for name, part in weights(shape, seed + i).items()} for i in range(5)
    ]
    gradients.append(single.decode(torch.ones(single.k)))  # wholly in the span
    shares = DirectionSpan(single).shares(gradients)
    assert ((shares >= 0) & (shares <= 1)).all()


def test_float32_directions_are_measured_in_float64():
    shape = {"w1": (5, 7), "w2": (2, 5)}
    exact = directions(shape, 4, 0)
    single = Directions(
        4, {n: Factors(f.U.float(), f.V.float(), f.shape) for n, f in exact.factors.items()}
    )
    g = {name: part.float() for name, part in weights(shape, 1).items()}
    W, flat_g = explicit_matrix(_doubled(single)), flat(g).double()
    assert share(single, g) == pytest.approx(explicit_share(W, flat_g), abs=1e-12)


def _doubled(of: Directions) -> Directions:
    """The same numbers, so that the explicit matrix is exact."""
    return Directions(
        of.k, {n: Factors(f.U.double(), f.V.double(), f.shape) for n, f in of.factors.items()}
    )


def test_does_not_depend_on_the_directions_lengths():
    shape = {"w1": (5, 7), "w2": (2, 5)}
    W, g = directions(shape, 4, 0), weights(shape, 1)
    scaled = directions(shape, 4, 0)
    for f in scaled.factors.values():
        f.U *= torch.tensor([1e-6, 1.0, 1e4, 1e-3], dtype=torch.float64)
    assert share(scaled, g) == pytest.approx(share(W, g), abs=1e-12)


def test_parameters_without_a_part_in_the_directions_count_in_the_energy():
    shape = {"w": (3, 4)}
    W, g = directions(shape, 3, 0), weights(shape, 1)
    with_head = g | {"head": torch.full((2,), 3.0, dtype=torch.float64)}
    energy_w = flat(g).square().sum().item()
    assert share(W, with_head) == pytest.approx(
        share(W, g) * energy_w / (energy_w + 18.0), abs=1e-12
    )


def test_a_parameter_that_the_gradient_lacks_counts_as_zero():
    shape = {"w1": (5, 7), "w2": (2, 5)}
    W, g = directions(shape, 3, 0), weights(shape, 1)
    zeros = {"w1": g["w1"], "w2": torch.zeros_like(g["w2"])}
    assert share(W, {"w1": g["w1"]}) == share(W, zeros)
    assert share(W, zeros) == pytest.approx(
        explicit_share(explicit_matrix(W), flat(zeros)), abs=1e-8
    )


def test_directions_that_only_some_parameters_have_a_part_in():
    early = directions({"w": (3, 4)}, 2, 0)
    both = early.cat(directions({"w": (3, 4), "head": (2, 3)}, 3, 1))
    g = weights({"w": (3, 4), "head": (2, 3)}, 2)
    assert share(both, g) == pytest.approx(explicit_share(explicit_matrix(both), flat(g)), abs=1e-8)


def test_zero_gradients_and_zero_directions():
    shape = {"w": (3, 4)}
    W = directions(shape, 2, 0)
    nothing = {"w": torch.zeros(3, 4, dtype=torch.float64)}
    assert share(W, nothing) == 0.0
    assert share(W, {}) == 0.0
    assert DirectionSpan(W).shares([]).shape == (0,)
    with_empty = directions(shape, 2, 0).cat(
        Directions(1, {"w": Factors(torch.zeros(3, 1), torch.zeros(4, 1), torch.Size((3, 4)))})
    )
    g = weights(shape, 1)
    assert share(with_empty, g) == pytest.approx(share(W, g), abs=1e-14)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["w", "free"])
def test_a_gradient_that_is_not_finite_has_no_share_and_leaves_the_others_alone(broken, where):
    shape = {"w": (3, 4), "free": (2,)}
    W, g = directions({"w": (3, 4)}, 2, 0), weights(shape, 1)
    bad = {name: part.clone() for name, part in g.items()}
    bad[where].view(-1)[0] = broken
    first, second, third = DirectionSpan(W).shares([g, bad, g]).tolist()
    assert second != second  # NaN
    assert first == third == pytest.approx(share(W, g), abs=1e-15)


def test_mean_share_is_the_mean_of_the_ratios():
    shape = {"w": (3, 4)}
    W = directions(shape, 3, 0)
    gradients = [weights(shape, 1), {"w": 1000 * weights(shape, 2)["w"]}]
    each = [share(W, g) for g in gradients]
    assert abs(each[0] - each[1]) > 0.01
    assert mean_share(DirectionSpan(W), iter(gradients)) == pytest.approx(sum(each) / 2, abs=1e-14)


def test_without_directions_the_share_is_0_and_no_gradient_is_asked_for():
    def gradients():
        raise AssertionError("asked for a gradient")
        yield {}

    assert mean_share(None, gradients()) == 0.0


def test_energy_is_summed_in_float64():
    # In float32 the sum of squares would be infinite.
    assert energy({"w": torch.full((2,), 2e19)}).item() == pytest.approx(8e38, rel=1e-6)
