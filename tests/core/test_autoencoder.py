import itertools
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_dco.core.autoencoder import (
    DirectionAutoencoder,
    fit_directions,
    has_stopped_improving,
)
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors
from avalanche_dco.errors import GradientError
from tests.support.problems import directions, explicit_matrix, flat, seeds, shapes, weights

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def explicit_loss(of, gradients, layer_weights=None):
    """||AE(G) - G||^2 / ||G||^2 with an explicit encoder and decoder on normalised gradients.

    :return: the loss with a weight for each layer, and that of no columns at all.
    """
    G = torch.stack([flat(g) for g in gradients], dim=1)
    m = G.shape[1]
    G = G / (G.square().sum() / m).sqrt()
    W = explicit_matrix(of)
    of_layers = layer_weights or dict.fromkeys(gradients[0], 1.0)
    a = flat({name: torch.full_like(g, of_layers[name]) for name, g in gradients[0].items()})
    lost = (W @ (W.T @ G) - G).square()
    return (a[:, None] * lost).sum() / m, (a[:, None] * G.square()).sum() / m


def copy(of):
    return Directions(
        of.k, {n: type(f)(f.U.clone(), f.V.clone(), f.shape) for n, f in of.factors.items()}
    )


def taking(m, gradients):
    """Samples the next m of some gradients for every update."""

    def sample(observe):
        for gradient in itertools.islice(gradients, m):
            observe(gradient)

    return sample


@pytest.mark.parametrize("weighted", [False, True])
@given(shape=shapes, k=st.integers(1, 5), m=st.integers(1, 5), seed=seeds)
def test_error_and_gradient_equal_autograd_through_encoder_and_decoder(weighted, shape, k, m, seed):
    fast, slow = directions(shape, k, seed), directions(shape, k, seed)
    gradients = [weights(shape, seed + 1 + j) for j in range(m)]
    rho = 7.0
    layers = {name: 3.0 / (1 + place) for place, name in enumerate(shape)} if weighted else None

    autoencoder = DirectionAutoencoder(fast, rho=rho, layer_weights=layers)
    for g in gradients:
        autoencoder.observe(g)
    before_step = {}
    autoencoder._optimizer.step = lambda: before_step.update(
        {n: (f.U.grad.clone(), f.V.grad.clone()) for n, f in fast.factors.items()}
    )
    error = autoencoder.update()

    for f in slow.factors.values():
        f.U.requires_grad_()
        f.V.requires_grad_()
    loss, most = explicit_loss(slow, gradients, layers)
    (rho * loss).backward()
    assert error == pytest.approx((loss / most).item(), rel=1e-10, abs=1e-10)
    for name, f in slow.factors.items():
        torch.testing.assert_close(before_step[name][0], f.U.grad, **EXACT)
        torch.testing.assert_close(before_step[name][1], f.V.grad, **EXACT)


@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_several_updates_equal_adam_on_the_explicit_loss(decay):
    shape = {"w": (4, 3), "b": (4,)}
    fast, slow = directions(shape, 3, 0), directions(shape, 3, 0)
    tensors = [t.requires_grad_() for f in slow.factors.values() for t in (f.U, f.V)]
    adam = torch.optim.Adam(tensors, lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(adam, step_size=1, gamma=decay)
    autoencoder = DirectionAutoencoder(fast, lr=0.05, rho=10.0, lr_decay=decay)
    for update in range(5):
        gradients = [weights(shape, 100 * update + j) for j in range(4)]
        for g in gradients:
            autoencoder.observe(g)
        error = autoencoder.update()
        adam.zero_grad()
        loss, _ = explicit_loss(slow, gradients)
        (10.0 * loss).backward()
        adam.step()
        scheduler.step()
        assert error == pytest.approx(loss.item(), rel=1e-9)
    for name, f in slow.factors.items():
        torch.testing.assert_close(fast.factors[name].U, f.U.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-18, 1e-12, 1e-6, 1e6, 1e15, 1e30])
def test_the_scale_of_the_gradients_does_not_matter_even_in_single_precision(scale):
    """The squares of small entries and the sums of large squares are beyond single precision."""
    shape = {"w": (3, 4), "b": (3,)}
    factors, errors = [], []
    for factor in (1.0, scale):
        torch.manual_seed(0)
        d = Directions.random({name: torch.zeros(size) for name, size in shape.items()}, 4)
        autoencoder = DirectionAutoencoder(d)
        for seed in range(3):
            gradient = {name: t.float() * factor for name, t in weights(shape, seed).items()}
            autoencoder.observe(gradient)
        errors.append(autoencoder.update())
        factors.append(d.factors["w"].U)
    assert errors[0] == pytest.approx(errors[1], rel=1e-4)
    torch.testing.assert_close(*factors)


SIZES = [
    (1e-25, 1.0, 1e-3),
    (1e-18, 1e2, 1e-4),
    (1.0, 1e20, 1e37),
    (1e-18, 1e-3, 1e37),
    (1e37, 1e-18, 1.0),
    (0.0, 0.0, 1e-18),
    (0.0, 1e-17, 1e-25),
]


@pytest.mark.parametrize("sizes", SIZES)
def test_any_finite_gradients_are_learned_from_in_single_precision(sizes):
    """Whatever their sizes are, and in whatever order they come."""
    shape, rho = {"w": (3, 4), "b": (3,)}, 7.0
    like = {name: torch.zeros(size) for name, size in shape.items()}
    fast = Directions.random(like, 4)
    gradients = [
        {name: (t * size).float() for name, t in weights(shape, seed).items()}
        for seed, size in enumerate(sizes)
    ]
    slow = Directions(
        fast.k,
        {
            n: Factors(f.U.double().requires_grad_(), f.V.double().requires_grad_(), f.shape)
            for n, f in fast.factors.items()
        },
    )
    loss, _ = explicit_loss(slow, [{n: t.double() for n, t in g.items()} for g in gradients])
    (rho * loss).backward()

    autoencoder = DirectionAutoencoder(fast, rho=rho)
    for gradient in gradients:
        autoencoder.observe(gradient)
    sums = {}
    autoencoder._optimizer.step = lambda: sums.update(
        {n: (f.U.grad.clone(), f.V.grad.clone()) for n, f in fast.factors.items()}
    )
    assert autoencoder.update() == pytest.approx(loss.item(), rel=1e-5)
    for name, f in slow.factors.items():
        for found, expected in zip(sums[name], (f.U.grad, f.V.grad), strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-30, 1e-21])
def test_vanishing_gradients_count_as_zero(size):
    shape = {"w": (3, 4)}
    d = Directions.random({"w": torch.zeros(3, 4)}, 2)
    before = copy(d)
    gradient = {"w": (weights(shape, 1)["w"] * size).float()}
    fit = fit_directions(d, taking(2, itertools.repeat(gradient)), updates=3)
    assert (fit.errors, fit.shares.tolist(), fit.vanished) == ([0.0] * 3, [0.0, 0.0], 1.0)
    assert torch.equal(d.factors["w"].U, before.factors["w"].U)


def test_vanishing_gradients_among_others_change_nothing_and_are_counted():
    shape = {"w": (3, 4)}
    start = Directions.random({"w": torch.zeros(3, 4)}, 2)
    large = [{"w": weights(shape, seed)["w"].float()} for seed in range(4)]
    small = [{"w": g["w"] * 1e-22} for g in large]

    def fitted(gradients, per_update):
        d = copy(start)
        return d, fit_directions(d, taking(per_update, iter(gradients)), updates=2)

    mixed = [small[0], large[0], large[1], small[1], large[2], large[3]]
    (with_small, fit), (without, reference) = fitted(mixed, 3), fitted(large, 2)
    assert fit.errors == reference.errors
    assert torch.equal(with_small.factors["w"].U, without.factors["w"].U)
    assert (fit.vanished, reference.vanished) == (pytest.approx(1 / 3), 0.0)


def test_divergence_is_told():
    d = directions({"w": (3, 4)}, 2, 0)
    gradient = weights({"w": (3, 4)}, 1)
    with pytest.raises(GradientError, match=r"diverged.*autoencoder_lr"):
        fit_directions(d, taking(1, itertools.repeat(gradient)), updates=50, lr=1e200)


def test_nothing_but_the_directions_is_kept():
    d = directions({"w": (3, 4)}, 2, 0)
    gradient = weights({"w": (3, 4)}, 1)
    fit_directions(d, taking(1, itertools.repeat(gradient)), updates=1)
    assert all(t.grad is None for f in d.factors.values() for t in (f.U, f.V))


def test_fit_finds_the_subspace_the_gradients_lie_in():
    shape = {"w": (6, 5), "b": (6,)}
    basis = [weights(shape, j) for j in range(2)]

    def gradients():
        for j in itertools.count():
            a, b = torch.randn(2, generator=torch.Generator().manual_seed(j), dtype=torch.float64)
            yield {name: a * basis[0][name] + b * basis[1][name] for name in shape}

    d = Directions.random(weights(shape, 9), 24)
    errors = fit_directions(d, taking(8, gradients()), updates=400, lr=0.02).errors
    assert len(errors) == 400
    assert errors[0] > 0.9
    assert errors[-1] < 0.02


@given(shapes, seeds)
def test_shares_are_those_of_the_gradients_along_each_direction(shape, seed):
    d = directions(shape, 3, seed)
    W = explicit_matrix(copy(d))
    gradients = [weights(shape, seed + j) for j in range(1, 5)]
    fit = fit_directions(d, taking(4, iter(gradients)), updates=1)
    G = torch.stack([flat(g) for g in gradients], dim=1)
    expected = (W.T @ G).square().sum(1) / G.square().sum()
    torch.testing.assert_close(fit.shares, expected, rtol=1e-10, atol=1e-10)


def test_shares_follow_the_last_gradients():
    d = directions({"w": (3, 4)}, 2, 0)
    autoencoder = DirectionAutoencoder(d, lr=1e-9)  # directions that stay where they are
    W = explicit_matrix(copy(d))

    def share_of(seed):
        gradient = weights({"w": (3, 4)}, seed)
        autoencoder.observe(gradient)
        autoencoder.update()
        return (W.T @ flat(gradient)).square() / flat(gradient).square().sum()

    first, second = share_of(1), share_of(2)
    torch.testing.assert_close(autoencoder.shares, 0.9 * first + 0.1 * second, rtol=1e-5, atol=0)


def test_gradients_are_taken_one_at_a_time_and_not_kept():
    shape = {"w": (3, 4)}
    alive = []

    def gradients():
        for j in itertools.count():
            tensor = weights(shape, j)["w"]
            alive.append(weakref.ref(tensor))
            assert sum(ref() is not None for ref in alive) <= 2
            yield {"w": tensor}

    fit_directions(directions(shape, 2, 0), taking(16, gradients()), updates=3)
    assert len(alive) == 48


def test_zero_gradients_are_reconstructed_exactly_and_change_nothing():
    d = directions({"w": (3, 4)}, 2, 0)
    before = copy(d)
    zero = {"w": torch.zeros(3, 4, dtype=torch.float64)}
    fit = fit_directions(d, taking(2, itertools.repeat(zero)), updates=3)
    assert fit.errors == [0.0, 0.0, 0.0]
    assert fit.shares.tolist() == [0.0, 0.0]
    assert torch.equal(d.factors["w"].U, before.factors["w"].U)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_broken_gradient_is_refused_by_name(bad, first):
    shape = {"fine": (3, 4), "broken": (2, 2)}
    d = directions(shape, 2, 0)
    before = copy(d)
    gradients = [weights(shape, j) for j in range(4)]
    gradients[first]["broken"][0, 1] = bad
    with pytest.raises(GradientError, match="gradient of 'broken' is infinite or not a number"):
        fit_directions(d, taking(4, iter(gradients)), updates=1)
    assert torch.equal(d.factors["fine"].U, before.factors["fine"].U)


def test_stops_when_the_error_has_stopped_improving():
    shape = {"w": (3, 4)}
    gradient = weights(shape, 1)
    run = {"updates": 500, "lr": 0.05}
    sample = taking(1, itertools.repeat(gradient))
    with_tolerance = fit_directions(
        directions(shape, 2, 0), sample, tolerance=0.05, window=10, **run
    ).errors
    without = fit_directions(directions(shape, 2, 0), sample, **run).errors
    assert 20 <= len(with_tolerance) < 500
    assert with_tolerance == without[: len(with_tolerance)]
    assert len(without) == 500


def test_plateau_compares_two_windows():
    assert not has_stopped_improving([1.0, 1.0, 1.0], 0.1, window=2)
    assert has_stopped_improving([1.0, 1.0, 1.0, 0.95], 0.1, window=2)
    assert not has_stopped_improving([1.0, 1.0, 0.8, 0.8], 0.1, window=2)
    assert has_stopped_improving([0.5, 0.5, 0.6, 0.6], 0.0, window=2)


def test_every_update_is_reported():
    seen = []
    errors = fit_directions(
        directions({"w": (3, 4)}, 2, 0),
        taking(2, itertools.repeat(weights({"w": (3, 4)}, 1))),
        updates=4,
        on_update=seen.append,
    ).errors
    assert seen == errors
