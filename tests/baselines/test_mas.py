"""MAS: what is wrong in Avalanche's, and right in ours."""

from typing import Any

import pytest
import torch
from avalanche.training import plugins
from avalanche.training.utils import load_all_dataset
from torch import nn

from avalanche_dco.baselines import MASPlugin
from avalanche_dco.errors import ModelError
from benchmarks.streams.digits import permuted_digits, split_digits
from tests.baselines.test_per_sample import one_by_one
from tests.support.small_runs import MultiHeadMLP, TwoOutputs, mlp, naive, of_the_first, trained

EXPERIENCE = next(iter(permuted_digits(1).train_stream))


def importances(plugin: Any, model: nn.Module, batch_size: int = 64) -> dict[str, torch.Tensor]:
    strategy = naive(model, train_mb_size=batch_size)
    strategy.experience = EXPERIENCE
    return {name: entry.data for name, entry in plugin._get_importance(strategy).items()}


def test_avalanches_importances_are_random_with_dropout_and_ours_are_not() -> None:
    model = mlp(dropout=0.5)
    first, second = (importances(plugins.MASPlugin(), model) for _ in range(2))
    assert not torch.allclose(first["0.weight"], second["0.weight"], rtol=1e-3)
    first, second = (importances(MASPlugin(), model) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_avalanches_moves_the_running_statistics_and_ours_does_not() -> None:
    for plugin, moved in ((plugins.MASPlugin(), True), (MASPlugin(), False)):
        model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
        importances(plugin, model)
        assert bool(model[1].running_mean.any()) == moved
        assert model.training


def test_ours_are_the_average_magnitude_of_each_samples_gradient() -> None:
    model = mlp().eval()
    samples = load_all_dataset(EXPERIENCE.dataset)
    exact = one_by_one(model, [samples], lambda out, _: out.square().sum(), torch.abs)
    ours = importances(MASPlugin(), model)
    large, small = (importances(plugins.MASPlugin(), model, size) for size in (256, 8))
    for name, value in exact.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-7)
    # Averaged within a batch before the magnitude is taken, gradients of both signs cancel.
    assert large["0.weight"].sum() < small["0.weight"].sum() < ours["0.weight"].sum()


@pytest.mark.parametrize("plugin_class", [plugins.MASPlugin, MASPlugin])
def test_a_loss_of_exactly_zero_stops_avalanches_and_not_ours(plugin_class: Any) -> None:
    plugin = plugin_class(2.0)
    strategy = naive(mlp(), plugin)
    strategy.train(EXPERIENCE)  # the clock counts the next experience from here on
    with torch.no_grad():
        for parameter in strategy.model.parameters():
            parameter.add_(0.1)
    strategy.loss = torch.zeros(())
    if plugin_class is plugins.MASPlugin:
        with pytest.raises(ValueError, match="Loss is not available"):
            plugin.before_backward(strategy)
        return
    plugin.before_backward(strategy)
    expected = 2.0 * 0.1**2 * sum(entry.data.sum() for entry in plugin.importance.values())
    torch.testing.assert_close(strategy.loss.detach(), expected, rtol=1e-4, atol=0)


def test_multi_head() -> None:
    plugin = MASPlugin(0.01)
    strategy = trained(MultiHeadMLP, plugin, list(split_digits().train_stream)[:3])
    assert all(parameter.isfinite().all() for parameter in strategy.model.parameters())
    assert plugin.importance is not None
    assert plugin.importance["classifier.classifiers.2.classifier.weight"].data.any()


def test_interrupted_in_the_importance_pass_it_remembers_what_it_did_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = permuted_digits(2).train_stream
    plugin = MASPlugin()
    strategy = naive(mlp(), plugin)
    strategy.train(first)
    before = plugin.state_dict()["checksum"]

    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(plugin, "_get_importance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            strategy.train(second)
    assert plugin.state_dict()["checksum"] == before
    strategy.train(second)
    assert plugin.state_dict()["checksum"] != before


def test_the_importances_of_two_experiences_are_mixed() -> None:
    plugin = MASPlugin(alpha=0.25)
    strategy = naive(mlp(), plugin)
    first, second = permuted_digits(2).train_stream
    strategy.train(first)
    assert plugin.importance is not None
    old = {name: entry.data.clone() for name, entry in plugin.importance.items()}
    strategy.train(second)
    strategy.experience = second
    new = plugin._get_importance(strategy)
    for name, entry in plugin.importance.items():
        torch.testing.assert_close(entry.data, 0.25 * old[name] + 0.75 * new[name].data)


def test_several_outputs_are_refused_before_the_model_is_trained() -> None:
    strategy = naive(TwoOutputs(64, 10), MASPlugin(), criterion=of_the_first)
    with pytest.raises(ModelError, match="one tensor, but this model returns tuple"):
        strategy.train(EXPERIENCE)
    assert strategy.clock.train_iterations == 0
