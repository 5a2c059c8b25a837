"""What DCO does: Algorithm 1, step by step, and that it protects."""

import itertools
import re
import warnings

import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metric_results import MetricValue
from avalanche.logging import BaseLogger, InteractiveLogger
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_dco import DCO, DCOPlugin
from avalanche_dco.core import cone
from avalanche_dco.core.implicit_step import ImplicitStep
from avalanche_dco.errors import GradientError, ModelError, SettingError
from avalanche_dco.plugins.support import direction_learning, push
from avalanche_dco.plugins.support.gradients import LogitSampler, TrajectorySampler
from tests.support.learning import (
    QUICK,
    blobs,
    errors_on_two_permutations,
    naive,
    small_mlp,
    stream,
    train,
    trained_by,
    weights_of,
)

OFF = {"dco_lambda": 0.0, "push_epochs": 0, "autoencoder_updates": 0}


def trained(**settings):
    torch.manual_seed(0)
    model = small_mlp()
    train(model, blobs(), [DCOPlugin(**settings)] if settings else [])
    return weights_of(model)


class TestEffect:
    def test_switched_off_equals_naive_bit_for_bit(self):
        assert torch.equal(trained(**OFF), trained())

    def test_differs_from_naive(self):
        assert not torch.allclose(trained(**QUICK), trained())

    def test_penalty_alone_differs_from_no_penalty(self):
        settings = QUICK | {"push_epochs": 0}
        assert not torch.allclose(
            trained(**settings, dco_lambda=100.0), trained(**settings, dco_lambda=0.0)
        )

    def test_same_seed_same_weights(self):
        assert torch.equal(trained(**QUICK), trained(**QUICK))

    def test_learning_rate_set_before_an_experience_is_that_of_its_steps(self):
        rates = []

        class Watcher(SupervisedPlugin):
            def before_update(self, strategy, **kwargs):
                rates.append(strategy.optimizer.param_groups[0]["lr"])

        strategy = naive(small_mlp(), [DCOPlugin(**QUICK), Watcher()], train_epochs=1)
        for index, experience in enumerate(blobs().train_stream):
            for group in strategy.optimizer.param_groups:
                group["lr"] = 0.01 if index == 0 else 0.001
            strategy.train(experience)
        assert rates == [0.01] * 3 + [0.001] * 3  # 48 samples in batches of 16

    @pytest.mark.parametrize("source", ["criterion", "logits"])
    def test_forgets_less_than_naive_on_permuted_digits(self, source):
        plugin = DCOPlugin(
            k=64,
            gradients_per_update=8,
            directions="trained",
            penalty_every=1,
            couple_layers=True,
            autoencoder_updates=60,
            push_epochs=2,
            gradient_source=source,
        )
        errors = errors_on_two_permutations([plugin])
        assert errors[0] < 0.7 * errors_on_two_permutations([])[0]
        assert errors[1] < 0.15

    def test_penalty_is_off_in_the_first_experience_and_positive_in_the_second(self):
        plugin = DCOPlugin(**QUICK)
        strategy = train(small_mlp(), blobs(), [plugin])
        metrics = strategy.evaluator.get_all_metrics()
        name = "DCO_Penalty/train_phase/train_stream/Task000/Exp00{}"
        assert name.format(0) not in metrics
        iterations, values = metrics[name.format(1)]
        assert len(values) == 2  # one per epoch
        assert all(value > 0 for value in values)
        assert iterations == sorted(iterations)

    def test_lambda_zero_adds_no_penalty(self):
        strategy = train(small_mlp(), blobs(), [DCOPlugin(**QUICK, dco_lambda=0.0)])
        assert not any("DCO_Penalty" in name for name in strategy.evaluator.get_all_metrics())

    def test_strategy_equals_naive_with_the_plugin(self):
        assert torch.equal(trained_by(DCO, **QUICK), trained(**QUICK))

    def test_strategy_hands_every_setting_to_the_plugin_and_puts_it_first(self):
        settings = {
            "k": 3,
            "dco_lambda": 7.0,
            "gamma_1": 0.01,
            "gamma_2": 0.2,
            "push_epochs": 4,
            "averaged_points": 5,
            "theta": 0.6,
            "gradients_per_update": 9,
            "tau": 3,
            "rho": 11.0,
            "autoencoder_lr": 0.012,
            "directions": "trained",
            "penalty_every": 3,
            "autoencoder_updates": 13,
            "autoencoder_tolerance": 0.14,
            "trajectory_lr": 0.15,
            "penalty_step": "gradient",
            "max_penalty_grad_norm": 16.0,
            "move_unused": True,
            "couple_layers": False,
            "gradient_source": "logits",
            "parameter_filter": lambda name, parameter: True,
        }
        model, other = small_mlp(), SupervisedPlugin()
        strategy = DCO(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            plugins=[other],
            **settings,
        )
        assert strategy.plugins[1] is other
        assert {name: getattr(strategy.plugins[0], name) for name in settings} == settings

    def test_every_setting_of_the_core_is_handed_on(self, monkeypatch):
        fitted, penalised, sampled = [], [], []
        fit, call, stream_of = (
            direction_learning.fit_directions,
            ImplicitStep.__call__,
            push.BatchStream,
        )

        def spy_fit(directions, sample, **settings):
            fitted.append(settings | {"k": directions.k, "m": sample.__self__._m})
            return fit(directions, sample, **settings)

        def spy_call(self, x, max_grad_norm):
            penalised.append((self.strength, max_grad_norm))
            return call(self, x, max_grad_norm)

        def spy_stream(dataset, batch_size, num_workers):
            sampled.append((batch_size, num_workers))
            return stream_of(dataset, batch_size, 0)

        monkeypatch.setattr(direction_learning, "fit_directions", spy_fit)
        monkeypatch.setattr(ImplicitStep, "__call__", spy_call)
        monkeypatch.setattr(push, "BatchStream", spy_stream)
        plugin = DCOPlugin(
            **QUICK,
            autoencoder_lr=0.03,
            rho=7.0,
            autoencoder_tolerance=0.9,
            dco_lambda=3.0,
            max_penalty_grad_norm=0.5,
        )
        strategy = naive(small_mlp(), [plugin])
        for experience in blobs().train_stream:
            strategy.train(experience, num_workers=0)
        plugin.after_training_exp(strategy_after(strategy, blobs(1)), num_workers=3)
        assert {(s["k"], s["updates"], s["m"]) for s in fitted} == {(8, 5, 4)}
        assert {(s["lr"], s["rho"], s["tolerance"]) for s in fitted} == {(0.03, 7.0, 0.9)}
        assert set(penalised) == {(3.0, 0.5)}
        assert sampled == [(16, 0), (16, 0), (16, 3)]

    def test_strategy_takes_keywords_only_and_knows_their_names(self):
        model = small_mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(TypeError, match="kk"):
            DCO(model=model, optimizer=optimizer, kk=3)


def strategy_after(strategy, benchmark):
    """The strategy as it is when an experience has just been trained."""
    strategy.experience = benchmark.train_stream[0]
    strategy.adapted_dataset = strategy.experience.dataset
    strategy.make_train_dataloader()
    return strategy


class TestStepOne:
    def test_pull_follows_every_update(self):
        model = small_mlp()
        before = weights_of(model)
        train(model, blobs(1), [DCOPlugin(**(QUICK | OFF), gamma_1=1.0, pull_first=True)])
        assert torch.equal(weights_of(model), before)

    def test_pull_acts_from_the_second_experience_on(self):
        """Towards x_1*, where the second starts; the first is not tied to its random start."""
        first, second = blobs(2).train_stream
        torch.manual_seed(0)
        model = small_mlp()
        strategy = naive(model, [DCOPlugin(**(QUICK | OFF), gamma_1=1.0)])
        before = weights_of(model)
        strategy.train(first)
        after_first = weights_of(model)
        assert not torch.equal(after_first, before)
        strategy.train(second)
        assert torch.equal(weights_of(model), after_first)

    def test_pull_keeps_the_weights_nearer(self):
        def distance(gamma_1):
            torch.manual_seed(0)
            model = small_mlp()
            before = weights_of(model)
            train(model, blobs(1), [DCOPlugin(**(QUICK | OFF), gamma_1=gamma_1, pull_first=True)])
            return (weights_of(model) - before).norm()

        assert distance(0.3) < 0.9 * distance(0.0)

    def test_one_pull_is_x_minus_gamma_1_times_the_way_from_x_0(self):
        model = small_mlp()
        plugin = DCOPlugin(gamma_1=0.25, pull_first=True)
        strategy = naive(model)
        x_0 = weights_of(model)
        plugin.before_training_exp(strategy)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1.0)
        moved = weights_of(model)
        plugin.after_update(strategy)
        torch.testing.assert_close(weights_of(model), moved - 0.25 * (moved - x_0))


class Spy(DCOPlugin):
    """Records the path of the weights in steps 2 and 3."""

    def _push_into_cone(self, strategy, stream, length):
        self.path, self.length = [], length
        step = strategy.optimizer.step

        def recorded(closure):
            step(closure)
            self.path.append(weights_of(strategy.model))

        strategy.optimizer.step = recorded
        x_star = super()._push_into_cone(strategy, stream, length)
        del strategy.optimizer.step
        self.x_star = torch.cat([t.reshape(-1) for t in x_star.values()])
        return x_star

    def _learn_directions(self, strategy, stream, x_star):
        self.start_of_step_3 = weights_of(strategy.model)
        directions = super()._learn_directions(strategy, stream, x_star)
        self.end_of_step_3 = weights_of(strategy.model)
        return directions


class TestStepsTwoAndThree:
    def test_push_is_that_of_the_optimizers_trajectory(self):
        model = small_mlp()
        spy = Spy(**(QUICK | {"push_epochs": 3, "averaged_points": 4}), theta=0.7)
        train(model, blobs(1), [spy])
        assert spy.length == len(spy.path) == 3 * 3  # 48 samples in batches of 16
        x_1, x_2 = torch.stack(spy.path[:4]).mean(0), torch.stack(spy.path[-4:]).mean(0)
        (expected,) = cone.push([x_1], [x_2], 0.7)
        torch.testing.assert_close(spy.x_star, expected)
        torch.testing.assert_close(spy.start_of_step_3, spy.path[-1])

    def test_model_ends_at_x_star(self):
        model = small_mlp()
        spy = Spy(**QUICK)
        train(model, blobs(1), [spy])
        assert torch.equal(weights_of(model), spy.x_star)
        assert not torch.equal(spy.end_of_step_3, spy.x_star)

    def test_without_push_x_star_is_where_training_ended(self):
        model = small_mlp()
        spy = Spy(**(QUICK | {"push_epochs": 0}))
        train(model, blobs(1), [spy])
        assert torch.equal(spy.x_star, weights_of(model))
        assert spy.path == []

    def test_momentum_does_not_carry_into_step_two(self):
        class FreshOptimizer(Spy):
            def _push_into_cone(self, strategy, stream, length):
                self.state_at_start = dict(strategy.optimizer.state)
                return super()._push_into_cone(strategy, stream, length)

        spy = FreshOptimizer(**QUICK)
        strategy = train(small_mlp(), blobs(1), [spy])
        assert spy.state_at_start == {}
        assert len(strategy.optimizer.state) == 4

    def test_sampled_trajectory_is_plain_sgd_pulled_back(self):
        """Two rounds of step 3 by hand, on one batch that is the whole data set."""
        torch.manual_seed(0)
        model = small_mlp().double()
        x, y = torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 3
        strategy = naive(model)
        strategy.experience = stream([x], [y]).train_stream[0]
        parameters = dict(model.named_parameters())
        x_star = {name: p.detach() + 0.5 for name, p in parameters.items()}
        by_hand = [p.detach().clone().requires_grad_() for p in parameters.values()]

        def gradients_by_hand():
            out = torch.func.functional_call(model, dict(zip(parameters, by_hand, strict=True)), x)
            return torch.autograd.grad(nn.functional.cross_entropy(out, y), by_hand)

        batches = itertools.repeat([x, y, torch.zeros(8, dtype=torch.long)])
        sampler = TrajectorySampler(
            strategy, batches, parameters, 5, x_star=x_star, tau=2, lr=0.1, gamma_2=0.3
        )
        for _ in range(2):
            sampled = []
            sampler.sample(sampled.append)
            assert len(sampled) == 5
            for j, got in enumerate(sampled, 1):
                expected = gradients_by_hand()
                for a, b in zip(got.values(), expected, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
                if j % 2 == 1:
                    held = expected
                else:
                    for p, a, b in zip(by_hand, held, expected, strict=True):
                        p.data -= 0.1 * (a + b)
            for p, star in zip(by_hand, x_star.values(), strict=True):
                p.data -= 0.3 * (p.data - star)  # the fifth gradient has no partner: dropped
            for p, moved in zip(by_hand, parameters.values(), strict=True):
                torch.testing.assert_close(p, moved, rtol=1e-10, atol=1e-10)

    def test_logit_gradients_sample_the_gauss_newton_matrix(self):
        torch.manual_seed(0)
        model = nn.Linear(2, 2, bias=False).double()
        x, y = torch.randn(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
        strategy = naive(model)
        strategy.experience = stream([x], [y]).train_stream[0]
        parameters = dict(model.named_parameters())
        x_star = {name: p.detach() + 1.0 for name, p in parameters.items()}
        n = 4000
        sampler = LogitSampler(strategy, itertools.repeat([x, y, y]), parameters, n, x_star=x_star)
        sampled = []
        sampler.sample(sampled.append)
        G = torch.stack([gradient["weight"].reshape(-1) for gradient in sampled])
        J = torch.autograd.functional.jacobian(lambda w: x @ w.T, parameters["weight"].detach())
        J = J.reshape(6, 4)
        torch.testing.assert_close(G.T @ G / n, J.T @ J, rtol=0.15, atol=0.3)
        torch.testing.assert_close(model.weight.detach(), x_star["weight"])

    def test_autoencoder_error_is_reported_and_falls(self):
        plugin = DCOPlugin(**(QUICK | {"k": 32, "autoencoder_updates": 60}))
        strategy = train(small_mlp(), blobs(1), [plugin])
        name = "DCO_AutoencoderError/train_phase/train_stream/Task000/Exp000"
        updates, errors = strategy.evaluator.get_all_metrics()[name]
        assert updates == list(range(60))
        assert sum(errors[-5:]) < 0.8 * sum(errors[:5])

    def test_tolerance_stops_the_autoencoder_early(self):
        settings = QUICK | {"autoencoder_updates": 300}
        strategy = train(small_mlp(), blobs(1), [DCOPlugin(**settings, autoencoder_tolerance=0.5)])
        (_, errors) = next(
            curve
            for name, curve in strategy.evaluator.get_all_metrics().items()
            if "AutoencoderError" in name
        )
        assert 40 <= len(errors) < 300


class TestMemory:
    def test_grows_by_k_directions_per_experience(self):
        plugin = DCOPlugin(**QUICK, couple_layers=True)
        assert plugin.memory_bytes == 0
        strategy = naive(small_mlp(), [plugin])
        # k (rows + cols) for two matrices and two biases, a target and a weight per direction
        per_task = 4 * 8 * ((8 + 6) + (8 + 1) + (3 + 8) + (3 + 1) + 2)
        for number, experience in enumerate(blobs(3).train_stream, start=1):
            strategy.train(experience)
            assert plugin.memory_bytes == number * per_task

    def test_no_copy_of_past_weights_is_kept(self):
        plugin = DCOPlugin(**QUICK, gamma_1=0.01)
        train(small_mlp(), blobs(1), [plugin])
        assert plugin._x_0 == {}


class Recorder(BaseLogger):
    def __init__(self):
        super().__init__()
        self.seen: list[MetricValue] = []

    def log_metrics(self, metric_values):
        self.seen += metric_values


class TestReporting:
    def test_values_reach_the_loggers(self):
        recorder = Recorder()
        train(
            small_mlp(),
            blobs(),
            [DCOPlugin(**QUICK)],
            evaluator=EvaluationPlugin(loggers=[recorder]),
        )
        names = [value.name.split("/")[0] for value in recorder.seen]
        assert names.count("DCO_Penalty") == 2
        assert names.count("DCO_AutoencoderError") == 2 * QUICK["autoencoder_updates"]
        assert all(type(value.value) is float for value in recorder.seen)

    def test_progress_is_shown_to_interactive_users_only(self, capsys):
        train(small_mlp(), blobs(1), [DCOPlugin(**QUICK)])
        quiet = capsys.readouterr()
        assert "DCO" not in quiet.err
        train(
            small_mlp(),
            blobs(1),
            [DCOPlugin(**QUICK)],
            evaluator=EvaluationPlugin(loggers=[InteractiveLogger()]),
        )
        shown = capsys.readouterr()
        assert "DCO: push into the cone" in shown.err
        assert "DCO: learn directions" in shown.err


class TestErrors:
    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("k", 0),
            ("k", 2.5),
            ("k", True),
            ("dco_lambda", -1.0),
            ("dco_lambda", float("nan")),
            ("dco_lambda", "strong"),
            ("gamma_1", -0.1),
            ("gamma_1", 1.5),
            ("gamma_2", 2),
            ("push_epochs", -1),
            ("averaged_points", 0),
            ("theta", -0.2),
            ("gradients_per_update", 0),
            ("tau", 0),
            ("tau", 129),
            ("rho", 0),
            ("autoencoder_lr", 0.0),
            ("autoencoder_updates", -5),
            ("autoencoder_tolerance", -0.1),
            ("trajectory_lr", float("inf")),
            ("max_penalty_grad_norm", 0.0),
            ("couple_layers", None),
            ("gradient_source", "fisher"),
            ("parameter_filter", "head"),
        ],
    )
    def test_argument_out_of_range_is_refused_at_once(self, argument, value):
        with pytest.raises(SettingError, match=rf"^{argument}=.* must be "):
            DCOPlugin(**{argument: value})

    def test_model_without_trainable_parameters(self):
        model = small_mlp().requires_grad_(False)
        with pytest.raises(ModelError, match=r"no trainable parameters.*Unfreeze"):
            naive(model, [DCOPlugin(**QUICK)]).train(blobs(1).train_stream[0])

    def test_filter_that_leaves_nothing(self):
        plugin = DCOPlugin(**QUICK, parameter_filter=lambda name, parameter: False)
        with pytest.raises(ModelError, match=r"accepts none.*0\.weight"):
            naive(small_mlp(), [plugin]).train(blobs(1).train_stream[0])

    def test_broken_weights_are_told_after_the_epoch_they_broke_in(self):
        x = torch.randn(32, 6)
        x[5, 2] = float("nan")
        strategy = naive(small_mlp(), [DCOPlugin(**QUICK)], train_epochs=50)
        _, second = stream([torch.randn(32, 6), x], [torch.arange(32) % 3] * 2).train_stream
        with pytest.raises(GradientError, match=r"^Experience 1: In training, .*'0\.weight'"):
            strategy.train(second)
        assert strategy.clock.train_exp_epochs == 0

    @pytest.mark.parametrize("broken_from", ["push", "directions"])
    def test_gradients_that_are_not_numbers(self, broken_from):
        """The message names experience and parameter; the weights are those of step 1."""

        class Breaks(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3)
                self.factor = 1.0

            def forward(self, x):
                return self.head(self.body(x) * self.factor)

        model = Breaks()
        at_end = {}

        class Saboteur(DCOPlugin):
            def after_training_exp(self, strategy, **kwargs):
                at_end["weights"] = weights_of(model)
                if broken_from == "push":
                    model.factor = float("nan")
                super().after_training_exp(strategy, **kwargs)

            def _learn_directions(self, *args):
                model.factor = float("inf")
                return super()._learn_directions(*args)

        strategy = naive(model, [Saboteur(**QUICK)])
        with pytest.raises(GradientError, match=r"^Experience 0: .*'(head|body)\.weight'"):
            strategy.train(blobs(1).train_stream[0])
        assert torch.equal(weights_of(model).isnan(), at_end["weights"].isnan())
        assert torch.equal(weights_of(model).nan_to_num(), at_end["weights"].nan_to_num())

    def test_a_trajectory_that_diverges_names_the_learning_rate_and_one_that_does_not(self):
        """The criterion sums over samples, so that its gradients are large."""

        def learn(**settings):
            torch.manual_seed(0)
            strategy = naive(
                small_mlp(),
                [DCOPlugin(**(QUICK | {"gradients_per_update": 16}), **settings)],
                optimizer=lambda p: torch.optim.Adam(p, lr=1e-3),
            )
            strategy._criterion = lambda outputs, y: (
                1e4 * (outputs.square() - y[:, None]).square().sum()
            )
            strategy.train(blobs(1).train_stream[0])
            return strategy.plugins[0]

        with pytest.raises(GradientError, match=r"with trajectory_lr=0\.001, .* Use traj") as told:
            learn()
        smaller = float(re.search(r"Use trajectory_lr=(\S+),", str(told.value))[1])
        assert 0 < smaller < 1e-4
        assert learn(trajectory_lr=smaller).memory_bytes > 0

    def test_interrupted_push_leaves_the_weights_of_training(self):
        model = small_mlp()
        at_end = {}

        class Interrupted(DCOPlugin):
            def after_training_exp(self, strategy, **kwargs):
                at_end["weights"] = weights_of(model)
                super().after_training_exp(strategy, **kwargs)

            def _learn_directions(self, *args):
                raise KeyboardInterrupt

        plugin = Interrupted(**QUICK)
        with pytest.raises(KeyboardInterrupt):
            naive(model, [plugin]).train(blobs(1).train_stream[0])
        assert torch.equal(weights_of(model), at_end["weights"])
        assert plugin.memory_bytes == 0

    def test_parameter_that_shrank(self):
        model = small_mlp()
        strategy = naive(model, [DCOPlugin(**QUICK)])
        first, second = blobs().train_stream
        strategy.train(first)
        model[2] = nn.Linear(8, 2)
        with pytest.raises(ModelError, match=r"'2\.weight' had shape \(3, 8\).*now has \(2, 8\)"):
            strategy.train(second)

    def test_vanished_gradients_are_told_and_store_nothing(self):
        x = torch.zeros(32, 6)  # no bias: outputs and all gradients are exactly zero
        plugin = DCOPlugin(**QUICK)
        model = nn.Linear(6, 2, bias=False)
        with pytest.warns(UserWarning, match=r"Experience 0: the gradients are zero"):
            train(model, stream([x], [torch.arange(32) % 2]), [plugin])
        assert plugin.memory_bytes == 0

    def test_learning_rate_of_nothing_is_told_and_leaves_the_weights(self):
        torch.manual_seed(0)
        model = small_mlp()
        before = weights_of(model)
        with pytest.warns(UserWarning, match=r"do not move in step 2.*LRSchedulerPlugin"):
            train(
                model,
                blobs(1),
                [DCOPlugin(**QUICK, theta=2.0)],
                optimizer=lambda p: torch.optim.SGD(p, lr=1e-12),
            )
        torch.testing.assert_close(weights_of(model), before)

    def test_plugin_of_another_run_warns(self):
        plugin = DCOPlugin(**QUICK)
        train(small_mlp(), blobs(1), [plugin])
        with pytest.warns(UserWarning, match="Make a new plugin for every run"):
            train(small_mlp(), blobs(1), [plugin])

    def test_online_stream_is_refused(self):
        online = split_online_stream(blobs(1).train_stream, experience_size=8)
        with pytest.raises(ModelError, match="online stream"):
            naive(small_mlp(), [DCOPlugin(**QUICK)]).train(next(iter(online)))

    def test_logits_of_a_model_with_several_outputs(self):
        class Several(nn.Linear):
            def forward(self, x):
                return super().forward(x), x

        def criterion(outputs, y):
            return nn.functional.cross_entropy(outputs[0], y)

        strategy = naive(Several(6, 3), [DCOPlugin(**QUICK, gradient_source="logits")])
        strategy._criterion = criterion
        with pytest.raises(ModelError, match=r"returns tuple.*directions='trained'"):
            strategy.train(blobs(1).train_stream[0])

    def test_evaluation_before_the_push_warns_once(self):
        strategy = naive(small_mlp(), [DCOPlugin(**QUICK)], eval_every=1)
        first, second = blobs().train_stream
        with pytest.warns(UserWarning, match=r"eval_every=1 .* before DCO has pushed"):
            strategy.train(first)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*eval_every.*")
            strategy.train(second)

    @pytest.mark.parametrize("eval_every", [-1, 0])
    def test_evaluation_after_the_push_does_not_warn(self, eval_every):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*eval_every.*")
            train(small_mlp(), blobs(1), [DCOPlugin(**QUICK)], eval_every=eval_every)
