"""DCO-KRON as a plugin: what it protects, what it leaves alone, with which neighbours it works."""

import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.logging import InteractiveLogger
from avalanche.models import MultiHeadClassifier, MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.supervised import Naive
from torch import nn

from avalanche_dco import DCOKron, DCOKronPlugin, DCOPlugin
from avalanche_dco.errors import ModelError, SettingError
from tests.plugins.test_isolation import After, Before
from tests.support.learning import (
    GrowingModel,
    blobs,
    errors_on_two_permutations,
    naive,
    small_mlp,
    split_blobs,
    train,
    weights_of,
)


def trained(plugins, **arguments):
    torch.manual_seed(0)
    model = small_mlp()
    train(model, blobs(), plugins, **arguments)
    return weights_of(model)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
}


class TestTraining:
    def test_differs_from_naive_and_is_the_same_for_the_same_seed(self):
        first = trained([DCOKronPlugin()])
        assert not torch.allclose(first, trained([]))
        assert torch.equal(first, trained([DCOKronPlugin()]))

    def test_forgets_less_than_naive_on_permuted_digits(self):
        errors = errors_on_two_permutations([DCOKronPlugin()])
        assert errors[0] < 0.5 * errors_on_two_permutations([])[0]
        assert errors[1] < 0.15

    def test_strength_zero_changes_nothing_but_random_numbers(self):
        """The estimate draws from a generator of its own, as far as the next experience sees."""
        off, tiny = (trained([DCOKronPlugin(strength)]) for strength in (0.0, 1e-12))
        torch.testing.assert_close(off, tiny)

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_a_huge_strength_freezes_what_the_first_experience_needs(self, name):
        """Whatever the optimizer, momentum and weight decay: outputs on old data stay."""
        benchmark = blobs(2, samples=12)
        model = small_mlp()
        plugin = DCOKronPlugin(1e9, negligible=0.0, damp_every=1)
        strategy = naive(model, [plugin], optimizer=OPTIMIZERS[name])
        strategy.train(benchmark.train_stream[0])
        x = torch.stack([sample[0] for sample in benchmark.train_stream[0].dataset])
        with torch.no_grad():
            before = model(x)
        strategy.train(benchmark.train_stream[1])
        with torch.no_grad():
            assert (model(x) - before).norm() < 0.02 * before.norm()

    @pytest.mark.parametrize("lr", [1e-3, 0.1, 1.0])
    def test_no_learning_rate_makes_it_diverge(self, lr):
        weights = trained(
            [DCOKronPlugin(1e6)], optimizer=lambda p: torch.optim.SGD(p, lr=lr, momentum=0.5)
        )
        assert torch.isfinite(weights).all()

    def test_nothing_is_left_undamped_when_the_model_is_evaluated(self):
        undamped = []

        class Watching(SupervisedPlugin):
            def before_eval(self, strategy, **kwargs):
                step = strategy.plugins[0]._step
                if step is not None:  # within an experience
                    undamped.append(step._updates)

        strategy = naive(small_mlp(), [DCOKronPlugin(damp_every=100), Watching()], eval_every=1)
        for experience in blobs().train_stream:
            strategy.train(experience, [blobs().test_stream[:1]])
        assert set(undamped) == {0}
        assert len(undamped) == 4  # two epochs of two experiences

    def test_skipped_steps_of_a_gradient_scaler(self):
        """Nothing moves when the optimizer does not."""
        model = small_mlp()
        strategy = naive(model, [DCOKronPlugin()])
        strategy.train(blobs().train_stream[0])
        before = weights_of(model)
        strategy.optimizer_step = lambda: None
        strategy.train(blobs().train_stream[1])
        assert torch.equal(weights_of(model), before)

    def test_a_gradient_scaler(self):
        """Scaled gradients move the weights as plain ones do; a step that it skips, not at all."""

        class Scaled(Naive):
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)

            def backward(self):
                self.scaler.scale(self.loss).backward()

            def optimizer_step(self):
                self.scaler.step(self.optimizer)
                self.scaler.update()

        def weights(kind):
            torch.manual_seed(0)
            model = small_mlp()
            strategy = kind(
                model=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                train_mb_size=16,
                plugins=[DCOKronPlugin()],
            )
            for experience in blobs().train_stream:
                strategy.train(experience)
            return weights_of(model)

        torch.testing.assert_close(weights(Scaled), weights(Naive))

    def test_gradient_accumulation(self):
        """An optimizer that steps every other time: each of its steps is shortened as a whole."""

        class Accumulating(Naive):
            def optimizer_step(self):
                if self.clock.train_exp_iterations % 2:
                    self.optimizer.step()
                    self._zero()

            def _zero(self):
                for parameter in self.model.parameters():
                    parameter.grad.zero_()

            def backward(self):
                (self.loss / 2).backward()

        def weights(kind, size, **settings):
            torch.manual_seed(0)
            model = small_mlp()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            strategy = kind(
                model=model,
                optimizer=optimizer,
                train_mb_size=size,
                plugins=[DCOKronPlugin(**settings)],
            )
            if kind is Accumulating:
                optimizer.zero_grad = lambda *_, **__: None
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
            for experience in blobs().train_stream:
                strategy.train(experience, shuffle=False)
            return weights_of(model)

        expected = weights(Naive, 16, damp_every=1)
        torch.testing.assert_close(weights(Accumulating, 8, damp_every=1), expected)
        torch.testing.assert_close(weights(Accumulating, 8, damp_every=2), expected)

    def test_a_compiled_model(self):
        def weights(prepare):
            torch.manual_seed(0)
            model = small_mlp()
            plugin = DCOKronPlugin()
            train(prepare(model), blobs(3), [plugin])
            assert not plugin.curvature.diagonal
            assert {f.tasks for f in plugin.curvature.layers.values()} == {3}
            return weights_of(model)

        compiled = weights(lambda model: torch.compile(model, backend="eager"))
        torch.testing.assert_close(compiled, weights(lambda model: model))

    def test_beside_replay(self):
        weights = trained([ReplayPlugin(mem_size=20), DCOKronPlugin()])
        assert torch.isfinite(weights).all()

    def test_memory_does_not_grow(self):
        plugin = DCOKronPlugin()
        assert plugin.memory_bytes == 0
        strategy = naive(small_mlp(), [plugin], train_epochs=1)
        kept = []
        for experience in blobs(4).train_stream:
            strategy.train(experience)
            kept.append(plugin.memory_bytes)
        # A and S of Linear(6, 8) and Linear(8, 3), with the constant of the bias.
        assert kept == [4 * (7**2 + 8**2 + 9**2 + 3**2)] * 4

    def test_strategy(self):
        torch.manual_seed(0)
        model = small_mlp()
        strategy = DCOKron(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            dco_lambda=7.0,
            samples=20,
            train_mb_size=16,
        )
        (plugin,) = (p for p in strategy.plugins if isinstance(p, DCOKronPlugin))
        assert (plugin.dco_lambda, plugin.samples) == (7.0, 20)
        strategy.train(blobs().train_stream[0])
        assert plugin.memory_bytes


class TestEstimate:
    def test_leaves_no_trace(self):
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), small_mlp(8))
        before, after = Before(), After()
        strategy = naive(model, [before, DCOKronPlugin(), after])
        for experience in blobs().train_stream:
            strategy.train(experience)
            assert after.seen == before.seen

    def test_progress_is_shown_to_who_asks_for_it(self, capsys):
        for loggers, shown in (([], False), ([InteractiveLogger()], True)):
            evaluator = EvaluationPlugin(loggers=loggers)
            train(small_mlp(), blobs(), [DCOKronPlugin()], evaluator=evaluator)
            assert ("DCO-KRON: curvature" in capsys.readouterr().err) is shown

    def test_looks_at_no_more_samples_than_asked_for(self):
        seen = []
        strategy = naive(small_mlp(), [DCOKronPlugin(samples=10)], train_epochs=1)

        def count(model, inputs, outputs):
            if not model.training:
                seen.append(len(inputs[0]))

        strategy.model.register_forward_hook(count)
        strategy.train(blobs().train_stream[0])
        assert sum(seen) == 10

    def test_a_model_that_returns_no_tensor(self):
        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(6, 3)

            def forward(self, x):
                return self.layer(x), x

        strategy = naive(Pair(), [DCOKronPlugin()])
        strategy._criterion = lambda outputs, y: nn.functional.cross_entropy(outputs[0], y)
        with pytest.raises(ModelError, match="one tensor"):
            strategy.train(blobs().train_stream[0])


class TestPush:
    def test_the_weights_go_as_far_as_wanted_in_the_first_experience(self):
        """Nothing is damped yet."""

        def pushed(theta):
            torch.manual_seed(0)
            model = small_mlp()
            plugin = DCOKronPlugin(push_epochs=1, theta=theta)
            naive(model, [plugin]).train(blobs().train_stream[0])
            return weights_of(model)

        assert (pushed(0.3) - pushed(0.7)).norm() == pytest.approx(0.4, rel=1e-4)

    def test_a_push_is_damped_like_any_other_update(self):
        benchmark = blobs(2, samples=12)
        x = torch.stack([sample[0] for sample in benchmark.train_stream[0].dataset])

        def change(strength):
            torch.manual_seed(0)
            model = small_mlp()
            plugin = DCOKronPlugin(strength, negligible=0.0, damp_every=1, push_epochs=2, theta=5.0)
            strategy = naive(model, [plugin])
            strategy.train(benchmark.train_stream[0])
            with torch.no_grad():
                before = model(x)
            strategy.train(benchmark.train_stream[1])
            with torch.no_grad():
                return (model(x) - before).norm() / before.norm()

        assert change(1e9) < 0.02 < 0.2 < change(0.0)

    def test_none_by_default(self):
        torch.testing.assert_close(
            trained([DCOKronPlugin()]), trained([DCOKronPlugin(push_epochs=3, theta=0.0)])
        )
        assert not torch.allclose(
            trained([DCOKronPlugin()]), trained([DCOKronPlugin(push_epochs=3)])
        )

    def test_an_interrupted_push_leaves_the_weights_as_training_did(self, monkeypatch):
        def interrupted(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(DCOKronPlugin, "_estimated", interrupted)
        ends = []

        class End(SupervisedPlugin):
            def after_training_exp(self, strategy, **kwargs):
                ends.append(weights_of(strategy.model))

        model = small_mlp()
        strategy = naive(model, [End(), DCOKronPlugin(push_epochs=1)])
        with pytest.raises(KeyboardInterrupt):
            strategy.train(blobs().train_stream[0])
        assert torch.equal(weights_of(model), ends[0])


class TestModels:
    def test_growing_head(self):
        plugin = DCOKronPlugin()
        train(GrowingModel(), split_blobs(3), [plugin])
        assert plugin.curvature.layers["head.classifier.weight"].S.shape == (1, 6, 6)

    def test_heads_of_other_tasks_stay(self):
        class Heads(MultiTaskModule):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(6, 5)
                self.head = MultiHeadClassifier(5, initial_out_features=2)

            def forward(self, x, task_labels):
                return self.head(self.body(x).relu(), task_labels)

        model = Heads()
        strategy = naive(model, [DCOKronPlugin()])
        benchmark = split_blobs(3)
        strategy.train(benchmark.train_stream[0])
        strategy.train(benchmark.train_stream[1])
        first = model.head.classifiers["0"].classifier.weight.detach().clone()
        strategy.train(benchmark.train_stream[2])
        assert torch.equal(model.head.classifiers["0"].classifier.weight, first)

    def test_frozen_layers_and_filtered_parameters(self):
        model = small_mlp()
        model[0].requires_grad_(False)
        plugin = DCOKronPlugin(parameter_filter=lambda name, _: name != "2.bias")
        train(model, blobs(), [plugin])
        assert plugin.curvature.layers.keys() == {"2.weight"}
        assert not plugin.curvature.layers["2.weight"].bias

    def test_a_filter_that_leaves_nothing(self):
        with pytest.raises(ModelError, match="parameter_filter"):
            train(small_mlp(), blobs(), [DCOKronPlugin(parameter_filter=lambda *_: False)])

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_precisions(self, dtype):
        benchmark = blobs()
        model = nn.Sequential(_To(dtype), small_mlp().to(dtype))
        strategy = train(model, benchmark, [DCOKronPlugin()])
        assert all(p.dtype == dtype for p in strategy.model.parameters())
        assert torch.isfinite(weights_of(model)).all()

    def test_training_in_autocast(self):
        """Forward passes in bfloat16 have factors in float32, near those of float32."""

        class Cast(nn.Module):
            def __init__(self, enabled):
                super().__init__()
                self.body, self.enabled = small_mlp(), enabled

            def forward(self, x):
                with torch.autocast("cpu", torch.bfloat16, enabled=self.enabled):
                    return self.body(x)

        plugins = []
        for enabled in (False, True):
            torch.manual_seed(0)
            model, plugin = Cast(enabled), DCOKronPlugin()
            strategy = train(model, blobs(), [plugin])
            assert torch.isfinite(weights_of(strategy.model)).all()
            plugins.append(plugin)
        exact, cast = (plugin.curvature.layers for plugin in plugins)
        assert cast.keys() == exact.keys() == {"body.0.weight", "body.2.weight"}
        for name, factors in cast.items():
            assert factors.A.dtype == factors.S.dtype == torch.float32
            assert (factors.A - exact[name].A).norm() < 0.1 * exact[name].A.norm()

    def test_embeddings_recurrent_layers_and_tied_weights(self):
        class Words(nn.Module):
            def __init__(self, sparse):
                super().__init__()
                self.table = nn.Embedding(20, 4, sparse=sparse)
                self.memory = nn.LSTM(4, 4, batch_first=True)
                self.gated = nn.GRU(4, 4, batch_first=True)
                self.scale = nn.Parameter(torch.ones(()))
                self.tied = nn.Linear(4, 20, bias=False)
                self.tied.weight = self.table.weight
                self.out = nn.Linear(20, 3)

            def forward(self, x):
                x = self.table((4 * x).long().clamp(-9, 9) + 10)
                return self.out(self.tied(self.scale * self.gated(self.memory(x)[0])[0][:, -1]))

        for sparse in (False, True):
            model = Words(sparse)
            if sparse:  # SGD with momentum takes no sparse gradients beside dense ones
                model.tied.weight = nn.Parameter(torch.randn(20, 4))
            plugin = DCOKronPlugin()
            strategy = train(
                model, blobs(), [plugin], optimizer=lambda p: torch.optim.SGD(p, lr=0.1)
            )
            layers = {"out.weight"} | ({"tied.weight"} if sparse else set())
            assert plugin.curvature.layers.keys() == layers
            protected = layers | {"out.bias"} | plugin.curvature.diagonal.keys()
            assert protected == {name for name, _ in model.named_parameters()}
            before = model.memory.weight_hh_l0.detach().clone()
            plugin.dco_lambda = 1e12
            strategy.train(blobs().train_stream[0])
            torch.testing.assert_close(model.memory.weight_hh_l0, before, rtol=0, atol=1e-5)

    def test_convolutions_normalisation_and_attention(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv1d(1, 4, 3, padding=1)
                self.norm = nn.BatchNorm1d(4)
                self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
                self.out = nn.Linear(24, 3)

            def forward(self, x):
                x = self.norm(self.conv(x.unsqueeze(1))).transpose(1, 2)
                return self.out(self.attention(x, x, x)[0].flatten(1))

        plugin = DCOKronPlugin()
        model = Net()
        train(model, blobs(), [plugin])
        layers = {"conv.weight", "out.weight"}
        assert plugin.curvature.layers.keys() == layers
        protected = layers | {"conv.bias", "out.bias"} | plugin.curvature.diagonal.keys()
        assert protected == {name for name, _ in model.named_parameters()}


class _To(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("dco_lambda", -1),
            ("dco_lambda", float("nan")),
            ("samples", 0),
            ("negligible", 0.9),
            ("damp_every", 0),
        ],
    )
    def test_out_of_range(self, name, value):
        with pytest.raises(SettingError, match=name):
            DCOKronPlugin(**{name: value})

    def test_free_shares_fall_with_the_experiences(self):
        plugin = DCOKronPlugin()
        strategy = naive(small_mlp(), [plugin])
        assert plugin.free_shares == {}
        shares = []
        for experience in blobs(3).train_stream:
            strategy.train(experience)
            shares.append(plugin.free_shares)
        assert shares[0].keys() == {"0.weight", "2.weight"}
        for name in shares[0]:
            assert 1 > shares[0][name] > shares[1][name] > shares[2][name] > 0
        name = "DCO_FreeDirections/0.weight/train_phase/train_stream/Task000/Exp002"
        assert strategy.evaluator.get_all_metrics()[name][1] == [shares[2]["0.weight"]]

    def test_two_plugins_are_refused(self):
        with pytest.raises(SettingError, match="DCOPlugin, DCOKronPlugin"):
            train(small_mlp(), blobs(), [DCOPlugin(), DCOKronPlugin()])
