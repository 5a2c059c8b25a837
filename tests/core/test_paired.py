"""Codes by pairs against those of every direction by itself."""

import pytest
import torch
from hypothesis import given

from avalanche_dco.core import paired
from avalanche_dco.core.eigendirections import eigendirections
from avalanche_dco.core.factors import Factors
from avalanche_dco.core.paired import PairedFactors, in_pairs
from tests.support.problems import directions, seeds, weights

SHAPE = {"w": (8, 20), "conv": (6, 3, 2, 2)}
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def tasks(seed, *, count=3, k=60):
    """Eigendirections of several tasks side by side."""
    found = [eigendirections(directions(SHAPE, 40, seed + j), k) for j in range(count)]
    together = found[0]
    for one in found[1:]:
        together = together.cat(one)
    return together


def check(f, g, x, z):
    torch.testing.assert_close(g.encode(x), f.encode(x), **EXACT)
    torch.testing.assert_close(g.decode(z), f.decode(z), **EXACT)
    assert g.columns == f.columns


@pytest.mark.parametrize("shortest", [1, 100, 1000])  # as many blocks as tasks, two, one
@given(seed=seeds)
def test_eigendirections_of_several_tasks(shortest, seed):
    expected = {1: [60] * 3, 100: [120, 60], 1000: [180]}[shortest]
    held, x = tasks(seed), weights(SHAPE, seed + 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paired, "_SHORTEST", shortest)
        patch.setattr(paired, "_WORTH", 0)  # small problems gain little
        for name, f in held.factors.items():
            by_pairs = in_pairs(f)
            assert isinstance(by_pairs, PairedFactors)
            assert [len(block.places) for block in by_pairs._blocks] == expected
            check(f, by_pairs, x[name], weights({"z": (180,)}, seed)["z"])


@given(seeds)
def test_columns_of_zeros_in_a_gap_and_other_lengths(seed):
    """A parameter without a part in the second task, and directions scaled by any number."""
    held = tasks(seed, count=1)
    f = held.factors["w"]
    scales = torch.linspace(0.1, 30, f.U.shape[1]).double()
    other = Factors(f.U * scales, f.V / scales.flip(0), f.shape, start=200)
    joined = f.joined(other)
    by_pairs = in_pairs(joined)
    assert isinstance(by_pairs, PairedFactors)
    assert len(by_pairs._nonzero) == 2 * f.U.shape[1] < joined.U.shape[1]
    z = weights({"z": joined.U.shape[1:]}, seed)["z"]
    check(joined, by_pairs, weights(SHAPE, seed + 1)["w"], z)


@given(seeds)
def test_directions_that_are_no_pairs_stay_as_they_are(seed):
    for f in directions(SHAPE, 40, seed).factors.values():
        assert in_pairs(f) is f


def test_directions_of_zeros_stay_as_they_are():
    f = Factors(torch.zeros(8, 5), torch.ones(20, 5), torch.Size((8, 20)))
    assert in_pairs(f) is f


@given(seeds)
def test_columns_that_look_equal_by_chance_are_told_apart(seed):
    """With a vector of zeros all columns have the same product."""
    f = tasks(seed).factors["w"]
    first, lengths = paired._equal_columns(f.V)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", lambda size, **kw: torch.zeros(size, dtype=kw["dtype"]))
        by_chance, again = paired._equal_columns(f.V)
    units = f.V / lengths
    for found in (first, by_chance):
        torch.testing.assert_close(units[:, found], units, **EXACT)
    assert len(first.unique()) < len(by_chance.unique()) < f.V.shape[1]
    assert torch.equal(again, lengths)


def test_columns_that_nearly_vanish():
    """Squares of their entries underflow."""
    held, x = tasks(1, count=1), weights(SHAPE, 2)
    f = held.factors["w"]
    scales = torch.where(torch.arange(f.U.shape[1]) % 2 == 0, 1.0, 1e-30)
    single = Factors(f.U.float() * scales, f.V.float(), f.shape)
    by_pairs = in_pairs(single)
    assert isinstance(by_pairs, PairedFactors)
    expected = f.encode(x["w"]) * scales
    torch.testing.assert_close(by_pairs.encode(x["w"]).double(), expected, rtol=1e-4, atol=1e-5)


def test_single_precision():
    held, x = tasks(1), weights(SHAPE, 2)
    f = held.factors["w"]
    single = Factors(f.U.float(), f.V.float(), f.shape)
    by_pairs = in_pairs(single)
    assert isinstance(by_pairs, PairedFactors)
    torch.testing.assert_close(
        by_pairs.encode(x["w"]).double(), f.encode(x["w"]), rtol=1e-4, atol=1e-5
    )
