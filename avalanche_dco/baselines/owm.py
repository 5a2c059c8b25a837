"""Orthogonal Weights Modification as an Avalanche plugin."""

from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_dco.baselines.gradient_projection import shrunk_projector
from avalanche_dco.baselines.projection import ProjectionPlugin, fits_layer
from avalanche_dco.core.checked import is_floating
from avalanche_dco.core.layers import Call, MatrixLayer, input_vectors
from avalanche_dco.plugins.support.kept import Kept, Shapes, Tensors
from avalanche_dco.plugins.support.settings import setting


def _is_projector(value: Tensor, name: str, shapes: Shapes) -> bool:
    return fits_layer(value, name, shapes) and is_floating(value, [None, *value.shape[1:2] * 2])


class OWMPlugin(ProjectionPlugin):
    r"""Orthogonal Weights Modification (Zeng, Chen, Cui and Yu, 2019).

    Every ``Linear`` and convolution layer has a projector :math:`P` on the side of its inputs, at
    first the identity. A change :math:`\Delta W` of its weights becomes :math:`\Delta W P`. After
    an experience, each of its batches, with the mean input :math:`x` of the layer, makes

    .. math:: P \leftarrow P - k x^\top P, \qquad k = P x / (\alpha + x^\top P x)

    with an :math:`\alpha` that decays from the first batch to the last. A layer with several
    positions per sample, such as a convolution, has one mean for each of them; the samples are in
    the first dimension of its inputs.

    All of them together make one update at the end of the experience, with two eigendecompositions
    for each layer: a third of a second for 784 inputs, most of a minute for 4,096.

    As in :class:`.GPMPlugin`, the change that the optimizer makes is confined, step by step, so
    that any optimizer may be used. Its notes on biases, weight normalisation and
    unprotected parameters apply here too.

    >>> from avalanche_dco.baselines import OWMPlugin
    >>> plugin = OWMPlugin()
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

    def _allowed(self, name: str, change: Tensor) -> Tensor:
        return change @ self.projectors[name]

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Shrink the projectors along the inputs of the experience just trained."""
        self._anchors = {}
        size = self.mean_of or strategy.train_mb_size
        passes = self.passes or strategy.train_epochs
        batches = passes * -(-len(strategy.experience.dataset) // size)
        moments: dict[str, Tensor] = {}
        seen = 0

        def observe(samples: int, calls: dict[str, list[Call]]) -> None:
            nonlocal seen
            seen += 1
            alpha = self.alpha * self.alpha_decay ** (seen / batches)
            for name, of_layer in calls.items():
                for layer, inputs, _ in of_layer:
                    means = _means(layer, inputs, samples)
                    if name not in moments:
                        groups, _, width = means.shape
                        moments[name] = means.new_zeros(groups, width, width)
                    moments[name].baddbmm_(means.mT, means, alpha=1 / alpha)

        self._record_inputs(strategy, None, size, observe, passes)
        projectors = dict(self.projectors)
        for name, moment in moments.items():
            identity = torch.eye(moment.shape[1], device=moment.device).expand_as(moment)
            weight = strategy.model.get_submodule(name).weight
            projectors[name] = shrunk_projector(projectors.get(name, identity), moment).to(weight)
        self._finished(strategy, projectors=projectors)


def _means(layer: MatrixLayer, inputs: Tensor, samples: int) -> Tensor:
    """A layer's input vectors averaged over the samples, one mean per position.

    Inputs that do not belong to samples, such as learned prompts, have one mean.

    :return: float64, shape (groups, positions, inputs).
    """
    has_batch = inputs.dim() >= layer.weight.dim()
    if has_batch and len(inputs) % samples == 0:
        # The patches of a mean are the means of the patches, and far fewer.
        inputs = inputs.unflatten(0, (samples, -1)).mean(0, dtype=torch.float64)
        samples = 1
    vectors = input_vectors(layer, inputs.double(), bias=layer.bias is not None)
    groups, n, width = vectors.shape
    positions = 1 if n % samples else n // samples
    return vectors.reshape(groups, -1, positions, width).mean(1)
