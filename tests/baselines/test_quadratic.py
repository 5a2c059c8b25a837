"""The penalty as one quadratic, against the sum over experiences written out."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from avalanche.training import plugins
from avalanche.training.utils import ParamData
from torch import Tensor, nn

from avalanche_dco.baselines import EWCPlugin, MASPlugin, RWalkPlugin
from avalanche_dco.baselines.quadratic import Quadratic
from avalanche_dco.baselines.shared import as_param_data
from tests.support.small_runs import PERMUTED, SPLIT, GrowingMLP, MultiHeadMLP, mlp, trained

SQUARES = [(torch.rand(4, 3).double(), torch.randn(4, 3).double()) for _ in range(4)]
for importances, _ in SQUARES:
    importances[0, :2] = 0  # never important
    importances[1] *= importances[1] > 0.5


def plain(parameter: Tensor) -> Tensor:
    return sum((a * (parameter - m).square()).sum() for a, m in SQUARES)


def quadratic(dtype: torch.dtype = torch.float64) -> Quadratic:
    penalty = Quadratic()
    for importance, centre in SQUARES:
        penalty.add("weight", torch.empty(0, dtype=dtype), importance, centre)
    return penalty


def test_value_gradient_and_second_derivative() -> None:
    penalty, weight = quadratic(), torch.randn(4, 3).double().requires_grad_()
    others = [("new", torch.randn(3, requires_grad=True))]
    found = penalty.of([("weight", weight), *others])
    torch.testing.assert_close(found, plain(weight))
    (expected,) = torch.autograd.grad(3 * plain(weight), weight)
    torch.testing.assert_close(torch.autograd.grad(3 * found, weight)[0], expected)
    torch.autograd.gradcheck(lambda p: penalty.of([("weight", p)]), weight)
    torch.autograd.gradgradcheck(lambda p: penalty.of([("weight", p)]), weight)


def test_the_gradient_is_that_of_the_weights_that_were_given() -> None:
    weight = torch.randn(4, 3).double().requires_grad_()
    (expected,) = torch.autograd.grad(plain(weight), weight)
    for create_graph in (False, True):
        moved = weight.detach().clone().requires_grad_()
        value = quadratic().of([("weight", moved)])
        with torch.no_grad():
            moved.add_(1)
        (found,) = torch.autograd.grad(value, moved, create_graph=create_graph)
        torch.testing.assert_close(found, expected)


def test_frozen_parameters_count_in_the_value_only() -> None:
    penalty = quadratic()
    penalty.add("bias", torch.ones(0).double(), torch.ones(2), torch.zeros(2))
    weight, bias = torch.randn(4, 3).double(), torch.ones(2).double().requires_grad_()
    value = penalty.of([("weight", weight), ("bias", bias)])
    torch.testing.assert_close(value.detach(), plain(weight) + 2)
    value.backward()
    assert weight.grad is None
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad, torch.full([2], 2.0).double())
    assert not penalty.of([("weight", weight)]).requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_precisions_and_autocast(dtype: torch.dtype) -> None:
    weight = torch.randn(4, 3).to(dtype).requires_grad_()
    exact = weight.detach().double().requires_grad_()
    plain(exact).backward()
    with torch.autocast("cpu", torch.bfloat16):
        value = quadratic(dtype).of([("weight", weight)])
    value.backward()
    assert weight.grad is not None
    assert weight.grad.dtype == dtype
    assert value.dtype == torch.float32
    tolerance = 30 * torch.finfo(dtype).eps
    torch.testing.assert_close(value.double(), plain(exact), rtol=tolerance, atol=0)
    torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


def test_channels_last_and_weights_without_dimensions() -> None:
    weight = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    scale = torch.tensor(3.0, requires_grad=True)
    penalty = Quadratic()
    importance = torch.rand(2, 3, 4, 4)
    penalty.add("weight", weight, importance, torch.ones(2, 3, 4, 4))
    penalty.add("scale", scale, torch.tensor(2.0), torch.tensor(1.0))
    expected = (importance * (weight - 1).square()).sum() + 8
    found = penalty.of([("weight", weight), ("scale", scale)])
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad(found, [weight, scale])
    torch.testing.assert_close(gradients[0], 2 * importance * (weight.detach() - 1))
    torch.testing.assert_close(gradients[1], torch.tensor(8.0))


def random_table(head: int, names: tuple[str, ...]) -> dict[str, ParamData]:
    shapes = {"features.weight": [5, 3], "head.weight": [head, 5], "late.weight": [2, 3]}
    return as_param_data({name: torch.rand(shapes[name]).double() for name in names})


@pytest.mark.parametrize("mode", ["separate", "online"])
def test_ewc_with_a_growing_head_and_a_parameter_of_later_experiences(mode: str) -> None:
    plugin = EWCPlugin(3.0, mode, 0.9 if mode == "online" else None)
    early = ("features.weight", "head.weight")
    late = (*early, "late.weight")
    for number, (head, names) in enumerate([(2, early), (4, early), (4, late), (6, late)]):
        plugin.importances[number] = random_table(head, names)
        plugin.saved_params[number] = random_table(head, names)
    model = nn.ModuleDict(
        {
            "features": nn.Linear(3, 5, bias=False),
            "head": nn.Linear(5, 7, bias=False),
            "late": nn.Linear(3, 2, bias=False),
            "new": nn.Linear(3, 2),
        }
    ).double()
    expected = torch.zeros(()).double()
    for number in range(4) if mode == "separate" else [3]:
        for name, saved in plugin.saved_params[number].items():
            parameter = model.get_parameter(name)
            padded, importance = torch.zeros(2, *parameter.shape).double()
            there = tuple(slice(size) for size in saved.shape)
            padded[there], importance[there] = saved.data, plugin.importances[number][name].data
            expected = expected + 3 * (importance * (parameter - padded).square()).sum()
    strategy: Any = SimpleNamespace(
        model=model,
        clock=SimpleNamespace(train_exp_counter=4),
        loss=torch.ones(()).double(),
        device="cpu",
    )
    plugin.before_backward(strategy)
    torch.testing.assert_close(strategy.loss, 1 + expected)
    known = [model.get_parameter(name) for name in late]
    found = torch.autograd.grad(strategy.loss, known)
    torch.testing.assert_close(found, torch.autograd.grad(expected, known))


class SumOverExperiences(EWCPlugin):
    before_backward = plugins.EWCPlugin.before_backward


@pytest.mark.parametrize("make_model", [MultiHeadMLP, GrowingMLP])
@pytest.mark.parametrize("mode", [("separate", None), ("online", 0.5)])
def test_ewc_trains_as_with_avalanches_sum(make_model: Any, mode: tuple[str, Any]) -> None:
    runs = [
        trained(make_model, kind(30.0, *mode), SPLIT) for kind in (EWCPlugin, SumOverExperiences)
    ]
    naive = trained(make_model, None, SPLIT)
    for ours, theirs in zip(*(run.model.parameters() for run in runs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    moved = torch.cat([p.flatten() for p in naive.model.parameters()]) - torch.cat(
        [p.flatten() for p in runs[0].model.parameters()]
    )
    assert moved.abs().max() > 1e-2


@pytest.mark.parametrize("make", [EWCPlugin, MASPlugin, RWalkPlugin])
def test_the_penalty_is_made_anew_of_a_loaded_state_and_for_each_experience(make: Any) -> None:
    one = make(1.0)
    strategy = trained(mlp, one, PERMUTED[:2])
    assert one._penalty is None, "nothing derived is kept, or saved, between experiences"
    other = make(1.0)
    other.load_state_dict(one.state_dict())
    values = []
    with torch.no_grad():
        for parameter in strategy.model.parameters():
            parameter.add_(0.1)
    for plugin in (one, other):
        strategy.loss = torch.zeros(())
        plugin.before_backward(strategy)
        values.append(strategy.loss.detach())
    assert values[0] > 0
    assert values[0] == values[1]
    assert other._penalty is not None
    other.load_state_dict(one.state_dict())
    assert other._penalty is None
