"""Unittests of Direction-Constrained Optimization, for Avalanche."""

import copy
import unittest
from typing import Any

import torch
from avalanche.training.directions.kronecker import DampedStep, KroneckerFactors
from avalanche.training.directions.learning import Directions, fit_directions
from avalanche.training.directions.penalty import ImplicitStep, Penalty
from avalanche.training.plugins import DCOCompPlugin, DCOKronPlugin, DCOPlugin
from avalanche.training.supervised import DCO, DCOComp, DCOKron, Naive
from torch import nn

from benchmarks.upstream.templates.small import (
    MultiHeadMLP,
    make_experiences,
    make_mlp,
    train,
    weights_of,
)

QUICK: dict = {
    "k": 8,
    "directions": "trained",
    "push_epochs": 1,
    "averaged_points": 2,
    "gradients_per_update": 4,
    "autoencoder_updates": 5,
}


def make_plugins() -> list:
    """One of each, with little work to do."""
    return [
        DCOPlugin(8),
        DCOPlugin(**QUICK),
        DCOCompPlugin(8),
        DCOCompPlugin(**QUICK),
        DCOKronPlugin(samples=48),
    ]


def forgotten(experience: Any, before: nn.Module, after: nn.Module) -> float:
    """How far the outputs on an experience have moved."""
    x = torch.stack([sample[0] for sample in experience.dataset])
    with torch.no_grad():
        return float((before(x) - after(x)).square().mean())


class DCOPluginsTest(unittest.TestCase):
    """The plugins on streams of small tasks."""

    def test_outputs_on_old_experiences_move_less_than_with_naive(self) -> None:
        first, second = make_experiences(2)
        moved = []
        for plugins in ([], [DCOPlugin(40)], [DCOCompPlugin(40)], [DCOKronPlugin()]):
            strategy = train(make_mlp(), [first], *plugins)
            before = copy.deepcopy(strategy.model)
            strategy.train(second)
            moved.append(forgotten(first, before, strategy.model))
        self.assertLess(moved[1], 0.3 * moved[0])
        self.assertLess(moved[2], 0.3 * moved[0])
        self.assertLess(moved[3], 0.1 * moved[0])

    def test_with_nothing_to_do_it_is_naive(self) -> None:
        experiences = make_experiences(2)
        naive = weights_of(train(make_mlp(), experiences))
        idle = DCOPlugin(push_epochs=0, autoencoder_updates=0)
        self.assertTrue(torch.equal(weights_of(train(make_mlp(), experiences, idle)), naive))

    def test_the_strategy_is_left_as_it_was(self) -> None:
        (experience,) = make_experiences(1)
        for plugin in make_plugins():
            strategy = train(make_mlp(0.5), [experience], plugin)
            self.assertTrue(all(module.training for module in strategy.model.modules()))
            momentum = [s["momentum_buffer"] for s in strategy.optimizer.state.values()]
            self.assertEqual(len(momentum), 4)

    def test_new_heads(self) -> None:
        for plugin in make_plugins():
            strategy = train(MultiHeadMLP(), make_experiences(3, split=True), plugin)
            self.assertTrue(weights_of(strategy).isfinite().all())

    def test_compressed_directions_do_not_grow(self) -> None:
        for plugin in (DCOCompPlugin(8), DCOCompPlugin(**QUICK)):
            for count in (1, 4):
                train(make_mlp(), make_experiences(count), plugin)
                self.assertLessEqual(plugin.penalty.directions.k, 8)

    def test_settings_out_of_range(self) -> None:
        for make in (
            lambda: DCOPlugin(k=0),
            lambda: DCOPlugin(penalty_step="explicit"),
            lambda: DCOCompPlugin(k=1),
            lambda: DCOKronPlugin(negligible=2.0),
        ):
            with self.assertRaises(AssertionError):
                make()


class DCOStrategiesTest(unittest.TestCase):
    """The strategies are Naive with a plugin."""

    def test_they_equal_naive_with_the_plugin(self) -> None:
        experiences = make_experiences(2)
        quick = {"samples": 48}
        for strategy_class, plugin, settings in (
            (DCO, DCOPlugin(**QUICK), QUICK),
            (DCOComp, DCOCompPlugin(**QUICK), QUICK),
            (DCOKron, DCOKronPlugin(**quick), quick),
        ):
            found = []
            for make, own in ((strategy_class, settings), (Naive, {"plugins": [plugin]})):
                model = make_mlp()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
                strategy = make(
                    model=model,
                    optimizer=optimizer,
                    criterion=nn.CrossEntropyLoss(),
                    train_mb_size=16,
                    evaluator=None,
                    **own,
                )
                torch.manual_seed(2)
                for experience in experiences:
                    strategy.train(experience)
                found.append(weights_of(strategy))
            self.assertTrue(torch.equal(*found))


class DCOMathematicsTest(unittest.TestCase):
    """Each fast formula against the obvious one, in double precision."""

    def setUp(self) -> None:
        torch.manual_seed(0)
        self.x = {"a": torch.randn(4, 3).double(), "b": torch.randn(5).double()}
        self.directions = Directions.random(self.x, 3)
        self.penalty = Penalty(self.directions, torch.randn(3).double())

    def dense(self) -> torch.Tensor:
        """The directions as the columns of one matrix."""
        columns = []
        for i in range(3):
            code = torch.eye(3).double()[i]
            parts = self.directions.decode(code)
            columns.append(torch.cat([parts[name].reshape(-1) for name in self.x]))
        return torch.stack(columns, dim=1)

    def flat(self, x: dict) -> torch.Tensor:
        return torch.cat([x[name].reshape(-1) for name in self.x])

    def test_codes_are_products_with_the_directions(self) -> None:
        expected = self.dense().T @ self.flat(self.x)
        torch.testing.assert_close(self.directions.encode(self.x), expected)

    def test_the_implicit_step_solves_its_equation(self) -> None:
        step, strength = 0.1, 10.0
        W, before = self.dense(), self.flat(self.x)
        x = {name: value.clone() for name, value in self.x.items()}
        ImplicitStep(self.penalty, strength, dict.fromkeys(x, step))(x)
        # after = before - step * gradient(after)
        after = self.flat(x)
        gradient = 2 * strength * W @ (W.T @ after - self.penalty.targets)
        torch.testing.assert_close(after, before - step * gradient, rtol=1e-6, atol=1e-8)

    def test_fitting_lowers_the_reconstruction_error(self) -> None:
        basis = torch.linalg.qr(torch.randn(17, 2).double())[0]

        def sample(observe: Any) -> None:
            for _ in range(8):
                flat = basis @ torch.randn(2).double()
                observe({"a": flat[:12].view(4, 3), "b": flat[12:]})

        fit = fit_directions(self.directions, sample, updates=200, lr=0.05)
        self.assertLess(fit.errors[-1], 0.5 * fit.errors[0])

    def test_the_damped_step_solves_its_equation(self) -> None:
        A, S = (torch.randn(1, n, n).double() for n in (4, 3))
        A, S = A @ A.mT, S @ S.mT
        change, strength = torch.randn(1, 3, 4).double(), 5.0
        # (I + lambda S (x) A) after = before
        after = change - DampedStep(KroneckerFactors(A, S), strength).correction(change)
        torch.testing.assert_close(after + strength * S @ after @ A, change)
