"""Kronecker factors, their sums, and the damped step, against explicit matrices."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_dco.baselines.gradient_projection import project_out
from avalanche_dco.core.damping import (
    DampedShare,
    DampedStep,
    DampedUpdate,
    eigen,
)
from avalanche_dco.core.kronecker import Curvature, KroneckerFactors, bias_of
from avalanche_dco.errors import ModelError
from tests.support.problems import seeds

sizes = st.integers(1, 5)
strengths = st.sampled_from([0.0, 0.3, 10.0, 1e6])


def moment(groups: int, size: int) -> torch.Tensor:
    """A second moment of random vectors, at times of lower rank."""
    vectors = torch.randn(groups, max(1, size - 1), size, dtype=torch.float64)
    return vectors.mT @ vectors


def factors(outputs: int, inputs: int, groups: int = 1, **kwargs) -> KroneckerFactors:
    return KroneckerFactors(moment(groups, inputs), moment(groups, outputs), **kwargs)


def dense(f: KroneckerFactors, group: int = 0) -> torch.Tensor:
    """S (x) A of one group, for matrices that are flattened row by row."""
    return torch.kron(f.S[group] / f.tasks, f.A[group])


@given(seeds, sizes, sizes, st.integers(1, 3), strengths, st.integers(1, 3))
def test_step_is_the_inverse_of_the_explicit_matrix(seed, outputs, inputs, groups, strength, n):
    torch.manual_seed(seed)
    f = factors(outputs, inputs, groups, tasks=n)
    change = torch.randn(groups, outputs, inputs, dtype=torch.float64)
    damped = change - DampedStep(f, strength).correction(change)
    for group in range(groups):
        explicit = torch.eye(outputs * inputs, dtype=torch.float64) + strength * dense(f, group)
        expected = torch.linalg.solve(explicit, change[group].flatten()).view(outputs, inputs)
        torch.testing.assert_close(damped[group], expected, rtol=1e-6, atol=1e-8)


@given(seeds, sizes, st.integers(2, 6), st.integers(1, 4))
def test_infinite_strength_without_output_side_is_gpm(seed, outputs, inputs, rank):
    """With S = I and A of the remembered inputs, nothing moves along them."""
    torch.manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(1, inputs, min(rank, inputs), dtype=torch.float64)).Q
    f = KroneckerFactors(basis @ basis.mT, torch.eye(outputs, dtype=torch.float64)[None])
    change = torch.randn(1, outputs, inputs, dtype=torch.float64)
    damped = change - DampedStep(f, 1e12, negligible=0.01).correction(change)
    torch.testing.assert_close(damped, project_out(change, basis), rtol=0, atol=1e-9)


def test_a_strength_beyond_all_numbers_projects():
    f = KroneckerFactors(torch.eye(3)[None], torch.eye(2)[None])
    step = DampedStep(f, 1e38)
    change = torch.randn(1, 2, 3) * 1e3
    torch.testing.assert_close(step.correction(change), change)


@given(seeds, st.integers(2, 6), st.integers(2, 6))
def test_negligible_directions_change_a_step_by_no_more_than_said(seed, outputs, inputs):
    torch.manual_seed(seed)
    f = factors(outputs, inputs)
    change = torch.randn(1, outputs, inputs, dtype=torch.float64)
    exact, thrifty = (DampedStep(f, 1.0, share).correction(change) for share in (0.0, 0.1))
    assert (exact - thrifty).norm() <= 0.1 * change.norm() + 1e-12


def test_negligible_directions_are_left_out():
    f = KroneckerFactors(torch.diag(torch.tensor([1e-6, 1.0, 2.0]))[None], torch.eye(4)[None])
    step = DampedStep(f, 1.0, 0.02)
    assert step.V.shape == (1, 3, 2)
    assert step.U.shape == (1, 4, 4)


def test_free_share_is_the_mean_damping():
    f = factors(3, 4)
    eigenvalues = torch.linalg.eigvalsh(dense(f)).clamp(min=0)
    expected = (1 / (1 + 2.5 * eigenvalues)).mean()
    assert f.free_share(2.5) == pytest.approx(expected.item())
    assert f.free_share(0.0) == 1
    h = torch.tensor([0.0, 1.0, 3.0])
    shares = Curvature({"0.weight": f}, {"scale": h}).free_shares(2.0)
    assert shares["scale"] == pytest.approx((1 + 1 / 3 + 1 / 7) / 3)
    assert shares.keys() == {"0.weight", "scale"}


class TestDampedShare:
    @given(seeds, strengths)
    def test_it_is_what_the_explicit_matrix_takes_away(self, seed, strength):
        torch.manual_seed(seed)
        f, h = factors(2, 5, groups=2, bias=True), torch.rand(3, dtype=torch.float64)
        gradient = {
            "conv.weight": torch.randn(4, 1, 2, 2, dtype=torch.float64),
            "conv.bias": torch.randn(4, dtype=torch.float64),
            "scale": torch.randn(3, dtype=torch.float64),
            "free": torch.randn(2, dtype=torch.float64),
        }
        matrix = torch.cat([gradient["conv.weight"].flatten(1), gradient["conv.bias"][:, None]], 1)
        left = gradient["free"].square().sum()
        left += (gradient["scale"].square() / (1 + strength * h)).sum()
        for group in range(2):
            part = matrix[2 * group : 2 * group + 2].flatten()
            explicit = torch.eye(10, dtype=torch.float64) + strength * dense(f, group)
            left += part @ torch.linalg.solve(explicit, part)
        whole = sum(part.square().sum() for part in gradient.values())
        shares = DampedShare(Curvature({"conv.weight": f}, {"scale": h}), strength).shares(
            [gradient]
        )
        torch.testing.assert_close(shares[0], 1 - left / whole, rtol=1e-6, atol=1e-8)

    def test_infinite_strength_is_the_share_in_the_span(self):
        basis = torch.linalg.qr(torch.randn(1, 5, 2, dtype=torch.float64)).Q
        f = KroneckerFactors(basis @ basis.mT, torch.eye(3, dtype=torch.float64)[None])
        gradient = torch.randn(3, 5, dtype=torch.float64)
        inside = (gradient @ basis[0]).square().sum() / gradient.square().sum()
        share = DampedShare(Curvature({"weight": f}), 1e6).shares([{"weight": gradient}])
        torch.testing.assert_close(share[0], inside, rtol=1e-5, atol=0)

    def test_no_gradient_and_a_broken_one(self):
        share = DampedShare(Curvature({"weight": factors(2, 3)}), 1.0)
        zero = torch.zeros(2, 3, dtype=torch.float64)
        broken = torch.full_like(zero, torch.nan)
        shares = share.shares([{"weight": zero}, {"weight": broken}, {}])
        assert shares.isnan().tolist() == [False, True, False]
        assert shares[[0, 2]].tolist() == [0, 0]

    def test_a_bias_without_gradient(self):
        share = DampedShare(Curvature({"weight": factors(2, 4, bias=True)}), 1.0)
        assert 0 < share.shares([{"weight": torch.ones(2, 3, dtype=torch.float64)}])[0] < 1


class TestSums:
    def test_tasks_add_up(self):
        first, second = factors(2, 3), factors(2, 3)
        total = first + second
        torch.testing.assert_close(total.A, first.A + second.A)
        torch.testing.assert_close(total.S, first.S + second.S)
        assert total.tasks == 2

    def test_the_same_task_twice_counts_twice(self):
        f = factors(2, 3)
        torch.testing.assert_close(dense(f + f), 2 * dense(f))

    def test_a_head_that_has_grown_is_free_in_its_new_rows(self):
        old, new = factors(2, 3), factors(4, 3)
        total = old + new
        torch.testing.assert_close(total.S[:, :2, :2], old.S + new.S[:, :2, :2])
        torch.testing.assert_close(total.S[:, 2:, 2:], new.S[:, 2:, 2:])

    def test_the_constant_stays_last_when_inputs_grow(self):
        old = factors(2, 3, bias=True)
        grown = old.grown(2, 4, bias=True)
        kept = [0, 1, 4]
        torch.testing.assert_close(grown.A[:, kept][:, :, kept], old.A)
        assert grown.A[:, 2:4].abs().max() == 0

    def test_a_bias_that_is_thawed_later(self):
        frozen, thawed = factors(2, 3), factors(2, 4, bias=True)
        total = frozen + thawed
        assert total.bias
        torch.testing.assert_close(total.A[:, :3, :3], frozen.A + thawed.A[:, :3, :3])
        torch.testing.assert_close((thawed + frozen).A, total.A)

    @pytest.mark.parametrize(("growth", "expected"), [(1.0, 8.0), (0.5, 4.0), (0.0, 2.0)])
    def test_strength_by_the_number_of_tasks(self, growth, expected):
        four = sum([Curvature(tasks=1)] * 4, Curvature())
        assert four.strength(8.0, growth) == expected
        assert Curvature().strength(8.0, growth) == 8

    def test_other_parameters(self):
        first = Curvature({}, {"scale": torch.ones(2), "old": torch.ones(1)})
        second = Curvature({}, {"scale": torch.full((3,), 2.0), "new": torch.ones(1)})
        total = (first + second).diagonal
        assert total["scale"].tolist() == [3, 3, 2]
        assert total.keys() == {"scale", "old", "new"}


class TestFollowing:
    def parameters(self):
        return {
            "head.weight": torch.zeros(4, 3),
            "head.bias": torch.zeros(4),
            "norm": torch.zeros(3),
        }

    def test_grown_parameters(self):
        curvature = Curvature(
            {"head.weight": factors(2, 4, bias=True)}, {"norm": torch.ones(2)}
        ).adapted_to(self.parameters())
        assert curvature.layers["head.weight"].S.shape == (1, 4, 4)
        assert curvature.diagonal["norm"].tolist() == [1, 1, 0]

    def test_another_precision(self):
        curvature = Curvature({"head.weight": factors(4, 3)}, {"norm": torch.ones(3).double()})
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            found = curvature.adapted_to({n: p.to(dtype) for n, p in self.parameters().items()})
            expected = torch.promote_types(dtype, torch.float32)
            assert found.layers["head.weight"].A.dtype == expected
            assert found.layers["head.weight"].S.dtype == expected
            assert found.diagonal["norm"].dtype == expected

    def test_a_parameter_that_is_gone(self):
        with pytest.raises(ModelError, match="no longer has 'gone'"):
            Curvature({}, {"gone": torch.ones(2)}).adapted_to(self.parameters())

    def test_a_layer_that_has_shrunk(self):
        with pytest.raises(ModelError, match=r"'head.weight' had shape \(5, 3\)"):
            Curvature({"head.weight": factors(5, 3)}).adapted_to(self.parameters())

    def test_a_bias_that_is_gone(self):
        parameters = self.parameters()
        del parameters["head.bias"]
        with pytest.raises(ModelError, match=r"no longer has 'head\.bias'"):
            Curvature({"head.weight": factors(4, 4, bias=True)}).adapted_to(parameters)

    def test_a_parameter_that_has_shrunk(self):
        with pytest.raises(ModelError, match="'norm' had shape"):
            Curvature({}, {"norm": torch.ones(5)}).adapted_to(self.parameters())


class TestDampedUpdate:
    @given(seeds, strengths)
    def test_all_parameters_of_a_layer_and_beside_it(self, seed, strength):
        torch.manual_seed(seed)
        weight = torch.nn.Parameter(torch.randn(4, 1, 2, 2, dtype=torch.float64))
        bias = torch.nn.Parameter(torch.randn(4, dtype=torch.float64))
        scale = torch.nn.Parameter(torch.randn(3, dtype=torch.float64))
        parameters = {"conv.weight": weight, "conv.bias": bias, "scale": scale}
        f, h = factors(2, 5, groups=2, bias=True), torch.rand(3, dtype=torch.float64)
        curvature = Curvature({"conv.weight": f}, {"scale": h})
        step = DampedUpdate(curvature, parameters, strength, 0.0)
        before = {name: p.detach().clone() for name, p in parameters.items()}
        updates = {name: torch.randn_like(p) for name, p in parameters.items()}
        for parameter in parameters.values():
            parameter.grad = torch.ones_like(parameter)
        step.before_update()
        with torch.no_grad():
            for name, update in updates.items():
                parameters[name] += update
        step.after_update()
        torch.testing.assert_close(
            scale.detach() - before["scale"], updates["scale"] / (1 + strength * h)
        )
        for group in range(2):
            rows = slice(2 * group, 2 * group + 2)
            update = torch.cat(
                [updates["conv.weight"][rows].flatten(1), updates["conv.bias"][rows, None]], 1
            )
            explicit = torch.eye(10, dtype=torch.float64) + strength * dense(f, group)
            expected = torch.linalg.solve(explicit, update.flatten()).view(2, 5)
            moved = torch.cat(
                [
                    (weight.detach() - before["conv.weight"])[rows].flatten(1),
                    (bias.detach() - before["conv.bias"])[rows, None],
                ],
                1,
            )
            torch.testing.assert_close(moved, expected, rtol=1e-5, atol=1e-7)

    def test_channels_last_weights_are_written(self):
        weight = torch.nn.Parameter(torch.randn(3, 2, 2, 2).to(memory_format=torch.channels_last))
        before = weight.detach().clone()
        f = KroneckerFactors(torch.eye(8)[None], torch.eye(3)[None])
        step = DampedUpdate(Curvature({"weight": f}), {"weight": weight}, 1.0, 0.0)
        weight.grad = torch.ones_like(weight)
        step.before_update()
        with torch.no_grad():
            weight += 1
        step.after_update()
        torch.testing.assert_close(weight.detach() - before, torch.full_like(before, 0.5))

    def test_half_precision_weights(self):
        weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16))
        f = KroneckerFactors(torch.eye(2)[None], torch.eye(2)[None])
        step = DampedUpdate(Curvature({"weight": f}), {"weight": weight}, 3.0, 0.0)
        weight.grad = torch.ones_like(weight)
        step.before_update()
        with torch.no_grad():
            weight += 1
        step.after_update()
        assert weight.dtype == torch.bfloat16
        assert weight.tolist() == [[0.25, 0.25], [0.25, 0.25]]

    def test_parameters_without_gradient_are_left_alone(self):
        weight = torch.nn.Parameter(torch.zeros(2, 2))
        f = KroneckerFactors(torch.eye(2)[None], torch.eye(2)[None])
        step = DampedUpdate(Curvature({"weight": f}), {"weight": weight}, 3.0, 0.0)
        step.before_update()
        with torch.no_grad():
            weight += 1  # somebody else's business
        step.after_update()
        assert weight.tolist() == [[1, 1], [1, 1]]

    @given(seeds, st.integers(1, 5))
    def test_updates_damped_together_are_damped_each(self, seed, every):
        """For updates that do not depend on the weights; the last ones by :meth:`finish`."""
        torch.manual_seed(seed)
        start = torch.randn(3, 4, dtype=torch.float64)
        updates = torch.randn(7, 3, 4, dtype=torch.float64)
        f = factors(3, 4)

        def moved(every):
            weight = torch.nn.Parameter(start.clone())
            step = DampedUpdate(Curvature({"weight": f}), {"weight": weight}, 2.0, every=every)
            for update in updates:
                weight.grad = torch.ones_like(weight)
                step.before_update()
                with torch.no_grad():
                    weight += update
                step.after_update()
            step.finish()
            step.finish()  # nothing left to damp
            return weight.detach()

        torch.testing.assert_close(moved(every), moved(1))


def test_name_of_the_bias():
    assert bias_of("features.0.weight") == "features.0.bias"


class TestEigen:
    """As for the wide convolutions of a ResNet-18, where single precision did not converge."""

    @pytest.fixture
    def _single_precision_fails(self, monkeypatch):
        in_double = torch.linalg.eigh

        def eigh(factor):
            if factor.dtype == torch.float32:
                raise torch.linalg.LinAlgError("failed to converge")
            return in_double(factor)

        monkeypatch.setattr(torch.linalg, "eigh", eigh)

    @pytest.mark.usefixtures("_single_precision_fails")
    def test_what_does_not_converge_is_decomposed_in_double_precision(self):
        factor = moment(2, 5).float()
        values, vectors = eigen(factor)
        assert values.dtype == vectors.dtype == torch.float32
        assert (values >= 0).all()
        rebuilt = (vectors * values.unsqueeze(1)) @ vectors.mT
        torch.testing.assert_close(rebuilt, factor, rtol=1e-5, atol=1e-5)

    @pytest.mark.usefixtures("_single_precision_fails")
    def test_what_is_not_finite_is_refused(self):
        with pytest.raises(torch.linalg.LinAlgError):
            eigen(torch.full((1, 3, 3), torch.nan))

    @given(seeds, st.integers(0, 4))
    def test_what_is_always_zero_is_left_out(self, seed, unused):
        torch.manual_seed(seed)
        factor = torch.zeros(2, 7, 7, dtype=torch.float64)
        kept = torch.randperm(7)[unused:]
        factor[:, kept[:, None], kept] = moment(2, 7 - unused)
        values, vectors = eigen(factor)
        assert values.shape == (2, 7 - unused)
        rebuilt = (vectors * values.unsqueeze(1)) @ vectors.mT
        torch.testing.assert_close(rebuilt, factor)

    def test_a_factor_of_zeros_damps_nothing(self):
        f = KroneckerFactors(moment(1, 3), torch.zeros(1, 2, 2, dtype=torch.float64))
        change = torch.randn(1, 2, 3, dtype=torch.float64)
        assert not DampedStep(f, 100.0).correction(change).any()
