"""DCO works with the models, optimizers, plugins and data people have."""

import itertools

import pytest
import torch
from avalanche.models import MultiHeadClassifier, MultiTaskModule
from avalanche.training.plugins import LRSchedulerPlugin, ReplayPlugin
from avalanche.training.supervised import Cumulative
from torch import nn

from avalanche_dco import DCOPlugin
from tests.support.learning import (
    QUICK,
    GrowingModel,
    blobs,
    naive,
    small_mlp,
    split_blobs,
    stream,
    train,
    weights_of,
)


class Scaled(nn.Module):
    """A scalar and a vector parameter beside a matrix."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.shift = nn.Parameter(torch.zeros(6))
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(self.scale * x + self.shift)


class Tied(nn.Module):
    """One matrix under two names."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.b.weight = self.a.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.b(self.a(x).relu()).relu())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.lstm(x.reshape(len(x), 3, 2))[0][:, -1])


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.embedding((x.abs() * 2).long().clamp(max=6)).mean(1))


def conv(layer, size):
    """A model around one convolution; the head's size is found by a forward pass."""
    body = nn.Sequential(layer, nn.ReLU(), nn.Flatten())
    features = body(torch.zeros(2, *size)).shape[1]
    return nn.Sequential(*body, nn.Linear(features, 3)), size


MODELS = {
    "biases": lambda: (small_mlp(), (6,)),
    "batch norm": lambda: (nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), small_mlp(8)), (6,)),
    "layer norm": lambda: (nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), small_mlp(8)), (6,)),
    "conv1d": lambda: conv(nn.Conv1d(2, 4, 3), (2, 5)),
    "conv2d": lambda: conv(nn.Conv2d(2, 4, 3), (2, 4, 4)),
    "conv3d": lambda: conv(nn.Conv3d(1, 3, 2), (1, 3, 3, 3)),
    "grouped": lambda: conv(nn.Conv2d(4, 4, 3, groups=2), (4, 4, 4)),
    "transposed": lambda: conv(nn.ConvTranspose2d(2, 3, 2), (2, 3, 3)),
    "embedding": lambda: (Embedded(), (6,)),
    "lstm": lambda: (Recurrent(), (6,)),
    "scalar": lambda: (Scaled(), (6,)),
    "tied": lambda: (Tied(), (6,)),
    "dropout": lambda: (nn.Sequential(nn.Dropout(0.5), small_mlp()), (6,)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_any_layer_is_constrained(kind):
    """All of the model's parameters take part, and the penalty acts on each of them."""
    model, shape = MODELS[kind]()
    plugin = DCOPlugin(**QUICK)
    strategy = train(model, blobs(shape=shape), [plugin])
    parameters = dict(model.named_parameters())
    assert plugin.penalty.directions.factors.keys() == parameters.keys()
    assert plugin.penalty.directions.k == 2 * QUICK["k"]

    model.zero_grad()
    with torch.no_grad():
        for p in parameters.values():
            p.add_(0.1)
    value = plugin.penalty(parameters, 1.0)
    value.backward()
    assert value > 0
    assert all(p.grad.abs().sum() > 0 for p in parameters.values())
    assert strategy.eval(blobs(shape=shape).test_stream) is not None


def test_sparse_gradients_and_lazy_layers():
    class Words(Embedded):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 4, sparse=True)
            self.head = nn.LazyLinear(3)

    plugin = DCOPlugin(**QUICK)
    model = Words()
    train(model, blobs(), [plugin], optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert plugin.penalty.directions.factors.keys() == dict(model.named_parameters()).keys()


def test_batch_norm_statistics_are_those_of_training():
    """Steps 2 and 3 forward thousands of batches; the running statistics do not see them."""
    results = []
    for settings in (QUICK, QUICK | {"push_epochs": 0, "autoencoder_updates": 0}):
        torch.manual_seed(0)
        model, _ = MODELS["batch norm"]()
        train(model, blobs(1), [DCOPlugin(**settings)])
        results.append([b.clone() for b in model.buffers()])
    assert len(results[0]) == 3
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("couple_layers", [True, False])
def test_frozen_parameter_does_not_move_and_takes_part_once_unfrozen(couple_layers):
    model = small_mlp()
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    plugin = DCOPlugin(**QUICK, couple_layers=couple_layers)
    strategy = naive(model, [plugin])
    first, second, third = blobs(3).train_stream

    strategy.train(first)
    assert plugin.penalty.directions.factors.keys() == {"2.weight", "2.bias"}
    assert torch.equal(model[0].weight, frozen)

    model[0].requires_grad_(True)
    strategy.train(second)
    factors = plugin.penalty.directions.factors
    assert factors.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert factors["0.weight"].start == QUICK["k"]
    assert not torch.equal(model[0].weight, frozen)

    # Frozen again: its directions still count, but it does not move.
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    strategy.train(third)
    assert torch.equal(model[0].weight, frozen)


@pytest.mark.parametrize("couple_layers", [True, False])
def test_incremental_classifier_grows(couple_layers):
    model, plugin = GrowingModel(), DCOPlugin(**QUICK, couple_layers=couple_layers)
    benchmark = split_blobs(3)
    strategy = naive(model, [plugin])
    for number, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        strategy.eval(benchmark.test_stream[: number + 1])
        head = plugin.penalty.directions.factors["head.classifier.weight"]
        assert head.shape == (2 * (number + 1), 5)
        assert head.U.shape[1] == QUICK["k"] * (number + 1)
    # The first task knew two classes: its directions have no part in the others.
    assert torch.count_nonzero(head.U[2:, : QUICK["k"]]) == 0
    assert torch.count_nonzero(head.U[:2, : QUICK["k"]]) > 0


class MultiHead(MultiTaskModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.head = MultiHeadClassifier(5)

    def forward_single_task(self, x, task_label):
        return self.head(self.body(x).relu(), task_label)


@pytest.mark.parametrize("couple_layers", [True, False])
def test_multi_head_classifier_grows_and_each_head_has_its_own_tasks_directions(couple_layers):
    inputs = [torch.randn(32, 6) for _ in range(3)]
    benchmark = stream(inputs, [torch.arange(32) % 2] * 3, tasks=[0, 1, 2])
    model, plugin = MultiHead(), DCOPlugin(**QUICK, couple_layers=couple_layers)
    strategy = naive(model, [plugin])
    for experience in benchmark.train_stream:
        strategy.train(experience)
    strategy.eval(benchmark.test_stream)
    k = QUICK["k"]
    for task in range(3):
        head = plugin.penalty.directions.factors[f"head.classifiers.{task}.classifier.weight"]
        assert head.columns == slice(task * k, (task + 1) * k)
    assert plugin.penalty.directions.factors["body.weight"].columns == slice(0, 3 * k)


def test_parameter_without_gradient_in_some_batches():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.side = nn.Linear(6, 3), nn.Linear(6, 3)
            self.never = nn.Linear(6, 3)
            self.calls = itertools.count()

        def forward(self, x):
            out = self.main(x)
            return out + self.side(x) if next(self.calls) % 3 == 0 else out

    plugin = DCOPlugin(**QUICK)
    train(Sometimes(), blobs(), [plugin])
    assert plugin.penalty.directions.factors.keys() == {
        "main.weight",
        "main.bias",
        "side.weight",
        "side.bias",
    }


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.005),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_any_optimizer(kind):
    plugin = DCOPlugin(**QUICK)
    model = small_mlp()
    train(model, blobs(), [plugin], optimizer=OPTIMIZERS[kind])
    assert plugin.penalty.directions.k == 2 * QUICK["k"]
    assert torch.isfinite(weights_of(model)).all()


def test_parameter_groups_keep_their_learning_rates():
    model = small_mlp()
    fixed = model[0].weight.clone()
    optimizer = torch.optim.SGD(
        [
            {"params": model[0].parameters(), "lr": 0.0},
            {"params": model[2].parameters()},
        ],
        lr=0.1,
    )
    train(model, blobs(1), [DCOPlugin(**QUICK)], optimizer=lambda p: optimizer)
    torch.testing.assert_close(model[0].weight, fixed)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.1]


def test_learning_rate_scheduler_beside_it():
    model = small_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    schedule = LRSchedulerPlugin(scheduler, reset_scheduler=False, reset_lr=False)
    train(model, blobs(), [DCOPlugin(**QUICK), schedule], optimizer=lambda p: optimizer)
    # Two epochs for each of two experiences: the epochs of step 2 do not count.
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**4
    assert scheduler.last_epoch == 4


def test_the_cumulative_strategy_gives_the_directions_of_all_its_data():
    sizes = []

    class Watching(DCOPlugin):
        def _push_into_cone(self, strategy, stream, length):
            sizes.append(length)
            return super()._push_into_cone(strategy, stream, length)

    model = small_mlp()
    strategy = Cumulative(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=16,
        plugins=[Watching(**QUICK)],
        evaluator=None,
    )
    for experience in blobs(2).train_stream:
        strategy.train(experience)
    assert sizes == [3, 6]


def test_replay_beside_it_and_only_the_tasks_own_data_give_its_directions():
    seen = {2: [], 3: []}

    def watched(step, batches):
        for batch in batches:
            seen[step].append(batch[0].mean().item())
            yield batch

    class Watching(DCOPlugin):
        def _push_into_cone(self, strategy, batches, length):
            return super()._push_into_cone(strategy, watched(2, batches), length)

        def _learn_directions(self, strategy, batches, x_star):
            return super()._learn_directions(strategy, watched(3, batches), x_star)

    y = torch.arange(32) % 2
    benchmark = stream([torch.full((32, 6), -5.0), torch.full((32, 6), 5.0)], [y, y])
    plugins = [ReplayPlugin(mem_size=16), Watching(**QUICK)]
    strategy = train(small_mlp(classes=2), benchmark, plugins)
    assert seen[2] == [-5.0] * 2 + [0.0] * 2  # half of every batch is replayed
    drawn = QUICK["gradients_per_update"] * QUICK["autoencoder_updates"]
    assert seen[3] == [-5.0] * drawn + [5.0] * drawn
    assert len(strategy.plugins[0].storage_policy.buffer) == 16


def test_one_epoch_is_enough():
    plugin = DCOPlugin(**QUICK)
    train(small_mlp(), blobs(), [plugin], train_epochs=1)
    assert plugin.memory_bytes > 0


@pytest.mark.parametrize("samples", [17, 5, 1])
def test_last_batch_of_one_sample_and_experiences_smaller_than_a_batch(samples):
    """With BatchNorm, which cannot train on one sample: every batch of steps 2 and 3 is full."""
    norm = nn.Identity() if samples == 1 else nn.BatchNorm1d(6)
    plugin = DCOPlugin(**QUICK)
    model = nn.Sequential(norm, small_mlp())

    class DropsLast(type(naive(small_mlp()))):
        def make_train_dataloader(self, **kwargs):
            super().make_train_dataloader(**(kwargs | {"drop_last": samples > 16}))

    torch.manual_seed(0)
    strategy = DropsLast(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_mb_size=16,
        plugins=[plugin],
        evaluator=None,
    )
    strategy.train(blobs(1, samples=samples, classes=min(3, samples)).train_stream[0])
    assert plugin.memory_bytes > 0


def test_a_last_batch_of_one_sample_in_training_itself():
    plugin = DCOPlugin(**QUICK)
    train(small_mlp(), blobs(2, samples=33), [plugin])
    assert plugin.penalty.directions.k == 2 * QUICK["k"]


def test_float64():
    plugin = DCOPlugin(**QUICK)
    x = [torch.randn(32, 6, dtype=torch.float64) for _ in range(2)]
    model = small_mlp().double()
    train(model, stream(x, [torch.arange(32) % 3] * 2), [plugin])
    assert plugin.penalty.targets.dtype == torch.float64
    assert weights_of(model).dtype == torch.float64


@pytest.mark.parametrize("couple_layers", [True, False])
def test_every_tensor_is_made_where_the_model_is(couple_layers):
    """As on a GPU: a tensor on the default device instead of the model's would not mix with it."""

    class ElsewhereByDefault(DCOPlugin):
        def _push_into_cone(self, *args):
            with torch.device("meta"):
                return super()._push_into_cone(*args)

        def _learn_directions(self, *args):
            with torch.device("meta"):
                return super()._learn_directions(*args)

        def _stored(self, *args):
            with torch.device("meta"):
                return super()._stored(*args)

        def before_training_exp(self, strategy, **kwargs):
            with torch.device("meta"):
                super().before_training_exp(strategy, **kwargs)

        def before_backward(self, strategy, **kwargs):
            with torch.device("meta"):
                super().before_backward(strategy, **kwargs)

        def after_backward(self, strategy, **kwargs):
            with torch.device("meta"):
                super().after_backward(strategy, **kwargs)

        def after_update(self, strategy, **kwargs):
            with torch.device("meta"):
                super().after_update(strategy, **kwargs)

    for source, step in (("criterion", "implicit"), ("logits", "gradient")):
        plugin = ElsewhereByDefault(
            **QUICK,
            gamma_1=0.1,
            couple_layers=couple_layers,
            gradient_source=source,
            penalty_step=step,
        )
        train(small_mlp(), blobs(), [plugin])
        assert plugin.penalty.targets.device.type == "cpu"


def test_filter_chooses_what_is_constrained():
    plugin = DCOPlugin(**QUICK, parameter_filter=lambda name, p: p.ndim > 1)
    model = small_mlp()
    train(model, blobs(), [plugin])
    assert plugin.penalty.directions.factors.keys() == {"0.weight", "2.weight"}


def test_more_directions_than_parameters():
    plugin = DCOPlugin(**(QUICK | {"k": 50}))
    train(nn.Linear(6, 3, bias=False), blobs(), [plugin])
    assert plugin.penalty.directions.k == 100


def test_arguments_of_train_reach_it():
    plugin = DCOPlugin(**QUICK)
    strategy = naive(small_mlp(), [plugin])
    strategy.train(blobs(1).train_stream[0], num_workers=0, anything_else=3)
    assert plugin.memory_bytes > 0
