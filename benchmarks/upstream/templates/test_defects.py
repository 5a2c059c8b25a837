"""Unittests of the defects of Avalanche that the patches mend: one class each.

All of them fail without the patch.
"""

import os
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from avalanche.benchmarks.utils import as_taskaware_classification_dataset
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.logging import WandBLogger
from avalanche.models import avalanche_forward
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import (
    AGEMPlugin,
    EWCPlugin,
    LwFPlugin,
    MASPlugin,
    RWalkPlugin,
    SupervisedPlugin,
    SynapticIntelligencePlugin,
)
from torch import nn

from benchmarks.upstream.templates.small import (
    CLASSES,
    MultiHeadMLP,
    make_experiences,
    make_mlp,
    make_strategy,
    train,
    weights_of,
)


def mean_over_samples(model: nn.Module, dataset: Any, loss: Any, transform: Any) -> dict:
    """The definition: the mean of a function of each sample's gradient."""
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for x, y, task in dataset:
        model.zero_grad()
        output = avalanche_forward(model, x[None], torch.tensor([task]))
        loss(output, y[None]).backward()
        for name, p in model.named_parameters():
            if p.grad is not None:
                sums[name] += transform(p.grad)
    return {name: value / len(dataset) for name, value in sums.items()}


class ModesPlugin(SupervisedPlugin):
    """Notes whether dropout is on whenever the model is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.training: set = set()

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        self.training.add(strategy.model[2].training)


class PathIntegralPlugin(SupervisedPlugin):
    """The definition: at every step the gradient of the loss alone times the step."""

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        self.integral = [torch.zeros_like(p) for p in strategy.model.parameters()]

    def before_update(self, strategy: Any, **kwargs: Any) -> None:
        self.before = [p.detach().clone() for p in strategy.model.parameters()]
        loss = strategy._criterion(strategy.model(strategy.mb_x), strategy.mb_y)
        self.gradients = torch.autograd.grad(loss, list(strategy.model.parameters()))

    @torch.no_grad()
    def after_update(self, strategy: Any, **kwargs: Any) -> None:
        for i, p in enumerate(strategy.model.parameters()):
            self.integral[i] += self.gradients[i] * (p - self.before[i])


class SynapticIntelligenceTest(unittest.TestCase):
    """Synaptic Intelligence on a CPU."""

    def test_it_has_an_effect(self) -> None:
        experiences = make_experiences(2)
        plain = weights_of(train(make_mlp(), experiences))
        plugin = SynapticIntelligencePlugin(1e3)
        self.assertFalse(torch.equal(weights_of(train(make_mlp(), experiences, plugin)), plain))

    def test_importances_are_not_negative(self) -> None:
        plugin = SynapticIntelligencePlugin(1.0)
        strategy = train(make_mlp(), make_experiences(1), plugin)
        for integral in plugin.syn_data["cum_trajectory"].values():
            integral.data = torch.ones_like(integral.data)  # steps that raised the loss
        plugin.after_training_exp(strategy)
        self.assertGreaterEqual(min(i.data.min() for i in plugin.ewc_data[1].values()), 0)

    def test_the_limit_of_the_importances_is_an_argument(self) -> None:
        plugin = SynapticIntelligencePlugin(1.0, eps=0.1, max_importance=None)
        train(make_mlp(), make_experiences(1), plugin)
        self.assertGreater(max(i.data.max() for i in plugin.ewc_data[1].values()), 0.001)

    def test_the_path_integral_is_that_of_the_loss_alone(self) -> None:
        plugin = SynapticIntelligencePlugin([10.0, 20.0], eps=0.1)
        definition = PathIntegralPlugin()
        train(make_mlp(), make_experiences(2), definition, plugin)
        trajectories = plugin.syn_data["trajectory"].values()
        for trajectory, integral in zip(trajectories, definition.integral):
            torch.testing.assert_close(trajectory.data, integral.flatten(), rtol=1e-3, atol=1e-6)

    def test_double_precision(self) -> None:
        plugin = SynapticIntelligencePlugin(1.0)
        experiences = make_experiences(2, dtype=torch.float64)
        strategy = train(make_mlp().double(), experiences, plugin)
        self.assertTrue(weights_of(strategy).isfinite().all())


class RWalkTest(unittest.TestCase):
    """RWalk's mode, new heads and short experiences."""

    def test_it_trains_in_train_mode(self) -> None:
        modes = ModesPlugin()
        train(make_mlp(0.2), make_experiences(1), RWalkPlugin(), modes)
        self.assertEqual(modes.training, {True})

    def test_new_heads_are_protected(self) -> None:
        plugin = RWalkPlugin(delta_t=2)
        train(MultiHeadMLP(), make_experiences(3, split=True), plugin)
        penalty = plugin.exp_penalties["classifier.classifiers.2.classifier.weight"]
        self.assertGreater(penalty.data.max(), 0)

    def test_an_experience_shorter_than_the_interval(self) -> None:
        strategy = train(make_mlp(), make_experiences(2), RWalkPlugin(delta_t=1000))
        self.assertTrue(weights_of(strategy).isfinite().all())


class EWCTest(unittest.TestCase):
    """EWC's importances."""

    def test_importances_are_the_mean_of_squares(self) -> None:
        (experience,) = make_experiences(1)
        for mb_size in (4, 48):
            plugin = EWCPlugin(1.0)
            strategy = make_strategy(make_mlp(), plugin, mb_size=mb_size)
            strategy.train(experience)
            expected = mean_over_samples(
                strategy.model, experience.dataset, nn.CrossEntropyLoss(), torch.square
            )
            for name, value in expected.items():
                found = plugin.importances[0][name].data
                torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-7)

    def test_modes_are_left_as_they_were(self) -> None:
        (experience,) = make_experiences(1)
        model = make_mlp(0.2)
        model[2].eval()
        EWCPlugin(1.0).compute_importances(
            model,
            nn.CrossEntropyLoss(),
            torch.optim.SGD(model.parameters(), lr=0.1),
            experience.dataset,
            "cpu",
            16,
        )
        self.assertFalse(model[2].training)


class MASTest(unittest.TestCase):
    """MAS's importances."""

    def test_importances_are_the_mean_of_magnitudes(self) -> None:
        (experience,) = make_experiences(1)
        strategy = make_strategy(make_mlp(0.5))
        strategy.experience = experience
        importance = MASPlugin()._get_importance(strategy)
        strategy.model.eval()
        expected = mean_over_samples(
            strategy.model, experience.dataset, lambda out, y: out.square().sum(), torch.abs
        )
        for name, value in expected.items():
            torch.testing.assert_close(importance[name].data, value, rtol=1e-4, atol=1e-7)

    def test_a_loss_of_zero(self) -> None:
        plugin = MASPlugin()
        strategy = train(make_mlp(), make_experiences(1), plugin)
        strategy.loss = torch.zeros(())
        plugin.before_backward(strategy)

    def test_an_interrupted_pass_changes_nothing(self) -> None:
        first, second = make_experiences(2)
        plugin = MASPlugin()
        strategy = train(make_mlp(), [first], plugin)
        kept = plugin.params
        with mock.patch.object(plugin, "_get_importance", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                strategy.train(second)
        self.assertIs(plugin.params, kept)


class LwFTest(unittest.TestCase):
    """LwF's teacher."""

    def after(self, model: nn.Module, count: int) -> Any:
        """What LwF knows after experiences whose data sets have a `task_set`."""
        lwf = LwFPlugin().lwf
        for experience in make_experiences(count, split=True):
            dataset = as_taskaware_classification_dataset(experience.dataset)
            lwf.post_adapt(SimpleNamespace(model=model), SimpleNamespace(dataset=dataset))
        return lwf

    def test_the_teacher_is_in_eval_mode(self) -> None:
        teacher = self.after(make_mlp(0.5), 1).prev_model
        self.assertFalse(any(module.training for module in teacher.modules()))

    def test_outputs_that_all_tasks_share(self) -> None:
        known = self.after(make_mlp(outputs=9), 3).prev_classes_by_task
        self.assertEqual(dict(known), {0: set(range(9))})

    def test_data_sets_without_a_task_set(self) -> None:
        plugin = LwFPlugin()
        train(MultiHeadMLP(), make_experiences(2, split=True), plugin)
        self.assertEqual(dict(plugin.lwf.prev_classes_by_task), {0: {0, 1, 2}, 1: {3, 4, 5}})


class AGEMTest(unittest.TestCase):
    """A-GEM's memory."""

    def test_batches_are_drawn_at_random(self) -> None:
        torch.manual_seed(0)
        plugin = AGEMPlugin(patterns_per_experience=40, sample_size=20)
        for experience in make_experiences(2):
            plugin.update_memory(experience.dataset)
        batches = [plugin.sample_from_memory()[0] for _ in range(8)]
        self.assertFalse(torch.equal(batches[0], batches[4]))

    def test_a_sample_that_is_too_small(self) -> None:
        plugin = AGEMPlugin(patterns_per_experience=40, sample_size=1)
        first, second = make_experiences(2)
        plugin.update_memory(first.dataset)
        with self.assertRaises(ValueError):
            plugin.update_memory(second.dataset)

    def test_weights_in_channels_last_layout(self) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Unflatten(1, (1, 2, 3)),
            nn.Conv2d(1, 4, 2),
            nn.Conv2d(4, 4, (1, 2)),
            nn.Flatten(),
            nn.Linear(4, CLASSES),
        )
        model = model.to(memory_format=torch.channels_last)
        strategy = train(model, make_experiences(2), AGEMPlugin(40, 20))
        self.assertTrue(weights_of(strategy).isfinite().all())


class CheckpointingTest(unittest.TestCase):
    """Checkpoints on current PyTorch."""

    def test_a_continued_run_equals_an_uninterrupted_one(self) -> None:
        first, second = make_experiences(2)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.ckpt")
            RNGManager.set_random_seeds(3)
            whole = make_strategy(make_mlp(0.5), EWCPlugin(1.0))
            whole.train(first)
            save_checkpoint(whole, path)
            whole.train(second)
            continued = make_strategy(make_mlp(0.5), EWCPlugin(1.0))
            continued, next_experience = maybe_load_checkpoint(continued, path)
        self.assertEqual(next_experience, 1)
        continued.train(second)
        self.assertTrue(torch.equal(weights_of(continued), weights_of(whole)))


class WandBTest(unittest.TestCase):
    """The Weights & Biases logger with a wandb that has neither `viz` nor `generate_id`."""

    def test_a_number_is_logged(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            logger = WandBLogger(dir=folder, save_code=False, params={"mode": "disabled"})
            with mock.patch.object(logger.wandb, "log") as log:
                logger.log_single_metric("Accuracy", 0.5, 3)
        log.assert_called_once_with({"Accuracy": 0.5}, step=3)


if __name__ == "__main__":
    unittest.main()
