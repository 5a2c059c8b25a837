import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_dco.core.penalty import Penalty
from tests.support.problems import directions, explicit_matrix, flat, seeds, shapes, weights

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def leaves(x):
    return {name: tensor.detach().clone().requires_grad_() for name, tensor in x.items()}


def gradient(x):
    return flat({name: tensor.grad for name, tensor in x.items()})


def two_tasks(shape, seed):
    """Two tasks' directions and weights x_j*, and their penalty as the package stores it."""
    tasks = [(directions(shape, 3, seed + j), weights(shape, seed + 10 + j)) for j in range(2)]
    first, second = (Penalty(d, d.encode(x_star)) for d, x_star in tasks)
    return tasks, first.cat(second)


@given(shapes, seeds, st.sampled_from([0.5, 100.0]))
def test_value_and_gradient_equal_autograd_through_the_papers_formula(shape, seed, strength):
    tasks, penalty = two_tasks(shape, seed)
    x = leaves(weights(shape, seed + 20))
    value = penalty(x, strength)
    value.backward()

    y = leaves(x)
    expected = strength * sum(
        (explicit_matrix(d).T @ (flat(y) - flat(x_star))).square().sum() for d, x_star in tasks
    )
    expected.backward()
    torch.testing.assert_close(value, expected, **EXACT)
    torch.testing.assert_close(gradient(x), gradient(y), **EXACT)
    assert value > 0


@given(shapes, seeds, st.integers(1, 4))
def test_directions_shared_by_n_tasks_enter_once(shape, seed, n):
    d = directions(shape, 3, seed)
    stars = [d.encode(weights(shape, seed + 1 + j)) for j in range(n)]
    mean = torch.stack(stars).mean(0)
    constant = sum((t - mean).square().sum().item() for t in stars)
    shared = Penalty(d, mean, torch.full((3,), float(n), dtype=torch.float64), constant)

    x, y = leaves(weights(shape, seed)), leaves(weights(shape, seed))
    value = shared(x, 2.0)
    value.backward()
    expected = sum(Penalty(d, t)(y, 2.0) for t in stars)
    expected.backward()
    torch.testing.assert_close(value, expected, **EXACT)
    torch.testing.assert_close(gradient(x), gradient(y), **EXACT)


@given(shapes, seeds, st.sampled_from([1e-3, 0.1, 1e6]))
def test_clipping_shortens_the_penaltys_gradient_and_nothing_else(shape, seed, longest):
    _, penalty = two_tasks(shape, seed)
    x, free, other = (leaves(weights(shape, seed + 20)) for _ in range(3))
    (penalty(x, 1.0, max_grad_norm=longest) + 3 * flat(x).sum()).backward()
    penalty(free, 1.0).backward()
    (3 * flat(other).sum()).backward()

    unclipped = gradient(free)
    scale = min(1.0, longest / unclipped.norm().item())
    torch.testing.assert_close(gradient(x), gradient(other) + scale * unclipped, **EXACT)
    assert penalty(x, 1.0, max_grad_norm=longest) == penalty(x, 1.0)


def test_penalty_is_zero_where_nothing_moved_even_with_clipping():
    shape = {"w": (3, 4)}
    d, x_star = directions(shape, 3, 0), weights(shape, 1)
    x = leaves(x_star)
    value = Penalty(d, d.encode(x_star))(x, 100.0, max_grad_norm=1.0)
    value.backward()
    assert value == 0
    assert torch.equal(x["w"].grad, torch.zeros(3, 4, dtype=torch.float64))


def test_frozen_parameter_counts_in_the_value_and_gets_no_gradient():
    shape = {"a": (3, 2), "b": (2, 2)}
    _, penalty = two_tasks(shape, 0)
    x, both = leaves(weights(shape, 20)), leaves(weights(shape, 20))
    x["a"].requires_grad_(False)
    value, expected = penalty(x, 1.0, max_grad_norm=0.1), penalty(both, 1.0)
    value.backward()
    expected.backward()
    assert value == expected
    assert x["a"].grad is None
    # The clip looks at the gradient that is there.
    assert x["b"].grad.norm().item() == pytest.approx(0.1)
    cosine = torch.cosine_similarity(flat({"b": x["b"].grad}), flat({"b": both["b"].grad}), dim=0)
    assert cosine.item() == pytest.approx(1.0)


def test_value_without_gradient():
    shape = {"a": (3, 2)}
    _, penalty = two_tasks(shape, 0)
    value = penalty(weights(shape, 20), 1.0, max_grad_norm=1.0)
    assert value > 0
    assert not value.requires_grad


def test_gradient_has_the_parameters_own_precision():
    d = directions({"a": (3, 2)}, 2, 0)
    x = {"a": torch.ones(3, 2, dtype=torch.float32, requires_grad=True)}
    Penalty(d, torch.zeros(2, dtype=torch.float64))(x, 1.0).backward()
    assert x["a"].grad.dtype == torch.float32


def test_memory_is_factors_targets_and_weights():
    d = directions({"a": (3, 2)}, 4, 0)
    penalty = Penalty(d, torch.zeros(4, dtype=torch.float64))
    assert penalty.nbytes == 8 * (4 * (3 + 2) + 4 + 4)


def test_grown_penalty_keeps_its_value():
    shape, grown = {"head": (2, 3), "bias": (2,)}, {"head": (4, 3), "bias": (4,)}
    _, penalty = two_tasks(shape, 0)
    old, new = weights(shape, 5), weights(grown, 6)
    for name in shape:
        new[name][:2] = old[name]
    torch.testing.assert_close(penalty.adapted_to(new)(new, 3.0), penalty(old, 3.0), **EXACT)


@pytest.mark.parametrize("strength", [1e6, 1e20, 1e30, 1e45, 1e300])
def test_clipping_holds_for_strengths_whose_gradient_overflows_single_precision(strength):
    d = directions({"a": (3, 2)}, 2, 0)
    for f in d.factors.values():
        f.U, f.V = f.U.float(), f.V.float()
    x = {"a": torch.ones(3, 2, requires_grad=True)}
    Penalty(d, torch.zeros(2))(x, strength, max_grad_norm=20.0).backward()
    assert x["a"].grad.norm().item() == pytest.approx(20.0)


@given(shapes, seeds)
def test_sharpness_is_the_largest_eigenvalue(shape, seed):
    _, penalty = two_tasks(shape, seed)
    sizes = {name: 0.1 * (1 + j) for j, name in enumerate(shape)}
    W = explicit_matrix(penalty.directions)
    D = flat({name: torch.full(size, sizes[name]).double() for name, size in shape.items()})
    largest = torch.linalg.eigvalsh(W.T @ (D[:, None] * W))[-1]
    assert 0.8 * largest <= penalty.sharpness(sizes) <= 1.0001 * largest
