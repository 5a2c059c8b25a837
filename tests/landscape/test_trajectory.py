"""Gradients along the optimizer's way, and a model that comes home afterwards."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from avalanche_dco.errors import GradientError, ModelError, SettingError
from avalanche_dco.landscape import (
    FlatParameters,
    trajectory_gradients,
    trajectory_spectrum,
)
from avalanche_dco.plugins.support.isolation import model_kept


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 3)
    )


def data(count: int = 40) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x = torch.randn(count, 6)
    y = torch.randint(0, 3, (count,))
    return list(zip(x.split(8), y.split(8), strict=True))


def snapshot(model: nn.Module) -> tuple:
    return (
        copy.deepcopy(model.state_dict()),
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [module.training for module in model.modules()],
    )


def unchanged(model: nn.Module, before: tuple) -> None:
    state, gradients, modes = before
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(parameter.grad, gradient)
    assert [module.training for module in model.modules()] == modes


def used_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model in a mixed state: gradients left over, one layer in eval mode, momentum warm."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in data():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model[1].eval()
    model[4].bias.grad = None
    return model, optimizer


def test_gradients_are_those_of_an_obvious_loop() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    batches = [(x.double(), y) for x, y in data()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    twin = copy.deepcopy(model)
    expected = []
    other = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    for step in range(12):  # five batches: more than two rounds
        x, y = batches[step % 5]
        other.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()
        expected.append(torch.cat([p.grad.flatten() for p in twin.parameters()]))
        other.step()
    got = list(trajectory_gradients(model, nn.CrossEntropyLoss(), optimizer, batches, steps=12))
    torch.testing.assert_close(torch.stack(got), torch.stack(expected))


def test_model_and_optimizer_come_home() -> None:
    model, optimizer = used_model()
    before = snapshot(model)
    state = copy.deepcopy(optimizer.state_dict())
    trajectory_spectrum(model, nn.CrossEntropyLoss(), optimizer, data(), steps=20)
    unchanged(model, before)
    for ours, theirs in zip(
        optimizer.state_dict()["state"].values(), state["state"].values(), strict=True
    ):
        assert torch.equal(ours["momentum_buffer"], theirs["momentum_buffer"])


def test_model_comes_home_from_an_error_while_its_traceback_lives() -> None:
    model, optimizer = used_model()
    before = snapshot(model)

    def broken(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets) * math.nan

    with pytest.raises(GradientError) as caught:
        trajectory_spectrum(model, broken, optimizer, data(), steps=300)
    unchanged(model, before)
    assert caught.value is not None


def test_abandoned_generator_brings_the_model_home() -> None:
    model, optimizer = used_model()
    before = snapshot(model)
    gradients = trajectory_gradients(model, nn.CrossEntropyLoss(), optimizer, data(), steps=9)
    next(gradients)
    next(gradients)
    gradients.close()
    unchanged(model, before)


def test_dataloader_with_task_labels_and_progress() -> None:
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    loader = DataLoader(TensorDataset(x, y, torch.zeros(20)), batch_size=5, shuffle=True)
    model, optimizer = used_model()
    seen = []

    def progress(gradients):
        for gradient in gradients:
            seen.append(gradient)
            yield gradient

    spectrum = trajectory_spectrum(
        model, nn.CrossEntropyLoss(), optimizer, loader, steps=7, top=3, progress=progress
    )
    assert len(seen) == spectrum.count == 7
    assert spectrum.eigenvectors.shape == (FlatParameters(model).size, 3)


def test_frozen_parameters_are_no_coordinates() -> None:
    model = network()
    model[0].requires_grad_(False)
    flat = FlatParameters(model)
    assert flat.size == 5 + 5 + 15 + 3
    pieces = flat.unflatten(flat.values())
    assert set(pieces) == {"1.weight", "1.bias", "4.weight", "4.bias"}
    assert torch.equal(pieces["4.weight"], model[4].weight)
    assert flat.unflatten(torch.zeros(2, 3, flat.size))["4.weight"].shape == (2, 3, 3, 5)
    with pytest.raises(ModelError, match="requires_grad_"):
        FlatParameters(network().requires_grad_(False))


def test_parameters_the_loss_does_not_reach_have_gradient_zero() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "idle": nn.Linear(2, 1)})
    model["used"](torch.ones(1, 2)).sum().backward()
    gradient = FlatParameters(model).unflatten(FlatParameters(model).gradient())
    assert gradient["idle.weight"].count_nonzero() == 0
    assert gradient["used.weight"].count_nonzero() == 2


def test_model_kept_puts_back_buffers_and_gradients_after_an_exception() -> None:
    model, _ = used_model()
    before = snapshot(model)

    def disturb() -> None:
        with model_kept(model, weights=True):
            model.train()
            model(torch.randn(8, 6)).sum().backward()
            with torch.no_grad():
                model[0].weight.zero_()
            raise KeyError

    with pytest.raises(KeyError):
        disturb()
    unchanged(model, before)


class RebindsBuffers(nn.Module):
    """Binds its buffers to new tensors, of other shapes too, instead of writing to them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("mean", torch.ones(6))
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("cache", None)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.seen = torch.cat([self.seen, x.detach().mean()[None]])
        self.cache = x.detach()
        self.register_buffer("late", x.detach())
        self.steps += 1
        return self.linear(x - self.mean)


def bound_buffers(model: nn.Module) -> dict[str, tuple[int, list]]:
    return {name: (id(buffer), buffer.tolist()) for name, buffer in model.named_buffers()}


def test_model_kept_puts_back_buffers_that_a_module_binds_anew() -> None:
    model = RebindsBuffers()
    before, alias = bound_buffers(model), model.mean
    with model_kept(model, weights=True):
        model(torch.randn(8, 6))
        assert set(bound_buffers(model)) == {"mean", "seen", "cache", "steps", "late"}
    assert bound_buffers(model) == before
    assert model.mean is alias
    assert model.cache is None


def test_model_kept_puts_back_parameters_that_were_bound_anew() -> None:
    model = nn.Linear(2, 2)
    weight, values = model.weight, model.weight.tolist()
    with model_kept(model, weights=True):
        model.weight = nn.Parameter(torch.zeros(2, 2))
        with torch.no_grad():
            weight.zero_()
    assert model.weight is weight
    assert weight.tolist() == values


def test_model_kept_takes_constant_buffers_that_cannot_be_written_to() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("ones", torch.ones(1).expand(3))
    model.register_buffer("graph", torch.eye(2).to_sparse())
    with model_kept(model, weights=True):
        model.graph.mul_(2)
    assert model.ones.tolist() == [1, 1, 1]
    assert model.graph.to_dense().tolist() == [[1, 0], [0, 1]]


def test_a_trajectory_leaves_buffers_that_are_bound_anew_where_they_were() -> None:
    torch.manual_seed(0)
    model = RebindsBuffers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = bound_buffers(model)
    batches = [(torch.randn(8, 6), torch.randint(3, (8,)))]
    trajectory_spectrum(model, nn.CrossEntropyLoss(), optimizer, batches, steps=3)
    assert bound_buffers(model) == before


def test_empty_or_spent_data_is_refused() -> None:
    model, optimizer = used_model()
    for batches in ([], iter(data())):
        with pytest.raises(SettingError, match="only once"):
            trajectory_spectrum(model, nn.CrossEntropyLoss(), optimizer, batches, steps=99)
