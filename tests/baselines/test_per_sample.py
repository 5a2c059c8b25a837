"""The fast averages of per-sample gradients against the definition, in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from avalanche.models import (
    IncrementalClassifier,
    MultiHeadClassifier,
    MultiTaskModule,
    avalanche_forward,
)
from torch import Tensor, nn
from torch.nn import functional, utils

from avalanche_dco.baselines.per_sample import mean_transformed_gradients
from avalanche_dco.errors import GradientError, ModelError


def one_by_one(
    model: nn.Module,
    batches: list[tuple[Tensor, Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    transform: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    samples = 0
    for x, y, t in batches:
        for n in range(len(x)):
            model.zero_grad()
            loss(avalanche_forward(model, x[n : n + 1], t[n : n + 1]), y[n : n + 1]).backward()
            samples += 1
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    sums[name] += transform(parameter.grad)
    model.zero_grad()
    return {name: value / samples for name, value in sums.items()}


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.same(torch.tanh(self.same(x)))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.two(torch.tanh(self.one(x)))))


class UsedBesidesItsCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(6, 4), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        code = torch.tanh(self.encoder(x))
        return self.head(functional.linear(code, self.encoder.weight.t()))


class NeverCalledAsModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.layer.weight, self.layer.bias)


class OverPositions(nn.Module):
    """A Linear over a sequence: several positions per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(x.reshape(-1, 3, 2))).mean(1))


class MultiHead(MultiTaskModule):
    """Heads of different widths: Avalanche fills the narrower one up with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True))
        self.classifier = MultiHeadClassifier(5, initial_out_features=3, masking=False)
        self.classifier.classifiers["1"] = IncrementalClassifier(5, 2, masking=False)
        self.max_class_label = self.classifier.max_class_label = 3

    def forward(self, x: Tensor, task_labels: Tensor | int) -> Tensor:
        out = self.classifier(self.features(x.float()), task_labels)
        assert isinstance(out, Tensor)
        return out


def frozen_parts() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    return model


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 5, 5)),
        nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 2, groups=2, padding="same", padding_mode="circular"),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), 6),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)), 6),
    "convolutions": (convolutions, 50),
    "frozen": (frozen_parts, 6),
    "called twice": (CalledTwice, 6),
    "tied": (Tied, 6),
    "used besides its call": (UsedBesidesItsCall, 6),
    "never called": (NeverCalledAsModule, 6),
    "positions": (OverPositions, 6),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)), 6),
}


def warmed(model: nn.Module, size: int) -> nn.Module:
    """Running statistics that are not 0 and 1, then eval mode."""
    model(torch.randn(20, size, dtype=torch.float64) * 2 + 1)
    return model.eval()


def batches_of(
    size: int, tasks: int = 1, sizes: tuple[int, ...] = (7, 4)
) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [
        (
            torch.randn(n, size, dtype=torch.float64),
            torch.randint(2, (n,)),
            torch.randint(tasks, (n,)),
        )
        for n in sizes
    ]


def equals_the_loop(
    model: nn.Module,
    batches: list[tuple[Tensor, Tensor, Tensor]],
    loss: Callable[[Any, Tensor], Tensor],
    transform: Callable[[Tensor], Tensor],
    rtol: float = 1e-9,
    atol: float = 1e-12,
) -> None:
    fast = mean_transformed_gradients(model, batches, loss, transform)
    slow = one_by_one(model, batches, loss, transform)
    assert list(fast) == [name for name, _ in model.named_parameters()]
    assert any(value.abs().max() > 1e-3 for value in slow.values())
    for key in slow:
        torch.testing.assert_close(fast[key], slow[key], rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("transform", [torch.square, torch.abs])
@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(reduction="sum")]
)
def test_it_equals_the_loop_over_samples(
    name: str, transform: Callable[[Tensor], Tensor], loss: nn.Module
) -> None:
    make, size = MODELS[name]
    model, batches = warmed(make().double(), size), batches_of(size)
    equals_the_loop(model, batches, loss, transform)


def test_heads_of_different_widths_and_a_batch_of_several_tasks() -> None:
    model = MultiHead()  # float32: Avalanche's multi-task forward makes float32 outputs
    model(torch.randn(20, 6), torch.zeros(20, dtype=torch.long))
    model.eval()
    batches = [(x.float(), y, t) for x, y, t in batches_of(6, tasks=2)]
    loss = nn.CrossEntropyLoss()
    equals_the_loop(model, batches, loss, torch.square, rtol=1e-4, atol=1e-7)
    assert all(value.max() > 0 for value in one_by_one(model, batches, loss, torch.square).values())


def test_nothing_of_the_model_changes() -> None:
    model = warmed(convolutions().double(), 50)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mean_transformed_gradients(model, batches_of(50), nn.CrossEntropyLoss(), torch.square)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_many_small_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = warmed(convolutions().double(), 50), batches_of(50)
    whole = mean_transformed_gradients(model, batches, nn.CrossEntropyLoss(), torch.square)
    monkeypatch.setattr("avalanche_dco.baselines.per_sample.CHUNK_ELEMENTS", 20)
    parts = mean_transformed_gradients(model, batches, nn.CrossEntropyLoss(), torch.square)
    for key in whole:
        torch.testing.assert_close(parts[key], whole[key])


class LooksAtValues(nn.Module):
    """``torch.func.vmap`` cannot follow a branch on values, even one that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not x.isfinite().all():
            raise ValueError("infinite input")
        return self.head(x * self.scale)


class Recurrent(nn.Module):
    """Steps first, as torch's recurrent layers have it by default."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent, self.head = kind(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.recurrent(x.reshape(len(x), 3, 2).transpose(0, 1))
        return self.head(steps[-1])


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.features(x))
        return self.head(features), features


def of_both(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs[0], targets) + outputs[1].square().mean()


def branching(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum() if outputs.sum() > 0 else outputs.square().sum()


WEIGHTED = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]).double(), label_smoothing=0.1)


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (LooksAtValues, nn.CrossEntropyLoss()),
        (lambda: Recurrent(nn.LSTM), nn.CrossEntropyLoss()),
        (lambda: Recurrent(nn.GRU), nn.CrossEntropyLoss()),
        (lambda: nn.Linear(6, 3), branching),
        (lambda: nn.Linear(6, 3), WEIGHTED),
        (TwoOutputs, of_both),
    ],
    ids=["values", "LSTM", "GRU", "branching loss", "weighted and smoothed", "two outputs"],
)
@pytest.mark.parametrize("transform", [torch.square, torch.abs])
@pytest.mark.filterwarnings("ignore:.*cannot be vectorised")
def test_what_cannot_be_vectorised_is_done_one_by_one(
    make: Callable[[], nn.Module],
    loss: Callable[[Any, Tensor], Tensor],
    transform: Callable[[Tensor], Tensor],
) -> None:
    equals_the_loop(make().double().eval(), batches_of(6), loss, transform)


def test_the_slow_way_is_told_with_its_reason() -> None:
    with pytest.warns(UserWarning, match="The model cannot be vectorised.*control flow.*exact"):
        mean_transformed_gradients(
            LooksAtValues().double(), batches_of(6), nn.CrossEntropyLoss(), torch.square
        )


class StepsFirst(nn.Module):
    """A Transformer with torch's default of ``batch_first=False``: six steps of four inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8)
        self.mixed, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.encoder(x.reshape(len(x), 6, 4).transpose(0, 1))
        return self.head(torch.tanh(self.mixed(steps)).mean(0))


@pytest.mark.parametrize("sizes", [(6, 6), (1, 6), (6, 1, 5)])
@pytest.mark.parametrize("transform", [torch.square, torch.abs])
def test_as_many_samples_as_steps(
    sizes: tuple[int, ...], transform: Callable[[Tensor], Tensor]
) -> None:
    model, batches = StepsFirst().double().eval(), batches_of(24, sizes=sizes)
    equals_the_loop(model, batches, nn.CrossEntropyLoss(), transform)


def test_a_first_batch_without_gradients_proves_nothing() -> None:
    model, batches = StepsFirst().double().eval(), batches_of(24, sizes=(6, 6))
    weights = [torch.zeros(6).double(), torch.ones(6).double()]
    weighted = [(x, w, t) for (x, _, t), w in zip(batches, weights, strict=True)]

    def loss(outputs: Tensor, weight: Tensor) -> Tensor:
        return (outputs.square().sum(1) * weight).sum()

    equals_the_loop(model, weighted, loss, torch.square)


class AllHeads(MultiTaskModule):
    """All heads are called whatever the task."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))
        self.max_class_label = 3

    def forward_single_task(self, x: Tensor, task_label: int) -> Tensor:
        return [head(input=x) for head in self.heads][task_label]


@pytest.mark.parametrize("sizes", [(4, 4), (7, 4)])
def test_heads_that_a_batch_does_not_use(sizes: tuple[int, ...]) -> None:
    model = AllHeads()  # float32: see above
    batches = [
        (x.float(), y, torch.full_like(t, task))
        for task, (x, y, t) in enumerate(batches_of(6, sizes=sizes))
    ]
    equals_the_loop(model, batches, nn.CrossEntropyLoss(), torch.square, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("norm", [utils.weight_norm, utils.parametrizations.weight_norm])
def test_weight_norm(norm: Any) -> None:
    model = nn.Sequential(norm(nn.Linear(6, 5)), nn.Tanh(), norm(nn.Linear(5, 3))).double()
    equals_the_loop(model, batches_of(6), nn.CrossEntropyLoss(), torch.square)
    before = [dict(vars(module)) for module in model.modules()]
    mean_transformed_gradients(model, batches_of(6), nn.CrossEntropyLoss(), torch.square)
    for module, attributes in zip(model.modules(), before, strict=True):
        assert all(vars(module)[name] is value for name, value in attributes.items())


class Coarse(nn.Module):
    """float32 outputs of weights in another precision, or of autocast."""

    def __init__(self, dtype: torch.dtype, autocast: bool) -> None:
        super().__init__()
        layers = [nn.Linear(6, 50), nn.LayerNorm(50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(50, 3))
        self.dtype, self.autocast = dtype, autocast
        if not autocast:
            self.layers.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype, enabled=self.autocast):
            return self.layers(x.float() if self.autocast else x.to(self.dtype)).float()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_rounding_is_not_taken_for_mixing(dtype: torch.dtype, autocast: bool) -> None:
    torch.manual_seed(0)
    model = Coarse(dtype, autocast)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    batches, loss = batches_of(6, sizes=(40, 40)), nn.CrossEntropyLoss()
    fast = mean_transformed_gradients(model, batches, loss, torch.abs)
    slow = one_by_one(model, batches, loss, torch.abs)
    for name, value in slow.items():
        assert (fast[name] - value).norm() < 0.05 * value.norm()


class Centred(nn.Module):
    """Subtracts the batch's mean: vmap has nothing against it, but a sample alone is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x - x.mean(0)) * self.scale)


class Scaled(nn.Module):
    """Divides by the batch's largest input; all parameters have a closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x / x.abs().max())


@pytest.mark.parametrize(
    "model",
    [
        Scaled(),
        Centred(),
        nn.Sequential(
            nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3)
        ),
    ],
    ids=["scaled", "centred", "batch statistics"],
)
def test_a_model_that_mixes_samples_is_refused(model: nn.Module) -> None:
    with pytest.raises(ModelError):
        mean_transformed_gradients(
            model.double(), batches_of(6), nn.CrossEntropyLoss(), torch.square
        )


def test_a_diverged_model_is_refused() -> None:
    model = nn.Linear(6, 3).double()
    nn.init.constant_(model.weight, float("nan"))
    with pytest.raises(GradientError, match="diverged"):
        mean_transformed_gradients(model, batches_of(6), nn.CrossEntropyLoss(), torch.square)
