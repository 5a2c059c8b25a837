"""How the penalty moves the weights in step 1, and which of them."""

import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.models import PNN
from avalanche.training.supervised import Naive
from torch import nn

from avalanche_dco import DCOCompPlugin, DCOPlugin
from avalanche_dco.core.implicit_step import ImplicitStep
from avalanche_dco.errors import SettingError
from benchmarks.streams.digits import permuted_digits, split_digits
from tests.plugins.test_dco_with_models import MultiHead
from tests.support.learning import (
    QUICK,
    blobs,
    error_on,
    naive,
    small_mlp,
    stream,
    train,
    weights_of,
)

STEPS = ["implicit", "gradient"]


def heads_of_three_tasks(plugin, **arguments):
    """The first head's weights after the first and after the last task."""
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(32, 6, generator=generator) for _ in range(3)]
    benchmark = stream(inputs, [torch.arange(32) % 2] * 3, tasks=[0, 1, 2])
    torch.manual_seed(0)
    model = MultiHead()
    strategy = naive(model, [plugin], **arguments)
    first = None
    for experience in benchmark.train_stream:
        strategy.train(experience)
        first = first or [p.detach().clone() for p in model.head.classifiers["0"].parameters()]
    return first, list(model.head.classifiers["0"].parameters())


class TestUnusedParameters:
    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("plugin", [DCOPlugin, DCOCompPlugin])
    @pytest.mark.parametrize("couple_layers", [True, False])
    def test_heads_of_other_tasks_stay_bit_for_bit(self, plugin, step, couple_layers):
        dco = plugin(**QUICK, gamma_1=0.1, penalty_step=step, couple_layers=couple_layers)
        before, after = heads_of_three_tasks(dco)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    @pytest.mark.parametrize("step", STEPS)
    def test_the_papers_reading_moves_them(self, step):
        dco = DCOPlugin(**QUICK, penalty_step=step, move_unused=True, couple_layers=True)
        before, after = heads_of_three_tasks(dco)
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_progressive_networks_forget_nothing(self, step, seed):
        """Every task's accuracy is at the end what it was when the task had been learned."""
        benchmark = split_digits()
        torch.manual_seed(seed)
        model = PNN(num_layers=1, in_features=64, hidden_features_per_column=16)
        strategy = naive(model, [DCOPlugin(**QUICK, penalty_step=step)], train_mb_size=32)

        def outputs_and_accuracy(task):
            data = benchmark.test_stream[task].dataset
            x = torch.stack([sample[0] for sample in data])
            y = torch.tensor([sample[1] for sample in data])
            model.eval()
            with torch.no_grad():
                outputs = model(x, torch.full((len(x),), task))[:, 2 * task : 2 * task + 2]
            return outputs, (outputs.argmax(1) + 2 * task == y).double().mean().item()

        learned, weights = [], None
        for task, experience in enumerate(benchmark.train_stream):
            strategy.train(experience)
            learned.append(outputs_and_accuracy(task))
            first = [*model.layers[0].columns[0].parameters()]
            first += model.classifier.classifiers["0"].parameters()
            weights = weights or [p.detach().clone() for p in first]
        assert all(torch.equal(a, b) for a, b in zip(weights, first, strict=True))
        for task, (outputs, accuracy) in enumerate(learned):
            now = outputs_and_accuracy(task)
            assert torch.equal(now[0], outputs)
            assert now[1] == accuracy > 0.9

    @pytest.mark.parametrize("step", STEPS)
    def test_a_parameter_that_naive_moves_without_a_gradient_is_used(self, step):
        """zero_grad(set_to_none=False) lets weight decay move heads of other tasks."""

        class KeepsGradients(SupervisedPlugin):
            def before_training_iteration(self, strategy, **kwargs):
                strategy.optimizer.zero_grad = lambda: torch.optim.SGD.zero_grad(
                    strategy.optimizer, set_to_none=False
                )

        moved = {}
        for penalty in (True, False):
            settings = QUICK | {"push_epochs": 0, "dco_lambda": 100.0 if penalty else 0.0}
            strategy = naive(
                small_with_idle_layer(),
                [DCOPlugin(**settings, penalty_step=step), KeepsGradients()],
                optimizer=lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1),
            )
            first, second = blobs().train_stream
            torch.manual_seed(3)
            strategy.train(first)
            strategy.model.idle = True
            torch.manual_seed(4)
            strategy.train(second)
            moved[penalty] = strategy.model.side.weight.detach().clone()
        assert not torch.equal(moved[True], moved[False])


class Idle(nn.Module):
    """A side branch that can be left out."""

    def __init__(self):
        super().__init__()
        self.main, self.side, self.idle = small_mlp(), nn.Linear(6, 3), False

    def forward(self, x):
        return self.main(x) if self.idle else self.main(x) + self.side(x)


def small_with_idle_layer():
    torch.manual_seed(0)
    return Idle()


class Scaled(Naive):
    """Mixed precision as people write it: the loss is scaled, and the gradients are scaled back."""

    skip = False

    def backward(self):
        (1024 * self.loss).backward()

    def optimizer_step(self):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= 1024
        if not self.skip:
            super().optimizer_step()


def scaled(plugin, cls=Scaled, **arguments):
    torch.manual_seed(0)
    model = small_mlp()
    return cls(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=16,
        train_epochs=2,
        plugins=[plugin],
        evaluator=None,
    )


class TestScaledGradients:
    @pytest.mark.parametrize("step", STEPS)
    def test_a_scale_on_the_loss_changes_nothing(self, step):
        results = []
        for cls in (Naive, Scaled):
            settings = QUICK | {"push_epochs": 0}
            strategy = scaled(DCOPlugin(**settings, penalty_step=step), cls)
            torch.manual_seed(1)
            for experience in blobs().train_stream:
                strategy.train(experience)
            results.append(weights_of(strategy.model))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)

    def test_the_implicit_step_is_made_where_the_optimizers_is_skipped(self):
        plugin = DCOPlugin(**QUICK)
        strategy = scaled(plugin)
        first, second = blobs().train_stream
        strategy.train(first)
        with torch.no_grad():
            for p in strategy.model.parameters():
                p.add_(0.1)
        before = plugin.penalty(dict(strategy.model.named_parameters()), 1.0)
        strategy.skip, plugin.push_epochs, plugin.autoencoder_updates = True, 0, 0
        strategy.train(second)
        after = plugin.penalty(dict(strategy.model.named_parameters()), 1.0)
        assert after < 0.1 * before


class TestImplicitStep:
    def test_one_update_is_the_optimizers_and_the_step_of_the_penalty(self):
        """Momentum 0.9 makes the optimizer move ten times lr along a constant gradient."""
        sizes = []

        class Recorded(DCOPlugin):
            def after_update(self, strategy, **kwargs):
                parameters = dict(strategy.model.named_parameters())
                expected = {name: p.detach().clone() for name, p in parameters.items()}
                super().after_update(strategy, **kwargs)
                if self.penalty is not None:
                    step = ImplicitStep(self.penalty, 100.0, dict.fromkeys(parameters, 0.5))
                    step(expected, 20.0)
                    for name, p in parameters.items():
                        torch.testing.assert_close(p.detach(), expected[name])
                    sizes.append(self._implicit.sizes)

        train(
            small_mlp(),
            blobs(),
            [Recorded(**QUICK)],
            optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        )
        assert len(sizes) == 6
        assert list(sizes[0].values()) == pytest.approx([0.5] * 4)

    def test_it_is_prepared_once_per_experience_and_again_if_a_learning_rate_changes(
        self, monkeypatch
    ):
        prepared, make = [], ImplicitStep.__init__

        def counted(self, penalty, strength, sizes):
            prepared.append((strength, dict(sizes)))
            make(self, penalty, strength, sizes)

        monkeypatch.setattr(ImplicitStep, "__init__", counted)

        class Schedule(SupervisedPlugin):
            def before_training_iteration(self, strategy, **kwargs):
                lr = self.rates.pop(0)
                for group in strategy.optimizer.param_groups:
                    group["lr"] = lr

        schedule, plugin = Schedule(), DCOPlugin(**QUICK)
        strategy = naive(
            small_mlp(), [plugin, schedule], optimizer=lambda p: torch.optim.SGD(p, lr=0.1)
        )
        first, second, third = blobs(3).train_stream
        schedule.rates = [0.1] * 6
        strategy.train(first)
        assert prepared == []
        schedule.rates = [0.1, 0.105, 0.1, 0.2, 0.0, 0.0]  # none is a step of its own for 0.105
        strategy.train(second)
        assert [set(sizes.values()) for _, sizes in prepared] == [{0.1}, {0.2}, set()]
        assert plugin._implicit is None  # working memory of an experience
        plugin.dco_lambda, schedule.rates = 7.0, [0.1] * 6
        strategy.train(third)
        assert prepared[3:] == [(7.0, dict.fromkeys(prepared[0][1], 0.1))]

    def test_it_does_not_wait_for_the_device(self, monkeypatch):
        def refuse(self, *args):
            raise AssertionError("a value was read back")

        class Watched(DCOPlugin):
            def after_update(self, strategy, **kwargs):
                prepared = self._implicit is not None
                with monkeypatch.context() as patched:
                    if prepared:
                        for name in ("item", "__bool__", "__float__", "tolist", "cpu"):
                            patched.setattr(torch.Tensor, name, refuse)
                    super().after_update(strategy, **kwargs)

        train(small_mlp(), blobs(), [Watched(**QUICK)])

    def test_an_optimizer_without_a_learning_rate_is_refused_before_training(self):
        class Rateless(torch.optim.SGD):
            def __init__(self, parameters):
                super().__init__(parameters, lr=0.1)
                for group in self.param_groups:
                    del group["lr"]

        with pytest.raises(SettingError, match="penalty_step='gradient'"):
            train(small_mlp(), blobs(1), [DCOPlugin(**QUICK)], optimizer=Rateless)

    def test_memory_and_metrics_do_not_depend_on_the_step(self):
        bytes_kept, names = {}, {}
        for step in STEPS:
            strategy = train(small_mlp(), blobs(), [DCOPlugin(**QUICK, penalty_step=step)])
            plugin = strategy.plugins[0]
            bytes_kept[step] = plugin.memory_bytes
            names[step] = set(strategy.evaluator.get_all_metrics())
            assert plugin.state_dict()["settings"]["penalty_step"] == step
        assert bytes_kept["implicit"] == bytes_kept["gradient"]
        assert names["implicit"] == names["gradient"]


class TestStability:
    @pytest.mark.parametrize(("lr", "warned"), [(1e-4, False), (1.0, True)])
    def test_gradient_steps_warn_beyond_their_limit_with_values_to_use(self, lr, warned, recwarn):
        plugin = DCOPlugin(**QUICK, penalty_step="gradient")
        strategy = naive(small_mlp(), [plugin], optimizer=lambda p: torch.optim.SGD(p, lr=0.05))
        first, second = blobs().train_stream
        strategy.train(first)
        for group in strategy.optimizer.param_groups:
            group["lr"] = lr
        sizes = dict.fromkeys(plugin.penalty.directions.factors, lr)
        limit = 200.0 * plugin.penalty.sharpness(sizes).item()
        strategy.train(second)
        messages = [str(w.message) for w in recwarn if "exceeds 1" in str(w.message)]
        assert (limit > 1) is warned
        assert len(messages) == warned
        if warned:
            assert f"||W^T W|| = {limit:.3g} exceeds 1" in messages[0]
            assert f"at most {100 / limit:.2g}" in messages[0]

    @pytest.mark.parametrize(
        ("step", "optimizer"), [("implicit", torch.optim.SGD), ("gradient", torch.optim.Adam)]
    )
    def test_others_have_no_such_limit(self, step, optimizer, recwarn):
        plugin = DCOPlugin(**QUICK, penalty_step=step, dco_lambda=1e4)
        train(small_mlp(), blobs(), [plugin], optimizer=lambda p: optimizer(p, lr=0.05))
        assert not [w for w in recwarn if "exceeds 1" in str(w.message)]

    @pytest.mark.parametrize("dco_lambda", [1e20, 1e30])
    def test_strengths_beyond_any_use_still_hold_the_weights(self, dco_lambda):
        def distance(strength):
            torch.manual_seed(0)
            plugin = DCOPlugin(**QUICK, dco_lambda=strength)
            model = small_mlp()
            first, second = blobs().train_stream
            strategy = naive(model, [plugin], optimizer=lambda p: torch.optim.SGD(p, lr=0.01))
            strategy.train(first)
            penalty, plugin.push_epochs, plugin.autoencoder_updates = plugin.penalty, 0, 0
            strategy.train(second)
            return penalty(dict(model.named_parameters()), 1.0).item()

        assert distance(dco_lambda) < 0.5 * distance(0.0)


@pytest.mark.parametrize(
    ("setting", "value"), [("penalty_step", "explicit"), ("move_unused", "no")]
)
def test_other_values_are_refused(setting, value):
    with pytest.raises(SettingError, match=setting):
        DCOPlugin(**{setting: value})


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:Experience 1. the learning rate is too large")
def test_with_a_large_learning_rate_only_the_implicit_step_forgets_less_than_naive(seed):
    def accuracy(*plugins):
        benchmark = permuted_digits(2, seed=seed)
        torch.manual_seed(seed)
        model = small_mlp(64, 10, hidden=32)
        strategy = naive(
            model,
            plugins,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.3),
            train_mb_size=32,
            train_epochs=5,
        )
        for experience in benchmark.train_stream:
            strategy.train(experience)
        return 1 - sum(error_on(model, experience) for experience in benchmark.test_stream) / 2

    settings = {"k": 64, "push_epochs": 2, "gradients_per_update": 8, "autoencoder_updates": 40}
    settings |= {"directions": "trained", "penalty_every": 1, "couple_layers": True}
    alone = accuracy()
    gradient = accuracy(DCOPlugin(**settings, penalty_step="gradient"))
    assert gradient < alone < accuracy(DCOPlugin(**settings))
