"""How networks are trained, whatever the method, and in which precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from avalanche_dco.errors import SettingError
from avalanche_dco.plugins.support.settings import check_number

PRECISIONS = ("float32", "bfloat16")


class Bfloat16Training(nn.Module):
    """A network that multiplies in bfloat16 while it is trained, and in float32 otherwise.

    Weights are float32 and move by float32 steps; outputs and gradients have float32's type and
    bfloat16's digits. In eval mode nothing is rounded: not the errors, nor what methods compute
    there (EWC's and MAS' importances, GPM's inputs, LwF's teacher).

    Faster for convolutions on a CPU that has products of bfloat16, and maybe far slower on others.

    :param network: the network; in training its outputs are cast to float32.
    """

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Any:
        """The network's answer."""
        if not self.training:
            return self.network(x)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            outputs = self.network(x)
        return outputs.float()


class HalfDropout(nn.Module):
    """``nn.Dropout(0.5)`` with a mask of random bytes.

    The same distribution; torch draws a float64 per element on a CPU, which takes a fifth of a
    training step of the paper's ConvNet.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Half of the elements, doubled, in training; all of them otherwise."""
        if not self.training:
            return x
        eight_each = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_()
        twice = eight_each.view(torch.uint8)[: x.numel()].bitwise_and_(1).to(x.dtype).mul_(2)
        return x * twice.as_strided(x.shape, torch.empty_like(x).stride())


Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """How a network is trained, whatever the method.

    :param lr: SGD's learning rate; the momentum is 0.9 everywhere.
    :param later_lr_factor: factor on the learning rate from the second experience on.
    :param precision: in which training multiplies, one of :data:`PRECISIONS`; weights are float32.
    :param experiences: how many of the stream's experiences are learned and evaluated, the first
        ones; None for all.
    :param matched_to: settings of the DCO whose number of gradient evaluations ends the training
        of each experience instead of ``epochs``, and its epochs and batch size where they are
        others; None for ``epochs``.
    """

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    later_lr_factor: float = 1.0
    precision: str = "float32"
    experiences: int | None = None
    matched_to: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        check_number("epochs", self.epochs, low=1, whole=True, meaning="the epochs per experience")
        check_number(
            "batch_size", self.batch_size, low=1, whole=True, meaning="samples per mini-batch"
        )
        check_number("lr", self.lr, above_low=True, meaning="SGD's learning rate")
        check_number("weight_decay", self.weight_decay, meaning="SGD's weight decay")
        check_number(
            "later_lr_factor",
            self.later_lr_factor,
            above_low=True,
            meaning="the factor on the learning rate from the second experience on",
        )
        if self.precision not in PRECISIONS:
            raise SettingError(f"precision={self.precision!r} is none of {list(PRECISIONS)}.")
        if self.experiences is not None:
            check_number(
                "experiences", self.experiences, low=1, whole=True, meaning="those to learn"
            )

    @classmethod
    def names(cls) -> list[str]:
        """What ``--training`` may change."""
        return [entry.name for entry in fields(cls) if entry.name != "matched_to"]

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The values that need not be given."""
        return {e.name: e.default for e in fields(cls) if e.default is not MISSING}

    def changed(self, changes: Settings) -> Training:
        """The same with some values replaced."""
        unknown = changes.keys() - set(self.names())
        if unknown:
            raise SettingError(f"--training has no {sorted(unknown)}; it has {self.names()}.")
        return replace(self, **changes)

    def lr_of(self, index: int) -> float:
        """The learning rate of an experience."""
        return self.lr if index == 0 else self.lr * self.later_lr_factor

    def as_json(self) -> dict[str, Any]:
        """All values, for a run's configuration; the last three only where not usual."""
        usual = self.defaults()
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in ("precision", "experiences", "matched_to") or value != usual[name]
        }


def divided(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split values into those of the training and those of the method."""
    training = {name: value for name, value in settings.items() if name in Training.names()}
    return training, {name: value for name, value in settings.items() if name not in training}
