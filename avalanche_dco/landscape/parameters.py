"""Trainable parameters as one vector of length d."""

import torch
from torch import Tensor, nn

from avalanche_dco.errors import ModelError
from avalanche_dco.plugins.support.gradients import trainable


class FlatParameters:
    """The layout of a model's trainable parameters in one vector of length d.

    Parameters with ``requires_grad=False`` are not coordinates of the landscape; they stay fixed.

    >>> import torch
    >>> from avalanche_dco.landscape import FlatParameters
    >>> flat = FlatParameters(torch.nn.Linear(3, 2))
    >>> flat.size, flat.unflatten(flat.values())["weight"].shape
    (8, torch.Size([2, 3]))

    :param model: the model; only names, shapes and current values are read.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.shapes = {name: parameter.shape for name, parameter in trainable(model).items()}
        if not self.shapes:
            raise ModelError(
                f"{type(model).__name__} has no trainable parameter, so its loss landscape has no "
                "directions; call model.requires_grad_(True) on the layers to be analysed."
            )
        self.size = sum(shape.numel() for shape in self.shapes.values())

    def values(self) -> Tensor:
        """A copy of the parameters, shape (d,)."""
        return torch.cat([self.model.get_parameter(n).detach().flatten() for n in self.shapes])

    def gradient(self) -> Tensor:
        """A copy of the gradients, shape (d,); zero where the loss does not reach a parameter."""
        parameters = [self.model.get_parameter(name) for name in self.shapes]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return torch.cat([gradient.detach().flatten() for gradient in gradients])

    def unflatten(self, vectors: Tensor) -> dict[str, Tensor]:
        """Shape (..., d) to one tensor of shape (..., *shape) per parameter name."""
        pieces = vectors.split([shape.numel() for shape in self.shapes.values()], dim=-1)
        return {
            name: piece.reshape(*vectors.shape[:-1], *shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }
