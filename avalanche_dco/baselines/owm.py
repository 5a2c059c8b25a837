"""Orthogonal Weights Modification as an Avalanche plugin."""

from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_dco.baselines.gradient_projection import shrunk_projector
from avalanche_dco.baselines.projection import ProjectionPlugin, fits_layer
from avalanche_dco.core.checked import is_floating
from avalanche_dco.plugins.support.declared import setting
from avalanche_dco.plugins.support.kept import Kept, Shapes, Tensors


def _is_projector(value: Tensor, name: str, shapes: Shapes) -> bool:
    return fits_layer(value, name, shapes) and is_floating(value, [None, *value.shape[1:2] * 2])


class OWMPlugin(ProjectionPlugin):
    r"""Orthogonal Weights Modification (Zeng, Chen, Cui and Yu, 2019).

    Every ``Linear`` and convolution layer has a projector :math:`P` on the side of its inputs, at
    first the identity. A change :math:`\Delta W` of its weights becomes :math:`\Delta W P`. After
    an experience, each of its batches, with the mean input :math:`x` of the layer, makes

    .. math:: P \leftarrow P - k x^\top P, \qquad k = P x / (\alpha + x^\top P x)

    with an :math:`\alpha` that decays from the first batch to the last. A convolution has one mean
    per position, over the batch.

    As in :class:`.GPMPlugin`, the change that the optimizer makes is confined, step by step, so
    that any optimizer may be used. What is said there of biases, weight normalisation and
    unprotected parameters holds here too.
    """

    _KEEPS = (Kept("projectors", Tensors(_is_projector)),)

    alpha: float = setting(
        default=1.0,
        kw_only=False,
        above=0,
        meaning="constant of the projector's update at the start of an experience; the smaller, "
        "the more an input is protected. The default is that of the authors' code.",
    )
    alpha_decay: float = setting(
        default=0.1,
        above=0,
        at_most=1,
        meaning="ratio of alpha's last value to its first: batch i of n has "
        "``alpha * alpha_decay ** (i / n)``.",
    )
    passes: int | None = setting(
        default=None,
        none="as many as epochs of training (``train_epochs``)",
        at_least=1,
        meaning="number of passes over the batches of an experience, each in a new order.",
    )
    mean_of: int | None = setting(
        default=None,
        none="a training batch (``train_mb_size``)",
        at_least=1,
        meaning="number of samples whose inputs are averaged.",
    )

    def __post_init__(self) -> None:
        """Nothing is remembered yet."""
        super().__post_init__()
        self.projectors: dict[str, Tensor] = {}
        """ Per layer: shape (groups, inputs, inputs). """

    @property
    def _by_layer(self) -> dict[str, Tensor]:
        return self.projectors

    def _allowed(self, name: str, change: Tensor) -> Tensor:
        return change @ self.projectors[name]

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Shrink the projectors along the inputs of the experience just trained."""
        self._anchors = {}
        size = self.mean_of or strategy.train_mb_size
        passes = self.passes or strategy.train_epochs
        batches = passes * -(-len(strategy.experience.dataset) // size)
        projectors = dict(self.projectors)
        seen = 0

        def observe(samples: int, inputs: dict[str, list[Tensor]]) -> None:
            nonlocal seen
            seen += 1
            alpha = self.alpha * self.alpha_decay ** (seen / batches)
            for name, calls in inputs.items():
                means = torch.cat([_means(vectors, samples) for vectors in calls], dim=1)
                identity = torch.eye(means.shape[2], device=means.device).expand(len(means), -1, -1)
                projector = projectors.get(name, identity)
                projectors[name] = shrunk_projector(projector, means / alpha**0.5)

        self._record_inputs(strategy, None, size, observe, passes)
        weights = {name: strategy.model.get_submodule(name).weight for name in projectors}
        kept = {name: projector.to(weights[name]) for name, projector in projectors.items()}
        self._finished(strategy, projectors=kept)


def _means(vectors: Tensor, samples: int) -> Tensor:
    """Input vectors (groups, n, inputs) averaged over the samples, one mean per position."""
    groups, n, inputs = vectors.shape
    positions = 1 if n % samples else n // samples  # a layer may have seen something else
    return vectors.double().reshape(groups, -1, positions, inputs).mean(1)
