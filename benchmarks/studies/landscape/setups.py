"""The networks, data and training of the paper's Section 3: two classes, 8 x 8 pixels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torchvision.datasets import CIFAR10, MNIST  # type: ignore[import-untyped]
from tqdm import tqdm

from avalanche_dco.errors import SettingError
from benchmarks.streams.arrays import read_npz

BATCH_SIZE = 128


@dataclass(frozen=True)
class Setup:
    """One of the paper's setups: normalised training images of classes 0 and 1, network, SGD.

    :param title: how the figures name it.
    """

    title: str
    inputs: Tensor
    targets: Tensor
    network: Callable[[], nn.Module]
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def sgd(self, model: nn.Module) -> torch.optim.SGD:
        """The optimizer of this setup."""
        return torch.optim.SGD(
            model.parameters(), self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )


class ShuffledBatches:
    """Mini-batches of tensors in a new order at every reading; far faster than a DataLoader."""

    def __init__(self, inputs: Tensor, targets: Tensor, seed: int):
        self.inputs, self.targets = inputs, targets
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.targets), generator=self.generator)
        for chosen in order.split(BATCH_SIZE):
            yield self.inputs[chosen], self.targets[chosen]


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 30, bias=False),
        nn.ReLU(),
        nn.Linear(30, 30, bias=False),
        nn.ReLU(),
        nn.Linear(30, 2, bias=False),
    )


def _convnet() -> nn.Module:
    """(3, 8, 8) C (16, 4, 4) C (32, 2, 2) F (2); the paper gives no kernel: 3 x 3, stride 2."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 2, bias=False),
    )


def _two_classes(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    chosen = labels < 2
    return images[chosen], labels[chosen].long()


def _prepared(images: Tensor, mean: list[float], std: list[float]) -> Tensor:
    """(N, C, H, W) bytes to normalised 8 x 8 images: bilinear with antialiasing."""
    small = functional.interpolate(
        images.float() / 255, size=(8, 8), mode="bilinear", antialias=True
    )
    return (small - torch.tensor(mean).view(1, -1, 1, 1)) / torch.tensor(std).view(1, -1, 1, 1)


def _read(data_set: type, root: Path, files: str, instead: str) -> Any:
    """Training images and labels as torchvision stores them."""
    name = data_set.__name__
    try:
        return data_set(str(root), train=True, download=False)
    except RuntimeError as error:
        raise SettingError(
            f"{name} is not under {root}: expected {root}/{files}, as torchvision.datasets.{name}"
            "(root, download=True) puts them there. Give their place with --data-root DIR, or "
            f"{instead}."
        ) from error
    except Exception as error:  # a changed byte can make torchvision fail in any way
        raise SettingError(
            f"{name} under {root} cannot be read ({type(error).__name__}: {error}). Put "
            "undamaged files there."
        ) from error


def _mnist(data_root: Path, npz: Path | None) -> Setup:
    files = "MNIST/raw/train-images-idx3-ubyte and train-labels-idx1-ubyte"
    data = _read(MNIST, data_root, files, "use --data digits, which needs no download")
    images, targets = _two_classes(data.data.unsqueeze(1), data.targets)
    inputs = _prepared(images, [0.1307], [0.3081]).flatten(1)
    return Setup("MNIST 0/1", inputs, targets, _mlp, lr=1e-3)


def _cifar10_arrays(data_root: Path, npz: Path | None) -> tuple[np.ndarray, np.ndarray]:
    if npz is not None:
        images, labels = read_npz(npz, ("train",))
        return images, labels
    files = "cifar-10-batches-py/data_batch_1 to data_batch_5"
    instead = "an .npz file with x_train and y_train with --npz FILE"
    data = _read(CIFAR10, data_root, files, instead)
    return data.data.transpose(0, 3, 1, 2), np.asarray(data.targets)


def _cifar10(data_root: Path, npz: Path | None) -> Setup:
    arrays = _cifar10_arrays(data_root, npz)
    images, targets = _two_classes(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays))
    inputs = _prepared(images, [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])
    return Setup(
        "CIFAR-10 0/1", inputs, targets, _convnet, lr=1e-2, momentum=0.9, weight_decay=1e-4
    )


def _digits(data_root: Path, npz: Path | None) -> Setup:
    """scikit-learn's digits have 8 x 8 pixels already; all 360 zeros and ones, MNIST's network."""
    data, labels = load_digits(return_X_y=True)
    images, targets = _two_classes(torch.from_numpy(data), torch.from_numpy(labels))
    inputs = ((images - images.mean()) / images.std()).float()
    return Setup("Digits 0/1", inputs, targets, _mlp, lr=1e-3)


SETUPS: dict[str, Callable[[Path, Path | None], Setup]] = {
    "mnist": _mnist,
    "cifar10": _cifar10,
    "digits": _digits,
}


@dataclass(frozen=True)
class Training:
    """How training ended.

    :param loss: mean training loss over the last window of steps.
    :param error: share of the training data misclassified at the end.
    """

    steps: int
    loss: float
    error: float
    converged: bool


def train_to_convergence(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    setup: Setup,
    *,
    seed: int,
    window: int,
    tolerance: float,
    max_steps: int,
) -> Training:
    """Train until the loss saturates.

    The mean loss over ``window`` steps is compared with that over the window before; training
    ends when it has fallen by less than ``tolerance``. A relative rule would never be met by
    separable data, whose loss goes on falling like 1 / steps.

    :param seed: seed of the order of the batches.
    :param max_steps: where to end if the loss never saturates.
    """
    batches = ShuffledBatches(setup.inputs, setup.targets, seed)
    model.train()
    previous, current, steps, converged = float("inf"), float("inf"), 0, False
    stream = (batch for _ in iter(int, 1) for batch in batches)
    with tqdm(total=max_steps, desc="training", unit="step") as bar:
        while steps < max_steps and not converged:
            total = 0.0
            taken = min(window, max_steps - steps)
            for _ in range(taken):
                inputs, targets = next(stream)
                loss = functional.cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            previous, current = current, total / taken
            steps += taken
            converged = current > previous - tolerance
            bar.update(taken)
            bar.set_postfix(loss=f"{current:.4g}")
    with torch.no_grad():
        error = (model(setup.inputs).argmax(1) != setup.targets).float().mean().item()
    return Training(steps, current, error, converged)
