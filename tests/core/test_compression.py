import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_dco.core.compressed_tasks import CompressedTasks, Layout, OldTasks
from avalanche_dco.core.compression import compress
from avalanche_dco.core.compression_loss import lost_energy
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors
from avalanche_dco.errors import SettingError
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


def random_state(shape, seed, tasks=3, shared=4, own=2, with_shares=False):
    """Compressed tasks, and old directions of every task to fit them to."""
    layout = Layout(shared, own, tasks)
    held = CompressedTasks(
        directions(shape, layout.k, seed),
        layout,
        torch.randn(tasks, shared + own, dtype=torch.float64),
    )
    of_old = [torch.tensor(c) for c in ([0, 1, 2, 3], [0, 1, 4, 5], [6, 7, 8])]
    shares = torch.rand(9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return held, OldTasks(directions(shape, 9, seed + 1), of_old, shares if with_shares else None)


def explicit_loss(held, old):
    """The formulas of the module's first lines, with matrices as long as the weights."""
    W, B = explicit_matrix(old.directions), explicit_matrix(held.directions)
    lost, there = [], []
    for mine, before in zip(columns(held), old.columns, strict=True):
        error = (B[:, mine] @ (B[:, mine].T @ W[:, before]) - W[:, before]).square().sum(0)
        share = torch.ones(len(before)) if old.shares is None else old.shares[before]
        lost.append((share * error).sum())
        there.append((share * W[:, before].square().sum(0)).sum())
    if old.shares is None:
        return sum(lost) / sum(there)
    return sum(a / b for a, b in zip(lost, there, strict=True)) / len(lost)


@pytest.mark.parametrize("with_shares", [False, True])
@given(shape=shapes, seed=seeds)
def test_loss_and_gradient_equal_the_explicit_ones(with_shares, shape, seed):
    fast, old = random_state(shape, seed, with_shares=with_shares)
    slow, _ = random_state(shape, seed, with_shares=with_shares)
    for f in slow.directions.factors.values():
        f.U.requires_grad_(), f.V.requires_grad_()
    explicit = explicit_loss(slow, old)
    explicit.backward()
    loss = 1 + lost_energy(fast.directions, columns(fast), old, old.weights())
    torch.testing.assert_close(loss, explicit, **EXACT)
    for name, f in slow.directions.factors.items():
        torch.testing.assert_close(fast.directions.factors[name].U.grad, f.U.grad, **EXACT)
        torch.testing.assert_close(fast.directions.factors[name].V.grad, f.V.grad, **EXACT)


@given(shapes, seeds)
def test_penalty_is_the_sum_over_tasks(shape, seed):
    held, _ = random_state(shape, seed)
    x = weights(shape, seed + 5)
    W = explicit_matrix(held.directions)
    expected = sum(
        (W[:, columns(held)[j]].T @ flat(x) - held.targets[j]).square().sum() for j in range(3)
    )
    torch.testing.assert_close(held.penalty()(x, 1.0), expected, **EXACT)


def test_stored_parameters_stay_within_k_over_twenty_tasks():
    shape, k = {"w": (6, 5), "b": (6,)}, 40
    held, shares = None, torch.rand(12, dtype=torch.float64)
    for task in range(1, 21):
        x, new = weights(shape, task), directions(shape, 12, task)
        held, errors = compress(held, new, x, k=k, shares=shares, updates=3)
        assert held.layout.tasks == task
        assert (held.layout.shared, held.layout.own) == (k // 2, k // (2 * task))
        stored = sum(f.U.numel() + f.V.numel() for f in held.directions.factors.values())
        assert stored <= k * ((6 + 5) + (6 + 1))
        assert held.targets.shape == (task, held.layout.shared + held.layout.own)
        assert held.targets.numel() <= k * task
        assert len(errors) == 3
        assert held.shares.numel() == held.directions.k <= k
        assert held.nbytes == 8 * (stored + held.targets.numel() + held.shares.numel())


@pytest.mark.parametrize("start", ["previous", "noise"])
def test_error_falls(start):
    shape = {"w": (8, 6), "b": (8,)}
    held = None
    for task in range(3):
        held, errors = compress(
            held, directions(shape, 6, task), weights(shape, 9), k=24, updates=60, start=start
        )
        assert errors[-1] < errors[0]


def test_from_noise_with_the_paper_s_loss_it_equals_two_adams_on_the_explicit_loss():
    """The authors' code has an optimizer for shared columns and one for all own columns."""
    shape, k = {"w": (5, 4), "v": (3, 5)}, 8
    x = weights(shape, 9)
    first, _ = compress(None, directions(shape, 6, 0), x, k=k, updates=1)
    new = directions(shape, 3, 1)
    torch.manual_seed(0)
    held, errors = compress(first, new, x, k=k, updates=6, lr=0.02, rho=1e3, start="noise")

    torch.manual_seed(0)
    start, shared = Directions.random(x, held.layout.k), held.layout.shared
    parts = {
        (name, side): tensor.split([shared, held.layout.k - shared], dim=1)
        for name, f in start.factors.items()
        for side, tensor in (("U", f.U), ("V", f.V))
    }
    parts = {key: [part.clone().requires_grad_() for part in pair] for key, pair in parts.items()}
    adams = [torch.optim.Adam([pair[i] for pair in parts.values()], lr=0.02) for i in range(2)]
    old = OldTasks.of(first, new, None)
    for error in errors:
        joined = {key: torch.cat(pair, dim=1) for key, pair in parts.items()}
        B = Directions(
            held.layout.k,
            {name: Factors(joined[name, "U"], joined[name, "V"], x[name].shape) for name in shape},
        )
        loss = explicit_loss(CompressedTasks(B, held.layout, held.targets), old)
        assert error == pytest.approx(loss.item(), rel=1e-9)
        for adam in adams:
            adam.zero_grad()
        (1e3 * loss).backward()
        for adam in adams:
            adam.step()
    for name, f in held.directions.factors.items():
        torch.testing.assert_close(f.U, torch.cat(parts[name, "U"], dim=1).detach(), **EXACT)
        torch.testing.assert_close(f.V, torch.cat(parts[name, "V"], dim=1).detach(), **EXACT)


def unit(of):
    """The same directions, each of length one, as those of a trained autoencoder about are."""
    lengths = of.gram().diagonal().sqrt()
    return Directions(
        of.k, {n: Factors(f.U / lengths, f.V, f.shape) for n, f in of.factors.items()}
    )


def test_the_previous_compression_is_nearer_to_begin_with():
    shape = {"w": (8, 6), "b": (8,)}
    first, _ = compress(None, unit(directions(shape, 6, 0)), weights(shape, 9), k=24, updates=100)
    news = unit(directions(shape, 6, 1))
    starts = {
        start: compress(first, news, weights(shape, 9), k=24, updates=1, start=start)[1][0]
        for start in ("previous", "noise")
    }
    assert starts["previous"] < starts["noise"]


def test_directions_along_which_gradients_lie_survive():
    """Room for half of a task's directions: weighted, it goes to those the gradients lie along."""
    shape = {"w": (8, 6)}
    new = unit(directions(shape, 8, 0))
    shares = torch.tensor([1.0] * 4 + [1e-4] * 4, dtype=torch.float64)
    lost = {}
    for name, given_shares in {"gradients": shares, "directions": None}.items():
        held, _ = compress(None, new, weights(shape, 9), k=4, shares=given_shares, updates=200)
        W, B = explicit_matrix(new)[:, :4], explicit_matrix(held.directions)
        lost[name] = ((B @ (B.T @ W) - W).square().sum() / W.square().sum()).item()
    assert lost["gradients"] < 0.1 < lost["directions"]


@given(seeds)
def test_shares_after_a_compression_are_those_of_gradients_with_uncorrelated_codes(seed):
    """Of gradients sum_p c_p w_p, c_p = +-sqrt(s_p) in all combinations of signs."""
    shape = {"w": (4, 5)}
    new = directions(shape, 3, seed)
    shares = torch.rand(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    held, _ = compress(None, new, weights(shape, 9), k=4, shares=shares, updates=2)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
    G = explicit_matrix(new) @ (signs * shares.sqrt()).T
    expected = (explicit_matrix(held.directions).T @ G).square().mean(1)
    torch.testing.assert_close(held.shares, expected, **EXACT)


def test_share_of_a_shared_column_is_the_mean_over_tasks():
    shape = {"w": (4, 5)}
    ones = torch.ones(4, dtype=torch.float64)
    first, _ = compress(None, directions(shape, 4, 0), weights(shape, 9), k=8, shares=ones)
    new = directions(shape, 4, 1)
    both, _ = compress(first, new, weights(shape, 9), k=8, shares=ones, updates=2)
    W, B = explicit_matrix(first.directions), explicit_matrix(both.directions)
    of_first = (B.T @ W).square() @ first.shares
    of_second = (B.T @ explicit_matrix(new)).square().sum(1)
    shared, own = (of_first + of_second)[:4] / 2, torch.cat([of_first[4:6], of_second[6:]])
    torch.testing.assert_close(both.shares, torch.cat([shared, own]), **EXACT)


def test_tasks_with_and_without_shares_do_not_mix():
    shape, ones = {"w": (4, 5)}, torch.ones(4, dtype=torch.float64)
    first, _ = compress(None, directions(shape, 4, 0), weights(shape, 9), k=8, updates=1)
    with pytest.raises(SettingError, match="all of them have shares or none"):
        compress(first, directions(shape, 4, 1), weights(shape, 9), k=8, shares=ones)


def test_targets_of_the_new_task_are_its_codes():
    shape = {"w": (4, 3)}
    held, _ = compress(None, directions(shape, 4, 0), weights(shape, 1), k=8, updates=2)
    second = weights(shape, 2)
    held, _ = compress(held, directions(shape, 4, 1), second, k=8, updates=2)
    codes = held.directions.encode(second)[columns(held)[1]]
    torch.testing.assert_close(held.targets[1], codes, **EXACT)


@given(seeds)
def test_targets_of_old_tasks_are_those_of_the_nearest_weights_with_their_codes(seed):
    """By explicit least squares: nearest to x among all weights with the codes of x_1*."""
    shape = {"w": (4, 5)}
    x_1, x_2 = weights(shape, seed), weights(shape, seed + 1)
    first, _ = compress(None, directions(shape, 6, seed + 2), x_1, k=8, updates=2)
    both, _ = compress(first, directions(shape, 4, seed + 3), x_2, k=8, updates=2)

    W = explicit_matrix(first.directions)[:, columns(first)[0]]
    step = torch.linalg.lstsq(W.T, first.targets[0] - W.T @ flat(x_2), driver="gelsd").solution
    B = explicit_matrix(both.directions)[:, columns(both)[0]]
    expected = B.T @ (flat(x_2) + step)
    torch.testing.assert_close(both.targets[0], expected, rtol=1e-6, atol=1e-6)


def test_old_targets_survive_where_nothing_has_to_be_given_up():
    """If the model has not left x_1*, its targets under new directions are simply its codes."""
    shape = {"w": (4, 5)}
    x = weights(shape, 0)
    first, _ = compress(None, directions(shape, 6, 1), x, k=8, updates=5)
    both, _ = compress(first, directions(shape, 4, 2), x, k=8, updates=5)
    codes = both.directions.encode(x)
    torch.testing.assert_close(both.targets[0], codes[columns(both)[0]], **EXACT)
    assert both.penalty()(x, 1.0).item() == pytest.approx(0, abs=1e-12)


def test_parameters_that_only_some_tasks_have():
    shared, head_0, head_1 = {"body": (4, 3)}, {"head0": (2, 4)}, {"head1": (2, 4)}
    x = weights(shared | head_0 | head_1, 0)
    first, _ = compress(None, directions(shared | head_0, 4, 1), x, k=8, updates=3)
    both, _ = compress(first, directions(shared | head_1, 4, 2), x, k=8, updates=3)
    assert both.directions.factors.keys() == x.keys()
    own_1 = both.directions.select(columns(both)[1][both.layout.shared :])
    assert own_1.factors["head1"].U.abs().sum() > 0


@given(shapes, st.integers(1, 4), seeds)
def test_select_takes_columns(shape, n, seed):
    d = directions(shape, 3, seed).cat(directions({"w": (3, 4), **shape}, 2, seed + 1))
    wanted = torch.randint(0, 5, (n,))
    chosen = Directions(5, {name: d.factors[name] for name in shape}).select(wanted)
    full = explicit_matrix(Directions(5, {name: d.factors[name] for name in shape}))
    torch.testing.assert_close(explicit_matrix(chosen), full[:, wanted], **EXACT)


@pytest.mark.parametrize("couple_layers", [True, False])
@pytest.mark.parametrize("start", ["previous", "noise"])
def test_heads_of_many_tasks_take_the_memory_of_one(start, couple_layers):
    """Also when k is too small for own columns of every task."""
    body, k, held, sizes = {"body": (4, 3)}, 16, None, []
    for task in range(10):
        heads = {f"head{j}": (2, 4) for j in range(task + 1)}
        x = weights(body | heads, task)
        new = directions(body | {f"head{task}": (2, 4)}, 4, task)
        held, _ = compress(held, new, x, k=k, updates=2, start=start, couple_layers=couple_layers)
        sizes.append(held.directions.nbytes)
        for j in range(task + 1):
            part = held.directions.factors[f"head{j}"].columns
            assert set(range(part.start, part.stop)) <= set(columns(held)[j].tolist())
        assert held.penalty()(x, 1.0).isfinite()
    assert max(sizes) == sizes[0]


@pytest.mark.parametrize("couple_layers", [True, False])
def test_a_head_used_again_is_shared(couple_layers):
    shape = {"body": (4, 3), "head0": (2, 4), "head1": (2, 4)}
    held, x = None, weights(shape, 0)
    for task, head in enumerate(["head0", "head1", "head1", "head0"]):
        new = directions({name: shape[name] for name in ("body", head)}, 4, task)
        held, _ = compress(held, new, x, k=16, updates=2, couple_layers=couple_layers)
    assert all(f.columns == slice(0, held.directions.k) for f in held.directions.factors.values())
    assert held.penalty()(x, 1.0).item() == pytest.approx(0, abs=1e-9)
