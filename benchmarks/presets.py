"""Settings of every benchmark, as data: the paper's, and for the digits our own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """How a network is trained on one benchmark.

    :param epochs: epochs per experience.
    :param batch_size: samples per mini-batch.
    :param lr: SGD's learning rate; the momentum is 0.9 everywhere.
    :param weight_decay: SGD's weight decay.
    :param methods: settings of the methods that have any, by name.
    """

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def training(self) -> dict[str, Any]:
        """All but the methods' settings."""
        return {name: value for name, value in asdict(self).items() if name != "methods"}

    def settings(self, method: str) -> dict[str, Any]:
        """Settings of a method: its own on this benchmark, or none."""
        return dict(self.methods.get(method, {}))


# The supplement's table and Section 5.2; what is not named here has the plugins' default, which is
# the paper's value for MNIST.
PAPER: dict[str, Preset] = {
    "permuted-mnist": Preset(
        10,
        128,
        1e-3,
        1e-3,
        {
            "dco": {"k": 1000, "dco_lambda": 100.0, "theta": 0.2, "max_penalty_grad_norm": 20.0},
            "dco-comp": {"k": 1000, "dco_lambda": 100.0, "theta": 0.2},
            "gpm": {"threshold": [0.95, 0.99]},
        },
    ),
    "split-mnist": Preset(
        10,
        128,
        1e-3,
        1e-3,
        {
            "dco": {"k": 1000, "dco_lambda": 100.0, "theta": 0.2, "max_penalty_grad_norm": 20.0},
            "dco-comp": {"k": 400, "dco_lambda": 100.0, "theta": 0.2},
            "gpm": {"threshold": [0.95, 0.99]},
        },
    ),
}

# Small enough for a laptop and a demonstration: an eighth of the paper's gradients, half its
# updates and directions.
_DIGITS_DCO = {"k": 500, "gradients_per_update": 16, "autoencoder_updates": 100}

DIGITS: dict[str, Preset] = {
    name: Preset(
        15,
        32,
        3e-3,
        1e-3,
        {
            "ewc": {"ewc_lambda": 200},
            "gpm": {"threshold": [0.95, 0.99]},
            "dco": _DIGITS_DCO,
            "dco-comp": _DIGITS_DCO,
        },
    )
    for name in ("permuted-digits", "split-digits")
}

PRESETS = PAPER | DIGITS
