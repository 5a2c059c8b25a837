"""In which precision networks are trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

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
