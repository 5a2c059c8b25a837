"""Step 2 beside other plugins: it travels on what the strategy trains on, with true gradients."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from avalanche.benchmarks.utils.data_loader import GroupBalancedInfiniteDataLoader
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import MIRPlugin
from avalanche.training.supervised import Cumulative, Naive
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

from avalanche_dco import DCOPlugin
from avalanche_dco.plugins.support import push
from avalanche_dco.plugins.support.push import shuffled_dataset
from benchmarks.streams.digits import split_digits
from benchmarks.streams.tensors import tensor_dataset
from tests.support.learning import (
    QUICK,
    blobs,
    digit_accuracy,
    naive,
    small_mlp,
    split_blobs,
    stream,
    train,
    weights_of,
)

SETTINGS = {"k": 32, "gradients_per_update": 8, "autoencoder_updates": 30, "push_epochs": 10}
SETTINGS |= {"directions": "trained", "penalty_every": 1, "couple_layers": True}


@pytest.fixture
def travelled(monkeypatch):
    """The batches of step 2."""
    batches, step = [], push._step

    def watched(strategy, batch, parameters):
        batches.append(batch)
        step(strategy, batch, parameters)

    monkeypatch.setattr(push, "_step", watched)
    return batches


def weights_after(plugins, make=naive, **arguments):
    torch.manual_seed(0)
    model = small_mlp()
    torch.manual_seed(11)
    strategy = make(model, plugins, **arguments)
    for experience in blobs().train_stream:
        strategy.train(experience)
    return weights_of(model)


class TestWhatItTravelsOn:
    def test_the_default_loader_is_replaced_by_a_faster_stream(self, travelled, monkeypatch):
        strategy = naive(small_mlp(), [DCOPlugin(**QUICK)], train_epochs=1)

        class Forbids(SupervisedPlugin):
            def after_training_exp(self, strategy, **kwargs):
                monkeypatch.setattr(type(strategy.dataloader), "__iter__", None)

        strategy.plugins.insert(0, Forbids())
        strategy.train(blobs(1).train_stream[0])
        assert [len(batch[0]) for batch in travelled] == [16] * 3

    def test_batches_that_training_balances_are_balanced(self, travelled):
        model = small_mlp(classes=4)
        strategy = Cumulative(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=16,
            plugins=[DCOPlugin(**QUICK)],
            evaluator=None,
        )
        for experience in split_blobs().train_stream:
            strategy.train(experience)
        tasks = [batch[2].tolist() for batch in travelled]
        assert tasks[:3] == [[0] * 16] * 3
        assert [sorted(task) for task in tasks[3:]] == [[0] * 8 + [1] * 8] * 6

    def test_an_endless_loader_has_epochs_of_the_length_that_training_gave_them(self, travelled):
        class Endless(SupervisedPlugin):
            def before_training_exp(self, strategy, **kwargs):
                strategy.dataloader = GroupBalancedInfiniteDataLoader(
                    [strategy.adapted_dataset] * 2, batch_size=4
                )

            def after_training_iteration(self, strategy, **kwargs):
                if strategy.clock.train_exp_iterations == 4:
                    strategy.stop_training()

        strategy = naive(small_mlp(), [Endless(), DCOPlugin(**QUICK)], train_epochs=1)
        strategy.train(blobs(1).train_stream[0])
        assert [len(batch[0]) for batch in travelled] == [8] * strategy.clock.train_exp_iterations

    @pytest.mark.parametrize("once", [True, False], ids=["iterator", "empty when read again"])
    def test_a_loader_that_cannot_be_read_again(self, once, travelled):
        class Exhausted(list):
            def __iter__(self):
                batches, self[:] = self[:], []
                return iter(batches)

        class Once(SupervisedPlugin):
            def before_training_exp(self, strategy, **kwargs):
                batches = list(strategy.dataloader)
                strategy.dataloader = iter(batches) if once else Exhausted(batches)

        with pytest.warns(UserWarning, match=r"^Experience 1: .*not pushed.*cannot be read again"):
            pushed = weights_after([Once(), DCOPlugin(**QUICK)])
        assert travelled == []
        never = weights_after([Once(), DCOPlugin(**(QUICK | {"push_epochs": 0}))])
        assert torch.equal(pushed, never)

    def test_replay_that_does_not_come_from_the_loader(self, travelled):
        with pytest.warns(UserWarning, match=r"not pushed.*MIRPlugin trains on samples"):
            weights_after([MIRPlugin(batch_size_mem=4), DCOPlugin(**QUICK)])
        assert travelled == []

    def test_generators_of_the_loader_are_left_as_they_were_found(self):
        generator, states = torch.Generator().manual_seed(5), []

        class Own(Naive):
            def make_train_dataloader(self, **kwargs):
                self.dataloader = DataLoader(
                    self.adapted_dataset, batch_size=16, shuffle=True, generator=generator
                )

        class Witness(SupervisedPlugin):
            def after_training_exp(self, strategy, **kwargs):
                states.append(generator.get_state())

        model = small_mlp()
        Own(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            train_mb_size=16,
            plugins=[Witness(), DCOPlugin(**QUICK), Witness()],
            evaluator=None,
        ).train(blobs(1).train_stream[0])
        assert torch.equal(*states)

    def test_which_loaders_only_shuffle(self):
        data = tensor_dataset(torch.randn(8, 2), torch.arange(8))
        weighted = WeightedRandomSampler(torch.ones(8), 8)
        only_shuffles = {
            DataLoader(data, batch_size=4, shuffle=True): True,
            DataLoader(data, batch_size=2, shuffle=True): False,
            DataLoader(data, batch_size=4): False,
            DataLoader(data, batch_size=4, sampler=weighted): False,
            DataLoader(data, batch_size=4, shuffle=True, collate_fn=list): False,
            itertools.repeat(1): False,
        }
        found = {loader: shuffled_dataset(loader, 4) is data for loader in only_shuffles}
        assert found == only_shuffles


class TestLengthOfNothing:
    def test_it_leaves_the_weights_where_training_ended_and_takes_no_step(self, travelled):
        stays = weights_after([DCOPlugin(**QUICK, theta=0.0)])
        assert travelled == []
        assert torch.equal(stays, weights_after([DCOPlugin(**(QUICK | {"push_epochs": 0}))]))

    def test_nothing_is_said_of_evaluation_before_the_push(self):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*eval_every.*")
            train(small_mlp(), blobs(1), [DCOPlugin(**QUICK, theta=0.0)], eval_every=1)


class Scaled(Naive):
    """Training as users of automatic mixed precision write it."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.scaler = torch.amp.GradScaler("cpu")

    def backward(self):
        self.scaler.scale(self.loss).backward()

    def optimizer_step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()


def scaled(model, plugins, *, optimizer=None, **arguments):
    plain = naive(model, optimizer=optimizer)
    return Scaled(
        model=model,
        optimizer=plain.optimizer,
        criterion=nn.CrossEntropyLoss(),
        plugins=plugins,
        evaluator=None,
        **({"train_mb_size": 16, "train_epochs": 2} | arguments),
    )


class TestOwnOptimizerStep:
    def test_a_loss_scale_changes_nothing(self):
        """The scale is a power of two, so that scaling loses no bit."""
        plain, with_scale = (weights_after([DCOPlugin(**QUICK)], make) for make in (naive, scaled))
        assert torch.equal(plain, with_scale)

    def test_accuracies_of_three_seeds_are_those_without_a_loss_scale(self):
        digits = split_digits(1)
        plain, with_scale = (
            [
                digit_accuracy(seed, [DCOPlugin(**SETTINGS, theta=2.0)], digits, make)
                for seed in range(3)
            ]
            for make in (naive, scaled)
        )
        print(f"without a scale {plain}, with one {with_scale}")
        assert with_scale == plain

    def test_the_scaler_is_left_as_training_left_it(self):
        seen = []

        class Witness(SupervisedPlugin):
            def after_training_exp(self, strategy, **kwargs):
                seen.append(strategy.scaler.state_dict())

        weights_after([Witness(), DCOPlugin(**QUICK), Witness()], scaled)
        assert seen[0] == seen[1]

    def test_an_optimizer_that_needs_a_closure(self):
        class WithClosure(Naive):
            def optimizer_step(self):
                self.optimizer.step(self.loss.detach)

        model = small_mlp()
        before = weights_of(model)
        WithClosure(
            model=model,
            optimizer=torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2),
            train_mb_size=16,
            plugins=[DCOPlugin(**QUICK)],
            evaluator=None,
        ).train(blobs(1).train_stream[0])
        assert weights_of(model).isfinite().all()
        assert not torch.equal(weights_of(model), before)


class TestNoDirection:
    """The warning names a cause only where it is one."""

    def warning(self, x=None, model=None, **arguments):
        x = torch.randn(48, 6, generator=torch.Generator().manual_seed(2)) if x is None else x
        model = model or small_mlp()
        with pytest.warns(UserWarning, match="not pushed into the cone") as told:
            train(model, stream([x], [torch.arange(len(x)) % 3]), [DCOPlugin(**QUICK)], **arguments)
        (message,) = (str(w.message) for w in told if "not pushed" in str(w.message))
        return message

    def test_a_learning_rate_next_to_nothing(self):
        message = self.warning(optimizer=lambda p: torch.optim.SGD(p, lr=1e-12))
        assert "The learning rate is 1e-12" in message
        assert "LRSchedulerPlugin" in message

    def test_weights_in_low_precision(self):
        model = small_mlp().bfloat16()
        x = torch.randn(48, 6).bfloat16()
        message = self.warning(x, model, optimizer=lambda p: torch.optim.SGD(p, lr=1e-3))
        assert "torch.bfloat16, which rounds to 0.008 of a value" in message
        assert "learning rate" not in message

    @pytest.mark.filterwarnings("ignore:.*the gradients are zero everywhere")
    def test_weights_that_blew_up(self):
        x = torch.eye(6)[torch.arange(48) % 3]  # separable: the gradient is zero in the end
        message = self.warning(x, nn.Linear(6, 3), optimizer=lambda p: torch.optim.SGD(p, lr=1e6))
        assert "have blown up" in message
        assert "lower the learning rate, 1e+06" in message

    @pytest.mark.filterwarnings("ignore:.*the gradients are zero everywhere")
    def test_gradients_of_nothing(self):
        message = self.warning(torch.zeros(48, 6), nn.Linear(6, 3, bias=False))
        assert message.endswith("no direction to push them in. The last gradient is zero.")
