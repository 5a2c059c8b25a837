"""Synaptic Intelligence: what is wrong in Avalanche's, and right in ours."""

from typing import Any

import pytest
import torch
from avalanche.training import plugins
from torch import nn

from avalanche_dco.baselines import SynapticIntelligencePlugin
from benchmarks.streams.digits import permuted_digits, split_digits
from tests.support.small_runs import MultiHeadMLP, mlp, naive, same_weights, trained

EXPERIENCES = list(permuted_digits(2).train_stream)


def test_avalanches_own_changes_nothing_on_a_cpu_and_ours_does() -> None:
    plain = trained(mlp, None, EXPERIENCES)
    theirs = trained(mlp, plugins.SynapticIntelligencePlugin(1e3), EXPERIENCES)
    ours = trained(mlp, SynapticIntelligencePlugin(1e3), EXPERIENCES)
    assert same_weights(theirs, plain)
    assert not same_weights(ours, plain)


def test_with_no_strength_ours_is_naive() -> None:
    plain = trained(mlp, None, EXPERIENCES)
    assert same_weights(trained(mlp, SynapticIntelligencePlugin(0.0), EXPERIENCES), plain)


@pytest.mark.parametrize(
    ("plugin_class", "negative"),
    [(plugins.SynapticIntelligencePlugin, True), (SynapticIntelligencePlugin, False)],
)
def test_importances_of_a_loss_that_rose(plugin_class: Any, negative: bool) -> None:
    plugin = plugin_class(1.0)
    strategy = trained(mlp, plugin, EXPERIENCES[:1])
    strategy.experience = EXPERIENCES[0]
    for integral in plugin.syn_data["cum_trajectory"].values():
        integral.data = torch.ones_like(integral.data)
    plugin.after_training_exp(strategy)
    smallest = min(importance.data.min().item() for importance in plugin.ewc_data[1].values())
    assert (smallest < 0) == negative


def test_without_a_limit_weights_differ_in_importance() -> None:
    limited = SynapticIntelligencePlugin(1.0)
    free = SynapticIntelligencePlugin(1.0, eps=0.1, max_importance=None)
    trained(mlp, limited, EXPERIENCES[:1])
    trained(mlp, free, EXPERIENCES[:1])
    name = "3.weight"
    at_the_limit = (limited.ewc_data[1][name].data == 0.001).float().mean()
    assert at_the_limit > 0.95, "the limit makes almost all weights equally important"
    importances = free.ewc_data[1][name].data
    assert importances.max() > 10 * importances.median()


class PathIntegral(plugins.SupervisedPlugin):
    """The definition: at every step the plain criterion's gradient times the step."""

    def __init__(self) -> None:
        super().__init__()
        self.of_criterion: dict[str, torch.Tensor] = {}
        self.of_everything: dict[str, torch.Tensor] = {}

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        zeros = {name: torch.zeros_like(p) for name, p in strategy.model.named_parameters()}
        self.of_criterion, self.of_everything = dict(zeros), dict(zeros)

    def before_update(self, strategy: Any, **kwargs: Any) -> None:
        parameters = dict(strategy.model.named_parameters())
        loss = strategy._criterion(strategy.model(strategy.mb_x), strategy.mb_y)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        self._gradients = dict(zip(parameters, gradients, strict=True))
        self._before = {name: p.detach().clone() for name, p in parameters.items()}

    @torch.no_grad()
    def after_update(self, strategy: Any, **kwargs: Any) -> None:
        for name, parameter in strategy.model.named_parameters():
            step = parameter - self._before[name]
            self.of_criterion[name] = self.of_criterion[name] + self._gradients[name] * step
            self.of_everything[name] = self.of_everything[name] + parameter.grad * step


def test_the_path_integral_is_that_of_the_criterion_alone() -> None:
    torch.manual_seed(0)
    si = SynapticIntelligencePlugin([10.0, 20.0], eps=0.1, max_importance=None)
    definition = PathIntegral()
    strategy = naive(nn.Linear(64, 10), definition, si)
    for experience in EXPERIENCES:
        strategy.train(experience)
    for name, trajectory in si.syn_data["trajectory"].items():
        expected = definition.of_criterion[name].flatten()
        torch.testing.assert_close(trajectory.data, expected, rtol=1e-3, atol=1e-6)
        polluted = definition.of_everything[name].flatten()
        difference = (polluted - expected).abs().max() / expected.abs().max()
        assert difference > 5e-3, "the penalty has a part to take off"


def test_new_heads_are_taken_up() -> None:
    si = SynapticIntelligencePlugin(1.0)
    trained(MultiHeadMLP, si, list(split_digits().train_stream)[:3])
    assert "classifier.classifiers.2.classifier.weight" in si.ewc_data[1]


def test_what_is_frozen_has_no_path() -> None:
    si = SynapticIntelligencePlugin(1.0)
    strategy = trained(mlp, si, EXPERIENCES[:1])
    integral = si.syn_data["cum_trajectory"]["0.weight"].data.clone()
    strategy.model[0].requires_grad_(False)
    strategy.train(EXPERIENCES[1])
    assert not si.syn_data["trajectory"]["0.weight"].data.any()
    assert torch.equal(si.syn_data["cum_trajectory"]["0.weight"].data, integral)
    assert si.syn_data["trajectory"]["3.weight"].data.any()


class Converting(nn.Module):
    """Takes float32 inputs, whatever the precision of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.to(next(self.model.parameters()).dtype)).float()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    def run(dtype: torch.dtype) -> SynapticIntelligencePlugin:
        si = SynapticIntelligencePlugin(1.0, eps=0.1, max_importance=None)
        trained(lambda: Converting(mlp().to(dtype)), si, EXPERIENCES)
        return si

    found, single = run(dtype), run(torch.float32)
    for table, expected in zip(found.ewc_data, single.ewc_data, strict=True):
        for name, entry in table.items():
            assert entry.data.dtype == torch.promote_types(dtype, torch.float32)
            distance = (entry.data - expected[name].data).norm() / expected[name].data.norm()
            assert distance < 30 * torch.finfo(dtype).eps + 1e-5


def test_growing_weights_keep_their_precision() -> None:
    si = SynapticIntelligencePlugin(1.0)
    model = nn.Sequential(nn.Linear(3, 2).double())
    si._make_room(model)
    weights = si.ewc_data[0]["0.weight"]
    weights.data = torch.rand(6).double()
    model[0] = nn.Linear(3, 4).double()
    si._make_room(model)
    grown = si.ewc_data[0]["0.weight"].data
    assert torch.equal(grown, torch.cat([weights.data, torch.zeros(6).double()]))
