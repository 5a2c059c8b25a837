"""EWC: what is wrong in Avalanche's, and right in ours."""

from typing import Any

import pytest
import torch
from avalanche.training import plugins
from avalanche.training.utils import load_all_dataset
from torch import nn

from avalanche_dco.baselines import EWCPlugin
from avalanche_dco.errors import ModelError
from tests.baselines.test_per_sample import one_by_one
from tests.support.small_runs import (
    PERMUTED,
    SPLIT,
    GrowingMLP,
    MultiHeadMLP,
    TwoOutputs,
    mlp,
    naive,
    of_the_first,
    same_weights,
    trained,
)


def importances(plugin: Any, model: nn.Module, batch_size: int) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = plugin.compute_importances(
        model, nn.CrossEntropyLoss(), optimizer, PERMUTED[0].dataset, "cpu", batch_size
    )
    return {name: entry.data for name, entry in found.items()}


def test_avalanches_importances_shrink_with_the_batch_and_ours_are_the_fisher_information() -> None:
    model = mlp(dropout=0.5)
    samples = load_all_dataset(PERMUTED[0].dataset)
    definition = one_by_one(model.eval(), [samples], nn.CrossEntropyLoss(), torch.square)
    theirs = importances(plugins.EWCPlugin(1.0), model, 64)
    smaller = importances(plugins.EWCPlugin(1.0), model, 16)
    ours = [importances(EWCPlugin(1.0, fisher_mb_size=size), model, 64) for size in (50, 256)]
    for name, exact in definition.items():
        assert theirs[name].sum() < 0.8 * smaller[name].sum()
        assert smaller[name].sum() < 0.8 * exact.sum()
        torch.testing.assert_close(ours[0][name], exact, rtol=1e-4, atol=1e-9)
        torch.testing.assert_close(ours[1][name], exact, rtol=1e-4, atol=1e-9)


def test_modes_and_gradients_are_left_alone() -> None:
    model = mlp(dropout=0.5).train()
    model[2].eval()
    importances(EWCPlugin(1.0), model, 64)
    assert [module.training for module in model] == [True, True, False, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    importances(plugins.EWCPlugin(1.0), model, 64)
    assert model[2].training, "Avalanche's own puts everything into train mode"


@pytest.mark.parametrize(("half", "factor"), [(False, 3.0), (True, 1.5)])
def test_the_penalty_in_both_conventions(half: bool, factor: float) -> None:
    plugin = EWCPlugin(3.0, half=half)
    strategy = naive(nn.Linear(64, 10), plugin)
    strategy.train(PERMUTED[0])
    old = {name: p.detach().clone() for name, p in strategy.model.named_parameters()}
    with torch.no_grad():
        for parameter in strategy.model.parameters():
            parameter.add_(0.1)
    strategy.loss = torch.zeros(())
    plugin.before_backward(strategy)  # the clock already counts the next experience
    expected = factor * sum(
        (plugin.importances[0][name].data * (p - old[name]).square()).sum()
        for name, p in strategy.model.named_parameters()
    )
    assert expected > 1e-3
    torch.testing.assert_close(strategy.loss.detach(), expected.detach())


@pytest.mark.parametrize("make_model", [MultiHeadMLP, GrowingMLP])
@pytest.mark.parametrize("mode", ["separate", "online"])
def test_growing_heads(make_model: Any, mode: str) -> None:
    plugin = EWCPlugin(1.0, mode, 0.9 if mode == "online" else None)
    strategy = trained(make_model, plugin, SPLIT)
    assert all(parameter.isfinite().all() for parameter in strategy.model.parameters())
    last = plugin.importances[2]
    assert list(last) == [name for name, _ in strategy.model.named_parameters()]
    assert all(entry.data.any() for name, entry in last.items() if "features" in name)


def test_frozen_parameters_have_no_importance() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    found = importances(EWCPlugin(1.0), model, 64)
    assert not found["0.weight"].any()
    assert found["3.weight"].any()


class OnlyTogether(nn.Module):
    """Subtracts the batch's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x - x.mean(0))


def test_a_model_that_mixes_samples_is_refused_before_it_is_trained() -> None:
    strategy = naive(OnlyTogether(), EWCPlugin(1.0))
    before = strategy.model.layer.weight.detach().clone()
    with pytest.raises(ModelError, match="for a sample alone differ"):
        strategy.train(PERMUTED[0])
    assert torch.equal(strategy.model.layer.weight, before)


def test_looking_ahead_changes_nothing() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 20), nn.BatchNorm1d(20), nn.Dropout(), nn.Linear(20, 10))

    one, other = trained(make, EWCPlugin(1.0), PERMUTED[:1]), trained(make, None, PERMUTED[:1])
    assert same_weights(one, other)
    assert torch.equal(one.model[1].running_mean, other.model[1].running_mean)


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(ignore_index=3),
        nn.CrossEntropyLoss(ignore_index=3, weight=torch.arange(10.0)),
        nn.CrossEntropyLoss(torch.arange(1.0, 11.0), label_smoothing=0.1),
    ],
    ids=["ignored", "ignored and without weight", "weighted and smoothed"],
)
@pytest.mark.filterwarnings("ignore:.*cannot be vectorised")
def test_labels_without_a_loss_and_weights(criterion: nn.CrossEntropyLoss) -> None:
    plugin = EWCPlugin(1.0)
    model = trained(mlp, plugin, PERMUTED[:2], criterion=criterion).model
    x, y, t = load_all_dataset(PERMUTED[1].dataset)
    known = y != criterion.ignore_index
    assert criterion.weight is not None or not known.all()
    if criterion.weight is not None:
        known &= criterion.weight[y] > 0
    definition = one_by_one(model.eval(), [(x[known], y[known], t[known])], criterion, torch.square)
    for name, exact in definition.items():
        torch.testing.assert_close(plugin.importances[1][name].data, exact, rtol=1e-4, atol=1e-9)


def test_a_criterion_of_several_outputs() -> None:
    two, one = EWCPlugin(1.0), EWCPlugin(1.0)
    trained(lambda: TwoOutputs(64, 10), two, PERMUTED[:2], criterion=of_the_first)
    trained(lambda: nn.Linear(64, 10), one, PERMUTED[:2])
    for name, entry in one.importances[1].items():
        torch.testing.assert_close(two.importances[1][name].data, entry.data, rtol=1e-3, atol=1e-8)
