"""Batched losses against one forward pass at a time, in float64."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from avalanche_dco.errors import SettingError
from avalanche_dco.landscape import LossLandscape
from avalanche_dco.landscape.surface import bracket
from tests.landscape.test_trajectory import snapshot, unchanged

CRITERION = nn.CrossEntropyLoss()


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(12, 4),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 6, bias=False), nn.Tanh(), nn.Linear(6, 4))


NETWORKS = [convolutional, perceptron]


def problem(network=perceptron, count: int = 22, batch: int = 8):
    model = network().double()
    model(torch.randn(9, 2, 4, 4).double()).sum().backward()  # running statistics, gradients
    x, y = torch.randn(count, 2, 4, 4).double(), torch.randint(0, 4, (count,))
    return model, list(zip(x.split(batch), y.split(batch), strict=True))


def size_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def one_at_a_time(model: nn.Module, batches: list, offsets: torch.Tensor) -> torch.Tensor:
    """The obvious way: write the point into a copy and pass all the data through it."""
    model = copy.deepcopy(model).eval()
    start = parameters_to_vector(model.parameters()).detach()
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    losses = []
    with torch.no_grad():
        for offset in offsets:
            vector_to_parameters(start + offset, model.parameters())
            losses.append(CRITERION(model(x), y))
    return torch.stack(losses)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("chunk_size", [1, 4, 100])
def test_losses_agree_with_one_forward_pass_at_a_time(network, chunk_size: int) -> None:
    model, batches = problem(network)
    directions = torch.randn(3, size_of(model)).double()
    coordinates = torch.randn(11, 3).double()
    landscape = LossLandscape(model, CRITERION, batches, chunk_size=chunk_size)
    expected = one_at_a_time(model, batches, coordinates @ directions)
    torch.testing.assert_close(landscape.loss_at(coordinates, directions), expected)


@pytest.mark.parametrize("network", NETWORKS)
def test_plane_is_the_formula(network) -> None:
    model, batches = problem(network)
    mean, direction = torch.randn(2, size_of(model)).double()
    alphas, betas = torch.tensor([0.0, 0.3, 2.0]), torch.tensor([-1.0, 0.0, 0.5, 4.0])
    got = LossLandscape(model, CRITERION, batches).loss_on_plane(mean, direction, alphas, betas)
    for a, alpha in enumerate(alphas):
        for b, beta in enumerate(betas):
            offset = -alpha * mean + beta * direction
            torch.testing.assert_close(got[a, b], one_at_a_time(model, batches, offset[None])[0])


@pytest.mark.parametrize("network", NETWORKS)
def test_subspace_loss_is_the_mean_over_the_same_draws(network) -> None:
    model, batches = problem(network)
    d = size_of(model)
    basis = torch.linalg.qr(torch.randn(d, 5).double())[0]
    landscape = LossLandscape(model, CRITERION, batches, chunk_size=4)
    got = landscape.loss_in_subspace(
        basis,
        [0.5, 3.0],
        draws=10,
        spread_draws=False,
        generator=torch.Generator().manual_seed(3),
    )
    normal = torch.randn(10, 5, generator=torch.Generator().manual_seed(3)).double()
    for i, sigma in enumerate([0.5, 3.0]):
        losses = one_at_a_time(model, batches, sigma / math.sqrt(d) * normal @ basis.T)
        torch.testing.assert_close(got.mean[i], losses.mean())
        torch.testing.assert_close(got.standard_error[i], losses.std() / math.sqrt(10))


def test_spread_draws_are_the_stratified_mean_over_the_batches() -> None:
    model, batches = problem()  # 22 samples: batches of 8, 8 and 6
    d = size_of(model)
    basis = torch.linalg.qr(torch.randn(d, 4).double())[0]
    got = LossLandscape(model, CRITERION, batches, chunk_size=2).loss_in_subspace(
        basis, [2.0], draws=11, generator=torch.Generator().manual_seed(5)
    )
    normal = torch.randn(11, 4, generator=torch.Generator().manual_seed(5)).double()
    mean, variance = 0.0, 0.0
    for batch, share in zip(batches, normal.split([4, 4, 3]), strict=True):
        losses = one_at_a_time(model, [batch], 2 / math.sqrt(d) * share @ basis.T)
        mean += len(batch[1]) / 22 * losses.mean()
        variance += (len(batch[1]) / 22) ** 2 * losses.var() / len(share)
    torch.testing.assert_close(got.mean[0], mean)
    torch.testing.assert_close(got.standard_error[0], variance.sqrt())


def test_drawing_coordinates_is_projecting_the_full_perturbation() -> None:
    """V V^T delta, delta ~ N(0, sigma^2/d I): same mean and covariance as V c, c of w entries."""
    d, w, draws, sigma = 12, 3, 200_000, 2.0
    basis = torch.linalg.qr(torch.randn(d, w).double())[0]
    scale = sigma / math.sqrt(d)
    projected = scale * torch.randn(draws, d).double() @ basis @ basis.T
    short = scale * torch.randn(draws, w).double() @ basis.T
    expected = scale**2 * basis @ basis.T
    for sample in (projected, short):
        # Entries of a sample covariance have a standard error below scale^2 sqrt(2 / draws).
        assert (sample.T.cov() - expected).abs().max() < 6 * scale**2 * math.sqrt(2 / draws)
        assert sample.mean(0).abs().max() < 6 * scale / math.sqrt(draws)
    lengths = [sample.norm(dim=1).sort().values for sample in (projected, short)]
    quantiles = slice(draws // 20, None, draws // 20)
    torch.testing.assert_close(lengths[0][quantiles], lengths[1][quantiles], rtol=0.02, atol=0)


def test_subspace_loss_estimates_the_paper_expectation_both_ways() -> None:
    model, batches = problem()
    d = size_of(model)
    basis = torch.linalg.qr(torch.randn(d, 6).double())[0]
    delta = 6.0 / math.sqrt(d) * torch.randn(4000, d).double()
    losses = one_at_a_time(model, batches, delta @ basis @ basis.T)
    error = losses.std() / math.sqrt(4000)
    landscape = LossLandscape(model, CRITERION, batches, chunk_size=500)
    for spread in (True, False):
        got = landscape.loss_in_subspace(basis, [6.0], draws=4000, spread_draws=spread)
        joint = (error**2 + got.standard_error[0] ** 2).sqrt()
        assert (got.mean[0] - losses.mean()).abs() < 4 * joint


def test_standard_error_is_that_of_repetitions() -> None:
    model, batches = problem()
    basis = torch.linalg.qr(torch.randn(size_of(model), 6).double())[0]
    landscape = LossLandscape(model, CRITERION, batches, chunk_size=100)
    estimates = [landscape.loss_in_subspace(basis, [5.0], draws=60) for _ in range(200)]
    spread = torch.stack([estimate.mean[0] for estimate in estimates]).std()
    stated = torch.stack([estimate.standard_error[0] for estimate in estimates]).mean()
    assert 0.8 < spread / stated < 1.25


def test_sigma_zero_is_the_loss_at_the_optimum() -> None:
    model, batches = problem()
    basis = torch.linalg.qr(torch.randn(size_of(model), 2).double())[0]
    got = LossLandscape(model, CRITERION, batches).loss_in_subspace(basis, [0.0], draws=6)
    expected = one_at_a_time(model, batches, torch.zeros(1, size_of(model)).double())[0]
    torch.testing.assert_close(got.mean[0], expected)
    assert got.standard_error[0] < 1e-12


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(network, training: bool) -> None:
    model, batches = problem(network)
    model.train(training)
    model[1].train(not training)
    before = snapshot(model)
    d = size_of(model)
    landscape = LossLandscape(model, CRITERION, batches)
    mean, direction = torch.randn(2, d)
    landscape.loss_on_plane(mean, direction, torch.zeros(1), torch.ones(2))
    landscape.cone_boundary(mean, direction, torch.zeros(1), level=5.0)
    landscape.loss_in_subspace(torch.linalg.qr(torch.randn(d, 2))[0], [1.0], draws=6)
    unchanged(model, before)


def test_the_model_is_left_as_it_was_by_a_criterion_that_fails() -> None:
    model, batches = problem()
    model.train()
    before = snapshot(model)

    def failing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError

    landscape = LossLandscape(model, failing, batches)
    with pytest.raises(ArithmeticError):
        landscape.loss_at(torch.ones(1, 1), torch.ones(1, size_of(model)))
    unchanged(model, before)


def test_a_module_that_counts_its_calls_in_a_buffer_counts_none() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(inputs)

    model = Counting()
    batches = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    LossLandscape(model, CRITERION, batches).loss_at(torch.ones(5, 1), torch.ones(1, 8))
    assert model.calls == 0


def test_the_origin_stays_where_the_landscape_was_made() -> None:
    model, batches = problem()
    landscape = LossLandscape(model, CRITERION, batches)
    nowhere = torch.zeros(1, 1), torch.zeros(1, size_of(model))
    before = landscape.loss_at(*nowhere)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(landscape.loss_at(*nowhere), before)


def test_frozen_parameters_keep_their_value() -> None:
    model, batches = problem()
    model[1].requires_grad_(False)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    offsets = torch.randn(3, trainable).double()
    got = LossLandscape(model, CRITERION, batches).loss_at(torch.eye(3).double(), offsets)
    frozen = torch.zeros(3, model[1].weight.numel()).double()
    expected = one_at_a_time(model, batches, torch.cat([frozen, offsets], dim=1))
    torch.testing.assert_close(got, expected)


def test_dataloader_criterion_function_and_task_labels() -> None:
    model = perceptron()
    x, y = torch.randn(20, 2, 4, 4), torch.randn(20, 4)
    loader = DataLoader(TensorDataset(x, y, torch.zeros(20)), batch_size=6, shuffle=True)
    landscape = LossLandscape(model, nn.functional.mse_loss, loader)
    got = landscape.loss_at(torch.zeros(1, 1), torch.zeros(1, size_of(model)))
    expected = nn.functional.mse_loss(model(x), y).double()
    torch.testing.assert_close(got[0], expected, rtol=1e-5, atol=0)


class _Bowl(nn.Module):
    """Loss = distance-dependent: weights w give outputs w, so that mse is |w|^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(len(inputs), 2)


def test_cone_boundary_of_a_bowl_is_known() -> None:
    batches = [(torch.zeros(3, 1).double(), torch.zeros(3, 2).double())]
    landscape = LossLandscape(_Bowl(), nn.MSELoss(), batches)
    first, second = torch.eye(2).double()
    # f = ((alpha)^2 + (beta)^2) / 2 exceeds 8 at |beta| = sqrt(16 - alpha^2)
    got = landscape.cone_boundary(first, second, torch.tensor([0.0, 3.0, 5.0]), level=8.0)
    expected = torch.tensor([[4.0, 4.0], [math.sqrt(7), math.sqrt(7)], [0.0, 0.0]]).double()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-12)
    assert landscape.cone_boundary(first, second, torch.zeros(1), level=1e9).isinf().all()
    # and along v with -v cut off by a shift: f(0, beta) around x* - first
    shifted = landscape.cone_boundary(-first, first, torch.tensor([1.0]), level=8.0)
    torch.testing.assert_close(shifted[0], torch.tensor([5.0, 3.0]).double(), rtol=1e-5, atol=0)


def test_bracket() -> None:
    betas = torch.tensor([0.0, 1.0, 2.0, 3.0])
    curve = torch.tensor([0.0, 2.0, 0.0, 9.0])
    assert bracket(betas, curve, 1.0).tolist() == [0.0, 1.0]
    assert bracket(betas, curve, 5.0).tolist() == [2.0, 3.0]
    assert bracket(betas, curve, -1.0).tolist() == [0.0, 0.0]
    assert bracket(betas, curve, 9.0).tolist() == [math.inf, math.inf]
    curve[2] = math.nan
    assert bracket(betas, curve, 5.0).tolist() == [1.0, 2.0]


def test_errors_name_the_way_out() -> None:
    model, batches = problem()
    d = size_of(model)
    with pytest.raises(SettingError, match="reduction='mean'"):
        LossLandscape(model, nn.CrossEntropyLoss(reduction="sum"), batches)
    for wrong in ([], iter(batches)):
        with pytest.raises(SettingError, match="DataLoader or a list"):
            LossLandscape(model, CRITERION, wrong)
    with pytest.raises(SettingError, match="at least 1"):
        LossLandscape(model, CRITERION, batches, chunk_size=0)
    landscape = LossLandscape(model, CRITERION, batches)
    with pytest.raises(SettingError, match=f"{d} trainable"):
        landscape.loss_at(torch.ones(1, 1), torch.ones(1, d - 1))
    with pytest.raises(SettingError, match="orthonormal"):
        landscape.loss_in_subspace(torch.ones(d, 2), [1.0])
    basis = torch.linalg.qr(torch.randn(d, 2))[0]
    with pytest.raises(SettingError, match="spread_draws=False"):
        landscape.loss_in_subspace(basis, [1.0], draws=5)
