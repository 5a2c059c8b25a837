"""A penalty on every layer's codes instead of on their sum (``couple_layers=False``)."""

import pytest
import torch
from hypothesis import given

from avalanche_dco import DCOCompPlugin, DCOPlugin
from avalanche_dco.core.compression import compress
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.core.span import DirectionSpan
from avalanche_dco.errors import SettingError
from tests.support.learning import (
    QUICK,
    blobs,
    errors_on_two_permutations,
    naive,
    small_mlp,
    train,
    weights_of,
)
from tests.support.problems import (
    columns,
    directions,
    explicit_matrix,
    flat,
    seeds,
    shapes,
    weights,
)

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def apart(d, x_star):
    return Penalty.keeping(x_star, d, couple_layers=False)


def explicit(d, x, x_star):
    """sum_l ||W_l^T (x_l - x_l*)||^2 with the matrices W_l of every parameter."""
    return sum(
        (explicit_matrix(d.of_parameter(name)).T @ (x[name] - x_star[name]).reshape(-1))
        .square()
        .sum()
        for name in d.factors
    )


@given(shapes, seeds)
def test_codes_of_parameters_add_up_to_the_papers_and_share_its_tensors(shape, seed):
    d, x = directions(shape, 3, seed), weights(shape, seed + 1)
    rows = d.by_parameter().encode(x).reshape(len(shape), 3)
    torch.testing.assert_close(rows.sum(0), d.encode(x), **EXACT)
    for name, f in d.by_parameter().factors.items():
        assert f.U is d.factors[name].U
        assert f.V is d.factors[name].V


@given(shapes, seeds)
def test_value_and_gradient_equal_autograd_through_explicit_matrices(shape, seed):
    tasks = [(directions(shape, 3, seed + j), weights(shape, seed + 10 + j)) for j in range(2)]
    first, second = (apart(*task) for task in tasks)
    x, y = (
        {name: tensor.requires_grad_() for name, tensor in weights(shape, seed + 20).items()}
        for _ in range(2)
    )
    value = first.cat(second)(x, 3.0)
    value.backward()
    expected = 3.0 * sum(explicit(d, y, x_star) for d, x_star in tasks)
    expected.backward()
    torch.testing.assert_close(value, expected, **EXACT)
    for name in shape:
        torch.testing.assert_close(x[name].grad, y[name].grad, **EXACT)


def test_layers_cannot_move_against_each_other():
    d = directions({"a": (2, 2), "b": (2, 2)}, 1, 0)
    x_star = weights({"a": (2, 2), "b": (2, 2)}, 1)
    away = d.decode(torch.ones(1, dtype=torch.float64))
    length = {name: part.square().sum() for name, part in away.items()}
    x = {
        "a": x_star["a"] + away["a"] / length["a"],
        "b": x_star["b"] - away["b"] / length["b"],
    }
    assert Penalty(d, d.encode(x_star))(x, 1.0).item() == pytest.approx(0, abs=1e-12)
    assert apart(d, x_star)(x, 1.0).item() == pytest.approx(2)


def test_parameters_that_only_one_of_two_tasks_has():
    old, new = {"w": (3, 4), "head1": (2, 3)}, {"w": (3, 4), "head2": (2, 3)}
    tasks = [(directions(s, 3, j), weights(s, 10 + j)) for j, s in enumerate((old, new))]
    first, second = (apart(*task) for task in tasks)
    x = weights({**old, **new}, 20)
    expected = sum(explicit(d, x, x_star) for d, x_star in tasks)
    both = first.cat(second)
    torch.testing.assert_close(both(x, 1.0), expected, **EXACT)
    assert len(both.targets) == 3 * 4  # none for a head and the task that does not have it

    third, x_star = directions(old, 3, 7), weights(old, 17)  # head1 again: a gap for the second
    expected += explicit(third, x, x_star)
    torch.testing.assert_close(both.cat(apart(third, x_star))(x, 1.0), expected, **EXACT)


def test_clipping_and_frozen_parameters():
    shape = {"a": (3, 2), "b": (2, 2)}
    penalty, x = apart(directions(shape, 3, 0), weights(shape, 1)), weights(shape, 2)
    x["b"].requires_grad_()
    value = penalty(x, 1.0, max_grad_norm=0.1)
    value.backward()
    assert x["a"].grad is None
    assert x["b"].grad.norm().item() == pytest.approx(0.1)
    torch.testing.assert_close(value, penalty(weights(shape, 2), 1.0), **EXACT)


def test_coupled_and_apart_do_not_mix():
    shape = {"w": (3, 4)}
    d, x = directions(shape, 4, 0), weights(shape, 1)
    with pytest.raises(SettingError, match="same couple_layers"):
        apart(d, x).cat(Penalty.keeping(x, d, couple_layers=True))
    first, _ = compress(None, d, x, k=8, updates=1)
    with pytest.raises(SettingError, match="couple_layers=True, and the new one has False"):
        compress(first, d, x, k=8, updates=1, couple_layers=False)


def test_state_and_growth_keep_the_value():
    shape, grown = {"head": (2, 3), "bias": (2,)}, {"head": (4, 3), "bias": (4,)}
    penalty = apart(directions(shape, 3, 0), weights(shape, 1))
    x, wider = weights(shape, 2), weights(grown, 3)
    for name, part in x.items():
        wider[name][:2] = part
    again = Penalty.from_state(penalty.state())
    assert not again.couple_layers
    torch.testing.assert_close(again(x, 1.0), penalty(x, 1.0), rtol=0, atol=0)
    torch.testing.assert_close(penalty.adapted_to(wider)(wider, 1.0), penalty(x, 1.0), **EXACT)


@given(shapes, seeds)
def test_compressed_penalty_is_the_sum_over_tasks_and_layers(shape, seed):
    held, x = None, [weights(shape, seed + j) for j in range(3)]
    for j in range(3):
        new = directions(shape, 4, seed + 5 + j)
        held, _ = compress(held, new, x[j], k=12, updates=1, couple_layers=False)
    y = weights(shape, seed + 9)
    expected = 0
    for number, name in enumerate(shape):
        W = explicit_matrix(held.directions.of_parameter(name))
        for j in range(3):
            z = W[:, columns(held)[j]].T @ y[name].reshape(-1)
            expected += (z - held.targets[j, number]).square().sum()
    torch.testing.assert_close(held.penalty()(y, 1.0), expected, **EXACT)


@given(seeds)
def test_compressed_targets_are_those_of_the_nearest_weights_of_every_layer(seed):
    shape = {"v": (3, 5), "w": (4, 5)}
    x_1, x_2 = weights(shape, seed), weights(shape, seed + 1)
    first, _ = compress(
        None, directions(shape, 6, seed + 2), x_1, k=8, updates=2, couple_layers=False
    )
    both, _ = compress(
        first, directions(shape, 4, seed + 3), x_2, k=8, updates=2, couple_layers=False
    )
    for number, name in enumerate(shape):
        here = x_2[name].reshape(-1)
        W = explicit_matrix(first.directions.of_parameter(name))[:, columns(first)[0]]
        B = explicit_matrix(both.directions.of_parameter(name))
        away = first.targets[0, number] - W.T @ here
        step = torch.linalg.lstsq(W.T, away, driver="gelsd").solution
        expected = B[:, columns(both)[0]].T @ (here + step)
        torch.testing.assert_close(both.targets[0, number], expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            both.targets[1, number],
            B[:, columns(both)[1]].T @ here,
            **EXACT,
        )


def test_compression_takes_in_parameters_that_a_later_task_brings_or_does_without():
    old, new = {"w": (3, 4), "head1": (2, 3)}, {"w": (3, 4), "head2": (2, 3)}
    x_1, x_2 = weights({**old, **new}, 0), weights({**old, **new}, 1)
    first, _ = compress(None, directions(old, 6, 1), x_1, k=8, updates=2, couple_layers=False)
    both, _ = compress(first, directions(new, 4, 2), x_2, k=8, updates=2, couple_layers=False)
    assert list(both.directions.factors) == ["w", "head1", "head2"]
    assert both.targets.shape == (2, 3, both.layout.shared + both.layout.own)
    for number, name in enumerate(both.directions.factors):
        here, mine = x_2[name].reshape(-1), columns(both)[0]
        B = explicit_matrix(both.directions.of_parameter(name))[:, mine]
        expected = B.T @ here
        if name in old:
            W = explicit_matrix(first.directions.of_parameter(name))[:, columns(first)[0]]
            away = first.targets[0, number] - W.T @ here
            expected += B.T @ torch.linalg.lstsq(W.T, away, driver="gelsd").solution
        torch.testing.assert_close(both.targets[0, number], expected, rtol=1e-6, atol=1e-6)

    grown = {name: torch.zeros(*t.shape[:-1], t.shape[-1] + 2).double() for name, t in x_2.items()}
    for name, tensor in x_2.items():
        grown[name][:, : tensor.shape[1]] = tensor
    value = both.adapted_to(grown).penalty()(grown, 1.0)
    torch.testing.assert_close(value, both.penalty()(x_2, 1.0), **EXACT)


@pytest.mark.parametrize("plugin", [DCOPlugin, DCOCompPlugin])
def test_plugins_learn_otherwise_with_the_same_directions(plugin):
    first, second = blobs(2).train_stream
    learned, after = {}, {}
    for couple in (True, False):
        torch.manual_seed(1)
        strategy = naive(small_mlp(), [plugin(**QUICK, couple_layers=couple)])
        strategy.train(first)
        penalty = strategy.plugins[0].penalty
        assert penalty.couple_layers is couple
        learned[couple] = explicit_matrix(penalty.directions)
        strategy.train(second)
        after[couple] = weights_of(strategy.model)
        moved = penalty(dict(strategy.model.named_parameters()), 1.0)
        assert moved.item() > 0
    assert torch.equal(learned[True], learned[False])
    assert not torch.equal(after[True], after[False])


def test_capacity_is_that_of_the_parts():
    """Layers that move against each other are in the span of the parts, not in that of the sum."""
    shape = {"a": (3, 2), "b": (2, 2), "free": (2,)}
    d = directions({"a": (3, 2), "b": (2, 2)}, 1, 0)
    away = d.decode(torch.ones(1, dtype=torch.float64))
    length = {name: part.square().sum() for name, part in away.items()}
    against = {"a": away["a"] / length["a"], "b": -away["b"] / length["b"]}
    assert DirectionSpan(d).shares([against]).item() == pytest.approx(0, abs=1e-8)
    assert DirectionSpan(d, couple_layers=False).shares([against]).item() == pytest.approx(1)

    d, gradients = directions(shape, 2, 1), [weights(shape, seed) for seed in range(3)]
    expected = []
    for g in gradients:
        inside = 0.0
        for name in shape:
            W, part = explicit_matrix(d.of_parameter(name)), g[name].reshape(-1)
            inside += (W @ torch.linalg.lstsq(W, part, driver="gelsd").solution).square().sum()
        expected.append(inside / flat(g).square().sum())
    shares = DirectionSpan(d, couple_layers=False).shares(gradients)
    torch.testing.assert_close(shares, torch.stack(expected), rtol=1e-6, atol=1e-6)


def test_forgets_less_than_naive():
    settings = {"gradients_per_update": 8, "autoencoder_updates": 40, "push_epochs": 2, "k": 32}
    settings |= {"directions": "trained", "penalty_every": 1}
    errors = errors_on_two_permutations([DCOPlugin(**settings, couple_layers=False)])
    assert errors[0] < 0.8 * errors_on_two_permutations([])[0]


@pytest.mark.parametrize("plugin", [DCOPlugin, DCOCompPlugin])
@pytest.mark.filterwarnings("error:Experience")
def test_memory_is_as_expected(plugin):
    first, second = blobs(2).train_stream

    def bytes_kept(**limit):
        strategy = naive(small_mlp(), [plugin(**QUICK, couple_layers=False, **limit)])
        strategy.train(first)
        strategy.train(second)
        return strategy.plugins[0].memory_bytes

    kept = bytes_kept()
    expected = kept if plugin is DCOPlugin else 1.1 * kept  # at most
    assert bytes_kept(max_bytes=expected) == kept
    with pytest.raises(UserWarning, match="may keep"):
        bytes_kept(max_bytes=kept - 1)
    coupled = train(small_mlp(), blobs(2), [plugin(**QUICK, couple_layers=True)])
    coupled = coupled.plugins[0].memory_bytes
    per_target = 4 * (16 if plugin is DCOPlugin else 8 + 2 * (4 + 2))
    assert kept - coupled == 3 * per_target  # four parameters instead of one sum


@pytest.mark.parametrize("couple_layers", [True, False])
@pytest.mark.filterwarnings("error:Experience")
def test_memory_of_dco_comp_counts_parameters_that_were_frozen_since(couple_layers):
    first, second = blobs(2).train_stream

    def bytes_kept(max_bytes=None):
        model = small_mlp()
        strategy = naive(model, [DCOCompPlugin(**QUICK, couple_layers=couple_layers)])
        strategy.train(first)
        model[0].requires_grad_(False)
        strategy.plugins[0].max_bytes = max_bytes
        strategy.train(second)
        return strategy.plugins[0].memory_bytes

    with pytest.raises(UserWarning, match="may keep"):
        bytes_kept(bytes_kept() - 1)
