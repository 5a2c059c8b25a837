"""Directions that are sampled, and the penalty that follows several updates at once."""

import pytest
import torch
from avalanche.core import SupervisedPlugin
from torch import nn

from avalanche_dco import DCOCompPlugin, DCOPlugin
from avalanche_dco.core.implicit_step import ImplicitStep
from avalanche_dco.errors import ModelError, SettingError
from avalanche_dco.plugins.support import reporting
from tests.plugins.test_dco_with_models import MODELS
from tests.support.learning import (
    blobs,
    errors_on_two_permutations,
    naive,
    small_mlp,
    stream,
    train,
)
from tests.support.problems import explicit_matrix

SAMPLED = {"k": 8, "push_epochs": 0}


def metrics_named(strategy, name):
    found = strategy.evaluator.get_all_metrics().items()
    return {key: values for key, (_, values) in found if key.startswith(name)}


class TestDirections:
    @pytest.mark.parametrize("kind", MODELS)
    @pytest.mark.parametrize("plugin", [DCOPlugin, DCOCompPlugin])
    def test_any_layer_has_a_part_in_them(self, plugin, kind):
        model, shape = MODELS[kind]()
        dco = plugin(**SAMPLED, directions="sampled")
        strategy = train(model, blobs(shape=shape), [dco])
        directions = dco.penalty.directions
        assert directions.factors.keys() == dict(model.named_parameters()).keys()
        assert all(f.U.any() and f.V.any() for f in directions.factors.values())
        for values in metrics_named(strategy, "DCO_RankOneError").values():
            assert values[0] == pytest.approx(0, abs=1e-5) or kind in (
                *("conv1d", "conv2d", "conv3d", "grouped", "transposed"),
                *("lstm", "tied", "embedding"),
            )
            assert values[0] < 0.9

    def test_they_are_gradients_of_single_samples_at_the_end_of_training_with_dropout_off(self):
        """Of one output: e is one number, by which each gradient is off."""
        x = torch.randn(5, 6)
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Dropout(0.9), nn.Linear(4, 1))
        plugin = DCOPlugin(k=5, push_epochs=0, directions="sampled")
        strategy = naive(model, [plugin])
        strategy._criterion = lambda outputs, y: outputs.square().mean()
        strategy.train(stream([x], [torch.zeros(5, dtype=torch.long)]).train_stream[0])
        assert model.training  # as it was
        model.eval()
        parameters = list(model.parameters())
        expected = []
        for one in x:
            gradient = torch.autograd.grad(model(one).sum(), parameters)
            expected.append(torch.cat([part.reshape(-1) for part in gradient]))
        found = explicit_matrix(plugin.penalty.directions)
        cosines = nn.functional.normalize(found, dim=0).T @ nn.functional.normalize(
            torch.stack(expected, 1), dim=0
        )
        assert sorted(cosines.abs().argmax(1).tolist()) == [0, 1, 2, 3, 4]
        torch.testing.assert_close(cosines.abs().amax(1), torch.ones(5))

    def test_eigendirections_are_orthogonal_in_every_parameter(self):
        plugin = DCOPlugin(k=6, directions="eigen")
        strategy = naive(small_mlp(), [plugin])
        strategy.train(blobs().train_stream[0])
        for f in plugin.penalty.directions.factors.values():
            W = torch.einsum("rk,ck->rck", f.U, f.V).flatten(0, 1)
            S = W.T @ W
            lengths = S.diagonal()
            torch.testing.assert_close(S, torch.diag(lengths), rtol=1e-3, atol=1e-4)  # orthogonal
            assert lengths.tolist() == sorted(lengths, reverse=True)  # the largest first

    def test_more_directions_than_samples(self):
        plugin = DCOPlugin(k=100, push_epochs=0)
        train(small_mlp(), blobs(samples=12), [plugin])
        assert plugin.penalty.directions.k == 200

    def test_they_forget_less_than_naive_on_permuted_digits(self):
        errors = errors_on_two_permutations([DCOPlugin(k=64)])
        assert errors[0] < 0.5 * errors_on_two_permutations([])[0]
        assert errors[1] < 0.15

    def test_a_model_with_several_outputs_is_refused_in_the_first_iteration(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = small_mlp()

            def forward(self, x):
                return self.body(x), x

        plugin = DCOPlugin(**SAMPLED)
        strategy = naive(Two(), [plugin])
        strategy._criterion = lambda outputs, y: nn.functional.cross_entropy(outputs[0], y)
        with pytest.raises(ModelError, match="directions='trained'"):
            strategy.train(blobs().train_stream[0])
        assert strategy.clock.train_iterations == 0

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("gradients_per_update", 16),
            ("autoencoder_updates", 50),
            ("autoencoder_tolerance", 0.01),
            ("gradient_source", "logits"),
            ("gamma_2", 0.0),
        ],
    )
    def test_settings_of_training_are_refused(self, name, value):
        with pytest.raises(SettingError, match=f"directions='trained', {name}="):
            DCOPlugin(**{name: value})
        DCOPlugin(directions="trained", **{name: value})


class TestPaper:
    @pytest.mark.parametrize("plugin", [DCOPlugin, DCOCompPlugin])
    def test_it_has_the_papers_settings(self, plugin):
        made = plugin.paper(20, theta=0.5)
        for name, value in plugin.published().items():
            expected = {"k": 20, "theta": 0.5}.get(name, value)
            assert getattr(made, name) == expected
        assert made.directions == "trained"
        assert (made.penalty_step, made.penalty_every, made.push_epochs) == ("gradient", 1, 10)
        assert made.couple_layers

    def test_those_of_a_benchmark(self):
        assert DCOPlugin.paper(benchmark="split-cifar100").dco_lambda == 1000
        assert DCOPlugin.paper().dco_lambda == 100


class TestPenaltyEvery:
    @pytest.mark.parametrize(
        ("every", "batches", "expected"),
        [(1, 3, [1, 1, 1]), (8, 3, [3]), (2, 3, [2, 1]), (4, 6, [3, 3]), (5, 12, [4, 4, 4])],
    )
    def test_an_epochs_updates_are_divided_evenly_and_none_is_left_over(
        self, every, batches, expected, monkeypatch
    ):
        plugin = DCOPlugin(**SAMPLED, penalty_every=every)
        strategy = naive(small_mlp(), [plugin], train_epochs=2)
        first, second = blobs(samples=16 * batches).train_stream
        strategy.train(first)
        steps, begun, sizes = [], [0], []
        make = ImplicitStep.__call__

        def recorded(step, *args):
            now = strategy.clock.train_exp_iterations
            steps.append(now - begun[0])
            begun[0] = now
            sizes.append(step.sizes["0.weight"])
            return make(step, *args)

        monkeypatch.setattr(ImplicitStep, "__call__", recorded)
        strategy.train(second)
        # An iteration counts once it is over: the step of its update comes before.
        assert sum(steps) <= 2 * batches
        assert len(steps) == 2 * len(expected)
        # lr / (1 - momentum) = 1 for each update
        assert sizes == pytest.approx([float(expected[0])] * len(sizes))

    def test_an_evaluation_within_an_epoch_sees_no_update_without_its_penalty(self):
        counts = []

        class Evaluates(SupervisedPlugin):
            def after_training_iteration(self, strategy, **kwargs):
                before = plugin._updates
                plugin.before_eval(strategy)
                counts.append((before, plugin._updates))

        plugin = DCOPlugin(**SAMPLED, penalty_every=8)
        train(small_mlp(), blobs(), [plugin, Evaluates()])
        assert set(counts) == {(1, 0)}

    def test_the_balance_of_loss_and_penalty_does_not_depend_on_it(self):
        """A quadratic loss against the penalty: training comes to rest near their minimum."""
        each, together, weaker = (
            self.resting_point(every, strength) for every, strength in ((1, 1), (4, 1), (1, 0.25))
        )
        assert (each - together).abs().max() < 0.2 * (each - weaker).abs().max()

    def resting_point(self, every, strength):
        torch.manual_seed(0)
        model = nn.Linear(3, 2, bias=False)
        plugin = DCOPlugin(k=4, push_epochs=0, penalty_every=every, dco_lambda=strength)
        strategy = naive(
            model,
            [plugin],
            optimizer=lambda p: torch.optim.SGD(p, lr=0.02),
            train_epochs=1,
            train_mb_size=64,
        )
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(8, 3, generator=generator).repeat(32, 1)  # all batches are alike
        goal = torch.randn(2, 3, generator=generator)
        strategy._criterion = lambda outputs, y: (model.weight - goal).square().sum()
        benchmark = stream([x] * 2, [torch.zeros(256, dtype=torch.long)] * 2)
        strategy.train(benchmark.train_stream[0])
        goal.add_(1)
        strategy.train_epochs = 50
        strategy.train(benchmark.train_stream[1])
        return model.weight.detach()


class TestWait:
    def warnings_of(self, plugin, recwarn):
        train(small_mlp(), blobs(), [plugin])
        return [str(w.message) for w in recwarn if "steps 2 and 3 of DCO take about" in str(w)]

    @pytest.fixture
    def _impatient(self, monkeypatch):
        monkeypatch.setattr(reporting, "_LONG", 0.0)
        monkeypatch.setattr(reporting, "_PACE_OVER", 0.0)

    @pytest.mark.usefixtures("_impatient")
    @pytest.mark.parametrize(
        ("settings", "remedy"),
        [
            (SAMPLED, "use a smaller k than 8"),
            (SAMPLED | {"push_epochs": 1}, "use fewer push_epochs"),
            (
                SAMPLED | {"directions": "trained", "autoencoder_updates": 3},
                "use directions='sampled', which need no training, or fewer autoencoder_updates "
                "than 3",
            ),
        ],
    )
    def test_a_long_one_is_told_once_with_what_would_shorten_it(self, settings, remedy, recwarn):
        (told,) = self.warnings_of(DCOPlugin(**settings), recwarn)
        assert "Experience 0" in told
        assert remedy in told

    def test_a_short_one_is_not_told(self, recwarn):
        assert not self.warnings_of(DCOPlugin(**SAMPLED), recwarn)

    def test_the_estimate(self, monkeypatch, recwarn):
        now = [0.0]
        monkeypatch.setattr(reporting.time, "perf_counter", lambda: now[0])
        strategy = naive(small_mlp())
        strategy.experience = blobs().train_stream[0]
        recwarn.clear()
        wait = reporting.Wait()
        wait.begin()
        now[0] = 7.0
        wait.expect(100, "do less")
        for seconds in (10.0, 1.0, 1.0):  # the first round warms up
            now[0] += seconds
            wait.advance(strategy)
        assert "about 116 s" in str(recwarn.pop().message)  # 18 so far, and 98 rounds
