"""The implicit step against the dense ``(I + 2 lambda D W w W^T)^-1 (x + 2 lambda D W w t)``."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_dco.core.compression import compress
from avalanche_dco.core.implicit_step import ImplicitStep
from avalanche_dco.core.penalty import Penalty
from tests.support.problems import directions, explicit_matrix, flat, seeds, shapes, weights

EXACT = {"rtol": 1e-8, "atol": 1e-8}
strengths = st.sampled_from([0.01, 1.0, 100.0])


def copied(x):
    return {name: tensor.clone() for name, tensor in x.items()}


def some_sizes(shape, seed):
    """A step size per parameter; the first of several stays where it is."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {name: 0.01 + torch.rand((), generator=generator).item() for name in shape}
    if len(sizes) > 1:
        del sizes[next(iter(sizes))]
    return sizes


def dense(penalty, x, strength, sizes):
    """The same step with explicit matrices, and the penalty of where it leads."""
    coded, w = penalty.coded
    W, t = explicit_matrix(coded), penalty.targets
    D = flat({name: torch.full_like(part, sizes.get(name, 0.0)) for name, part in x.items()})
    pull = 2 * strength * D[:, None] * W * w
    after = torch.linalg.solve(torch.eye(len(D)).double() + pull @ W.T, flat(x) + pull @ t)
    left = W.T @ after - t
    return after, strength * ((w * left) @ left + penalty.constant)


def check(penalty, x, strength, sizes):
    expected, value = dense(penalty, x, strength, sizes)
    moved = copied(x)
    reported = ImplicitStep(penalty, strength, sizes)(moved)
    torch.testing.assert_close(flat(moved), expected, **EXACT)
    torch.testing.assert_close(reported, value, **EXACT)
    torch.testing.assert_close(reported, penalty(moved, strength), **EXACT)
    for name in x.keys() - sizes.keys():
        assert torch.equal(moved[name], x[name])


@given(shapes, seeds, strengths, st.booleans())
def test_two_tasks(shape, seed, strength, couple_layers):
    tasks = [(weights(shape, seed + j), directions(shape, 3, seed + 2 + j)) for j in range(2)]
    first, second = (Penalty.keeping(*task, couple_layers=couple_layers) for task in tasks)
    check(first.cat(second), weights(shape, seed + 9), strength, some_sizes(shape, seed))


@settings(deadline=None)
@given(shapes, seeds, strengths, st.booleans())
def test_compressed_tasks_whose_shared_directions_weigh_more(shape, seed, strength, couple_layers):
    held = None
    for j in range(3):
        held, _ = compress(
            held,
            directions(shape, 4, seed + j),
            weights(shape, seed + 5 + j),
            k=12,
            updates=1,
            couple_layers=couple_layers,
        )
    penalty = held.penalty()
    assert penalty.weights.max() == 3
    check(penalty, weights(shape, seed + 9), strength, some_sizes(shape, seed))


@pytest.mark.parametrize("couple_layers", [True, False])
def test_parameters_that_only_one_of_two_tasks_has(couple_layers):
    old, new = {"w": (3, 4), "head1": (2, 3)}, {"w": (3, 4), "head2": (2, 3)}
    tasks = [(weights(s, j), directions(s, 3, 3 + j)) for j, s in enumerate((old, new))]
    first, second = (Penalty.keeping(*task, couple_layers=couple_layers) for task in tasks)
    sizes = {"w": 0.1, "head2": 0.3}
    check(first.cat(second), weights({**old, **new}, 9), 10.0, sizes)


@given(seeds, st.sampled_from([1e-3, 1.0, 1e3]), st.booleans())
def test_a_strength_without_bound_gives_the_projection(seed, size, couple_layers):
    shape = {"a": (5, 4), "b": (3, 5)}
    penalty = Penalty.keeping(
        weights(shape, seed), directions(shape, 4, seed + 1), couple_layers=couple_layers
    )
    x = weights(shape, seed + 2)
    before, moved = penalty.residual(x), copied(x)
    ImplicitStep(penalty, 1e30, dict.fromkeys(shape, size))(moved)
    assert penalty.residual(moved).norm() < 1e-6 * before.norm()
    # It is the shortest way there: along the directions only.
    W = explicit_matrix(penalty.coded[0])
    change = flat(moved) - flat(x)
    along = W @ torch.linalg.lstsq(W, change, driver="gelsd").solution
    torch.testing.assert_close(along, change, **EXACT)


@pytest.mark.parametrize("strength", [100.0, 1e30])
def test_directions_that_repeat_and_contradict_each_other_in_single_precision(strength):
    """Twelve directions of four weights, three times over, with other targets each time."""
    shape = {"w": (2, 2)}
    x = {"w": weights(shape, 0)["w"].float()}
    d = directions(shape, 12, 1)
    for f in d.factors.values():
        f.U, f.V = f.U.float(), f.V.float()
    targets = [d.encode({"w": weights(shape, 2 + j)["w"].float()}) for j in range(3)]
    penalty = Penalty(d, targets[0]).cat(Penalty(d, targets[1])).cat(Penalty(d, targets[2]))
    step = ImplicitStep(penalty, strength, {"w": 1.0})
    values = [step(x).item() for _ in range(5)]
    best, _ = dense(_double(penalty), {"w": x["w"].double()}, 1e6, {"w": 1.0})
    torch.testing.assert_close(flat(x).double(), best, rtol=0, atol=0.03)
    assert values[-1] == pytest.approx(penalty(x, strength).item(), rel=1e-2)


def _double(penalty):
    d = directions({"w": (2, 2)}, 12, 1)
    d = d.cat(d).cat(d)
    return Penalty(d, penalty.targets.double())


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_no_step_size_diverges_or_overshoots(size):
    shape = {"a": (5, 4), "b": (3, 5)}
    penalty = Penalty.keeping(weights(shape, 0), directions(shape, 6, 1), couple_layers=True)
    x, step = weights(shape, 2), ImplicitStep(penalty, 100.0, dict.fromkeys(shape, size))
    values = [penalty(x, 100.0).item(), *(step(x).item() for _ in range(5))]
    assert all(after <= before or after < 1e-30 for before, after in itertools.pairwise(values))


def test_the_limit_holds_for_the_gradient_it_moves_with():
    shape = {"a": (5, 4), "b": (3, 5)}
    penalty = Penalty.keeping(weights(shape, 0), directions(shape, 6, 1), couple_layers=True)
    x = weights(shape, 2)
    short, free = copied(x), copied(x)
    step = ImplicitStep(penalty, 100.0, dict.fromkeys(shape, 0.1))
    reported = step(short, max_grad_norm=0.5)
    step(free)
    moved = flat(short) - flat(x)
    assert moved.norm().item() == pytest.approx(0.1 * 0.5)
    assert torch.cosine_similarity(moved, flat(free) - flat(x), dim=0).item() == pytest.approx(1)
    torch.testing.assert_close(reported, penalty(short, 100.0), **EXACT)


def test_nothing_to_move():
    shape = {"a": (5, 4)}
    penalty = Penalty.keeping(weights(shape, 0), directions(shape, 6, 1), couple_layers=True)
    x = weights(shape, 2)
    value = ImplicitStep(penalty, 2.0, {})(x)
    assert torch.equal(x["a"], weights(shape, 2)["a"])
    torch.testing.assert_close(value, penalty(x, 2.0), **EXACT)


def test_more_directions_than_are_multiplied_at_a_time(monkeypatch):
    monkeypatch.setattr("avalanche_dco.core.implicit_step._COLUMNS_AT_A_TIME", 2)
    shape = {"a": (5, 4), "b": (3, 5)}
    penalty = Penalty.keeping(weights(shape, 0), directions(shape, 5, 1), couple_layers=True)
    check(penalty, weights(shape, 2), 10.0, {"a": 0.1, "b": 0.2})
