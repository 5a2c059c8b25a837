"""The networks, data and training of the paper's Section 3: two classes, 8 x 8 pixels."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torchvision.datasets import CIFAR10, MNIST  # type: ignore[import-untyped]
from tqdm import tqdm

from avalanche_dco.models import MLP
from benchmarks.streams.catalogue import require_files
from benchmarks.streams.cifar import read_npz
from benchmarks.streams.data_path import ShuffledBatches

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

    def batches(self, seed: int) -> ShuffledBatches:
        """Mini-batches in a new order at every reading."""
        generator = torch.Generator().manual_seed(seed)
        return ShuffledBatches((self.inputs, self.targets), BATCH_SIZE, generator=generator)

    def sgd(self, model: nn.Module) -> torch.optim.SGD:
        """The optimizer of this setup."""
        return torch.optim.SGD(
            model.parameters(), self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )


_mlp = partial(MLP, 64, hidden_size=30, hidden_layers=2, num_classes=2)


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


def _mnist(data_root: Path, npz: Path | None) -> Setup:
    require_files("split-mnist", data_root)
    data = MNIST(str(data_root))
    images, targets = _two_classes(data.data.unsqueeze(1), data.targets)
    inputs = _prepared(images, [0.1307], [0.3081]).flatten(1)
    return Setup("MNIST 0/1", inputs, targets, _mlp, lr=1e-3)


def _cifar10_arrays(data_root: Path, npz: Path | None) -> list[np.ndarray]:
    if npz is not None:
        return read_npz(npz, ("train",))
    require_files("split-cifar10", data_root)
    data = CIFAR10(str(data_root))
    return [data.data.transpose(0, 3, 1, 2), np.asarray(data.targets)]


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


def train_to_convergence(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    setup: Setup,
    *,
    seed: int,
    window: int,
    tolerance: float,
    max_steps: int,
) -> dict[str, Any]:
    """Train until the loss saturates.

    The mean loss over ``window`` steps is compared with that over the window before; training
    ends when it has fallen by less than ``tolerance``. A relative rule would never be met by
    separable data, whose loss goes on falling like 1 / steps.

    :return: how it ended: ``steps``, ``loss`` (the mean over the last window), ``error`` (the share
        of the training data misclassified) and ``converged``.
    """
    batches = setup.batches(seed)
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
    return {"steps": steps, "loss": current, "error": error, "converged": converged}
