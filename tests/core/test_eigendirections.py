"""Eigendirections and their merging against dense matrices."""

import pytest
import torch
from hypothesis import given

from avalanche_dco.core.directions import Directions
from avalanche_dco.core.eigendirections import eigendirections, merge
from avalanche_dco.core.factors import Factors
from avalanche_dco.core.penalty import Penalty
from tests.support.problems import directions, explicit_matrix, flat, seeds, weights

EXACT = {"rtol": 1e-8, "atol": 1e-9}
SHAPE = {"w": (4, 2), "conv": (3, 2, 3), "bias": (5,)}


def of_parameter(held, name):
    """W of one parameter, one column per direction."""
    return explicit_matrix(Directions(held.k, {name: held.factors[name]}))


def second_moments(W, f):
    """M = W W^T and its partial traces S and A, by their definition."""
    M = (W @ W.T).reshape(len(f.U), len(f.V), len(f.U), len(f.V))
    return M, torch.einsum("rcsc->rs", M), torch.einsum("rcrd->cd", M)


def every_pair(rows, columns):
    """Each row vector with each column vector: their matrix is a Kronecker product."""
    U = rows.repeat_interleave(columns.shape[1], 1)
    V = columns.repeat(1, rows.shape[1])
    shape = torch.Size((len(rows), len(columns)))
    return Directions(U.shape[1], {"w": Factors(U, V, shape)})


def normal(seed, *size):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("count", [3, 9])
@given(seed=seeds)
def test_they_are_those_of_the_kronecker_product_with_the_same_partial_traces(count, seed):
    """With fewer and with more directions than rows and columns."""
    given_ones = directions(SHAPE, count, seed)
    result = eigendirections(given_ones, count)
    assert result.k == count
    for name, f in result.factors.items():
        M, S, A = second_moments(of_parameter(given_ones, name), f)
        whole = torch.kron(S, A) / torch.einsum("rcrc->", M)
        values, vectors = torch.linalg.eigh(whole)
        largest = vectors[:, -count:] * values[-count:].clamp(min=0).sqrt()
        W = of_parameter(result, name)
        torch.testing.assert_close(W @ W.T, largest @ largest.T, rtol=1e-7, atol=1e-9)
        if count >= len(whole):
            _, of_rows, of_columns = second_moments(W, f)
            torch.testing.assert_close(of_rows, S, **EXACT)
            torch.testing.assert_close(of_columns, A, **EXACT)


@given(seeds)
def test_they_are_exact_for_a_kronecker_product(seed):
    given_ones = every_pair(normal(seed, 3, 3), normal(seed + 1, 2, 3))
    W, before = (explicit_matrix(d) for d in (eigendirections(given_ones, 6), given_ones))
    torch.testing.assert_close(W @ W.T, before @ before.T, **EXACT)


def test_those_of_a_parameter_without_a_part_are_zero():
    given_ones = directions({"w": (4, 3), "unused": (2, 3)}, 2, seed=1)
    given_ones.factors["unused"].U.zero_()
    factors = eigendirections(given_ones, 2).factors
    assert not factors["unused"].U.any()
    assert factors["w"].U.any()


@given(seeds)
def test_merging_is_the_sum_of_penalties_where_that_is_a_kronecker_product(seed):
    """Tasks whose column vectors alone differ; a sum of quadratics has the sum of gradients."""
    rows = normal(seed, 3, 3)
    tasks = [every_pair(rows, normal(seed + 1 + i, 4, 3)) for i in range(3)]
    points = [weights({"w": (3, 4)}, seed + 10 + i) for i in range(3)]
    held, penalties = None, []
    for task, x_star in zip(tasks, points, strict=True):
        held, lost = merge(held, task, x_star, k=12)
        assert lost == pytest.approx(0, abs=1e-9)
        penalties.append(Penalty.keeping(x_star, task, couple_layers=False))
    merged = held.penalty()
    for x in (weights({"w": (3, 4)}, seed + 20), points[0], points[2]):
        expected = sum(p.gradient(p.residual(x), 1.0, ["w"])["w"] for p in penalties)
        found = merged.gradient(merged.residual(x), 1.0, ["w"])["w"]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@given(seeds)
def test_targets_are_the_codes_of_the_minimum_of_both_quadratics(seed):
    """m' = x* + M'^+ B (t - B^T x*), with dense matrices, where few directions remain."""
    first, second = (weights(SHAPE, seed + i) for i in (1, 2))
    before, _ = merge(None, directions(SHAPE, 4, seed + 3), first, k=4)
    held, lost = merge(before, directions(SHAPE, 4, seed + 4), second, k=4)
    assert 0 <= lost < 1
    for number, name in enumerate(SHAPE):
        W, B = of_parameter(held.directions, name), of_parameter(before.directions, name)
        x = flat({name: second[name]})
        pulled = B @ (before.targets[0, number] - B.T @ x)
        minimum = x + torch.linalg.pinv(W @ W.T, rtol=1e-12) @ pulled
        torch.testing.assert_close(held.targets[0, number], W.T @ minimum, **EXACT)


def test_one_task_is_kept_where_it_is():
    x_star = weights(SHAPE, seed=1)
    penalty = merge(None, directions(SHAPE, 6, seed=2), x_star, k=8)[0].penalty()
    assert [f.U.shape[1] for f in penalty.directions.factors.values()] == [8, 8, 5]
    torch.testing.assert_close(penalty.residual(x_star), torch.zeros(21).double())
    assert not penalty.couple_layers


def test_memory_does_not_grow_with_the_tasks():
    held, sizes = None, []
    for task in range(4):
        held, _ = merge(held, directions(SHAPE, 7, seed=task), weights(SHAPE, task), k=5)
        sizes.append(held.nbytes)
    assert len(set(sizes)) == 1


def test_heads_that_come_and_go_keep_their_own_directions():
    """The second task brings a head of its own and does not use the first one's."""
    trunk, first, second = {"w": (3, 2)}, {"a": (2, 3)}, {"b": (2, 3)}
    x = weights(trunk | first | second, seed=1)
    before, _ = merge(None, directions(trunk | first, 5, seed=2), x, k=6)
    after, _ = merge(before, directions(trunk | second, 5, seed=3), x, k=6)
    assert list(after.directions.factors) == ["w", "a", "b"]
    W, again = (of_parameter(held.directions, "a") for held in (before, after))
    torch.testing.assert_close(again @ again.T, W @ W.T, **EXACT)
    torch.testing.assert_close(after.penalty().residual(x), torch.zeros(18).double())


def test_many_heads_take_the_memory_of_one():
    trunk, heads = {"w": (3, 2)}, {f"head{task}": (3, 4) for task in range(5)}
    x, held, widths = weights(trunk | heads, seed=1), None, []
    for task, head in enumerate(heads):
        held, _ = merge(held, directions(trunk | {head: heads[head]}, 16, seed=task), x, k=12)
        widths = [held.directions.factors[name].U.shape[1] for name in list(heads)[: task + 1]]
    assert widths == [3, 3, 3, 3, 12]
    torch.testing.assert_close(
        held.penalty().residual(x), torch.zeros(6 + sum(widths)).double(), **EXACT
    )


def test_a_parameter_that_is_used_again_has_all_directions_again():
    shape, x = {"w": (3, 2), "a": (4, 5)}, weights({"w": (3, 2), "a": (4, 5)}, 1)
    held, _ = merge(None, directions(shape, 9, seed=1), x, k=6)
    held, _ = merge(held, directions({"w": (3, 2)}, 9, seed=2), x, k=6)
    held, _ = merge(held, directions(shape, 9, seed=3), x, k=6)
    assert held.directions.factors["a"].U.shape == (4, 6)
