"""The fast averages of per-sample gradients against the definition, in float64."""

from collections.abc import Callable

import pytest
import torch
from avalanche.models import (
    IncrementalClassifier,
    MultiHeadClassifier,
    MultiTaskModule,
    avalanche_forward,
)
from torch import Tensor, nn
from torch.nn import functional

from avalanche_dco.baselines.per_sample import mean_transformed_gradients
from avalanche_dco.errors import GradientError, ModelError, SettingError


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


def batches_of(size: int, tasks: int = 1) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [
        (
            torch.randn(n, size, dtype=torch.float64),
            torch.randint(2, (n,)),
            torch.randint(tasks, (n,)),
        )
        for n in (7, 4)
    ]


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
    fast = mean_transformed_gradients(model, batches, loss, transform)
    slow = one_by_one(model, batches, loss, transform)
    assert list(fast) == [name for name, _ in model.named_parameters()]
    assert any(value.abs().max() > 1e-3 for value in slow.values())
    for key in slow:
        torch.testing.assert_close(fast[key], slow[key], rtol=1e-9, atol=1e-12)


def test_heads_of_different_widths_and_a_batch_of_several_tasks() -> None:
    model = MultiHead()  # float32: Avalanche's multi-task forward makes float32 outputs
    model(torch.randn(20, 6), torch.zeros(20, dtype=torch.long))
    model.eval()
    batches = [(x.float(), y, t) for x, y, t in batches_of(6, tasks=2)]
    loss = nn.CrossEntropyLoss()
    fast = mean_transformed_gradients(model, batches, loss, torch.square)
    slow = one_by_one(model, batches, loss, torch.square)
    for key in slow:
        assert slow[key].max() > 0
        torch.testing.assert_close(fast[key], slow[key], rtol=1e-4, atol=1e-7)


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
    monkeypatch.setattr("avalanche_dco.baselines.closed_form.CHUNK_ELEMENTS", 100)
    monkeypatch.setattr("avalanche_dco.baselines.per_sample.CHUNK_ELEMENTS", 20)
    parts = mean_transformed_gradients(model, batches, nn.CrossEntropyLoss(), torch.square)
    for key in whole:
        torch.testing.assert_close(parts[key], whole[key])


class BranchesOnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.scale if x.sum() > 0 else x - self.scale)


def test_a_model_that_cannot_be_vectorised_is_named_with_what_to_do() -> None:
    model = BranchesOnValues().double()
    with pytest.raises(ModelError, match=r"'scale'.*requires_grad_\(False\)"):
        mean_transformed_gradients(model, batches_of(6), nn.CrossEntropyLoss(), torch.square)
    model.scale.requires_grad_(False)
    fisher = mean_transformed_gradients(model, batches_of(6), nn.CrossEntropyLoss(), torch.square)
    assert not fisher["scale"].any()
    assert fisher["head.weight"].any()


def test_a_criterion_that_cannot_be_vectorised_is_named() -> None:
    def branching(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum() if outputs.sum() > 0 else outputs.square().sum()

    model = nn.Linear(6, 3).double()
    with pytest.raises(SettingError, match="criterion"):
        mean_transformed_gradients(model, batches_of(6), branching, torch.square)


class Centred(nn.Module):
    """Subtracts the batch's mean: vmap has nothing against it, but a sample alone is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x - x.mean(0)) * self.scale)


@pytest.mark.parametrize(
    "model",
    [Centred(), nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))],
    ids=["centred", "batch statistics"],
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
