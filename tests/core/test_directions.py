import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import matrix_shape
from avalanche_dco.errors import ModelError
from tests.support.problems import directions, explicit_matrix, flat, seeds, shapes, weights

EXACT = {"rtol": 1e-10, "atol": 1e-10}
ks = st.integers(1, 6)


@given(shapes, ks, seeds)
def test_encode_equals_product_with_explicit_matrix(shape, k, seed):
    d, x = directions(shape, k, seed), weights(shape, seed + 1)
    torch.testing.assert_close(d.encode(x), explicit_matrix(d).T @ flat(x), **EXACT)


@given(shapes, ks, seeds)
def test_decode_equals_product_with_explicit_matrix(shape, k, seed):
    d = directions(shape, k, seed)
    z = torch.randn(k, dtype=torch.float64)
    decoded = d.decode(z)
    assert {name: tuple(t.shape) for name, t in decoded.items()} == shape
    torch.testing.assert_close(flat(decoded), explicit_matrix(d) @ z, **EXACT)


@given(shapes, ks, seeds)
def test_gram_equals_explicit_gram(shape, k, seed):
    d = directions(shape, k, seed)
    W = explicit_matrix(d)
    torch.testing.assert_close(d.gram(), W.T @ W, **EXACT)


@given(shapes, ks, ks, seeds)
def test_cat_puts_columns_side_by_side(shape, k1, k2, seed):
    a, b = directions(shape, k1, seed), directions(shape, k2, seed + 1)
    together = a.cat(b)
    assert together.k == k1 + k2
    expected = torch.cat([explicit_matrix(a), explicit_matrix(b)], dim=1)
    torch.testing.assert_close(explicit_matrix(together), expected, **EXACT)


def test_cat_over_different_parameters_agrees_with_zero_columns():
    shape = {"shared": (3, 2), "head0": (2, 3), "head1": (2, 3)}
    parts = [
        directions({n: shape[n] for n in names}, 2, seed)
        for seed, names in enumerate(
            [("shared", "head0"), ("shared", "head1"), ("shared", "head0", "head1")]
        )
    ]
    together = parts[0].cat(parts[1]).cat(parts[2])
    x = weights(shape, 7)
    expected = torch.cat([part.encode(x) for part in parts])
    torch.testing.assert_close(together.encode(x), expected, **EXACT)
    W = explicit_matrix(together)
    torch.testing.assert_close(together.gram(), W.T @ W, **EXACT)
    z = torch.randn(6, dtype=torch.float64)
    torch.testing.assert_close(flat(together.decode(z)), W @ z, **EXACT)
    # head1 came with the second task: the first task's columns are not stored for it.
    assert together.factors["head1"].start == 2
    assert together.factors["head1"].U.shape == (2, 4)


def test_growth_keeps_codes_of_what_was_there():
    shape = {"conv": (2, 3, 2, 2), "linear": (4, 5), "bias": (4,), "scalar": ()}
    grown = {"conv": (3, 5, 2, 3), "linear": (6, 5), "bias": (6,), "scalar": ()}
    d = directions(shape, 3, 0)
    old, new = weights(shape, 1), weights(grown, 2)
    for name, tensor in old.items():
        corner = tuple(slice(size) for size in tensor.shape)
        new[name][corner] = tensor
    torch.testing.assert_close(d.adapted_to(new).encode(new), d.encode(old), **EXACT)
    assert {n: tuple(t.shape) for n, t in d.adapted_to(new).decode(torch.ones(3)).items()} == grown


def test_parameters_of_other_models_may_come_along():
    d = directions({"a": (2, 2)}, 2, 0)
    x = weights({"a": (2, 2), "b": (3,)}, 1)
    assert d.adapted_to(x).factors.keys() == {"a"}


@pytest.mark.parametrize("now", [(3, 5), (4, 4), (4, 5, 1), (20,)])
def test_shrunk_or_reshaped_parameter_is_refused(now):
    d = directions({"layer.weight": (4, 5)}, 2, 0)
    with pytest.raises(ModelError, match=r"'layer.weight' had shape \(4, 5\).*parameter_filter"):
        d.adapted_to({"layer.weight": torch.zeros(now)})


def test_vanished_parameter_is_refused():
    d = directions({"gone": (4, 5)}, 2, 0)
    with pytest.raises(ModelError, match="no longer has 'gone'"):
        d.adapted_to({"other": torch.zeros(4, 5)})


def test_matrix_shape_reads_any_parameter_as_matrix():
    assert matrix_shape(torch.Size([4, 3, 2, 2])) == (4, 12)
    assert matrix_shape(torch.Size([4])) == (4, 1)
    assert matrix_shape(torch.Size([])) == (1, 1)


def test_random_start_is_small_and_within_its_bounds():
    x = {"w": torch.zeros(6, 8), "b": torch.zeros(6)}
    d = Directions.random(x, 10)
    w = d.factors["w"]
    assert w.U.abs().max() <= 1 / (10 * 6) ** 0.5
    assert w.V.abs().max() <= 1 / 8**0.5
    assert w.U.std() > 0
    assert d.nbytes == 4 * 10 * (6 + 8 + 6 + 1)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((torch.float64, torch.float32), torch.float64),
        ((torch.float16, torch.bfloat16), torch.float32),
    ],
)
def test_one_precision_for_all_parameters(dtypes, expected):
    x = {str(i): torch.ones(2, 3, dtype=dtype) for i, dtype in enumerate(dtypes)}
    d = Directions.random(x, 2)
    assert d.encode(x).dtype == expected
    assert {t.dtype for t in d.decode(d.encode(x)).values()} == {expected}
