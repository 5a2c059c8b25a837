"""Gradient Projection Memory as an Avalanche plugin."""

from collections.abc import Sequence
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_dco.baselines.gradient_projection import (
    compact,
    complement,
    extended_basis,
    project_out,
)
from avalanche_dco.baselines.projection import ProjectionPlugin, fits_layer
from avalanche_dco.core.layers import Call, input_vectors
from avalanche_dco.plugins.support.kept import Kept, Tensors
from avalanche_dco.plugins.support.settings import setting

Bases = dict[str, Tensor]
_SAMPLES_PER_FORWARD = 128


def _shares(threshold: float | Sequence[float]) -> tuple[float, ...]:
    return (threshold,) if isinstance(threshold, int | float) else tuple(threshold)


class GPMPlugin(ProjectionPlugin):
    """Gradient Projection Memory (Saha, Garg and Roy, ICLR 2021).

    After each experience the inputs of every ``Linear`` and convolution layer are collected on a
    random subset of its data, and the layer's basis is extended until it holds the share
    ``threshold`` of their energy. From then on the layer moves only orthogonally to its basis:
    its outputs for the inputs of earlier experiences do not change.

    Two projections ensure that. The gradient is projected after the backward pass, as in the
    paper. After the optimizer's step the *change* of the weights since the start of the experience
    is projected again: momentum left from earlier experiences, weight decay and the scaling of
    adaptive optimizers would leak through a projection of the gradient alone. So any optimizer
    may be used.

    A bias counts as the weight of a constant input and is protected together with its layer.
    Under weight normalisation (``parametrizations.weight_norm`` or the old ``weight_norm``) the
    change of the computed weight is projected. A layer whose weight is computed in another way
    (spectral normalisation, pruning, any other parametrization) is refused before training.

    >>> from avalanche_dco import GPMPlugin
    >>> plugin = GPMPlugin((0.95, 0.99))

    Other parameters are not protected: batch normalisation (affine parameters and running
    statistics), embeddings, recurrent layers. A warning names them after the first experience.
    """

    _KEEPS = (Kept("bases", Tensors(fits_layer)),)
    _IDEMPOTENT = True

    threshold: float | Sequence[float] = setting(
        default=(0.95, 0.99),
        kw_only=False,
        accepts=lambda value: _shares(value) != () and all(0 < s <= 1 for s in _shares(value)),
        expected="a share of the energy above 0 and at most 1, for example 0.97, or a sequence, "
        "for example (0.95, 0.99) for the first layer and all others",
        meaning="share of the energy of a layer's inputs that its basis has to hold. A sequence "
        "gives one value per layer, in the order in which the layers are called; its last value "
        "holds for all further layers. The default is what GPM's authors use for Permuted MNIST; "
        "for Split CIFAR-100 they use 0.97 and ``threshold_growth=0.003``.",
    )
    threshold_growth: float = setting(
        default=0.0, meaning="growth of the threshold with each experience, up to 1."
    )
    samples: int = setting(
        default=300,
        at_least=1,
        meaning="size of the random subset of each experience on which inputs are collected; GPM's "
        "authors use 300 for fully connected networks and about 125 for convolutional ones.",
    )

    def __post_init__(self) -> None:
        """Nothing is remembered yet."""
        super().__post_init__()
        self.bases: Bases = {}
        """ Per layer: orthonormal columns, shape (groups, inputs, vectors). """
        self._complements: dict[str, Tensor] = {}

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Remember where each layer starts from, and turn wide bases into what they leave free."""
        super().before_training_exp(strategy, **kwargs)
        self._complements = {
            name: complement(basis)
            for name, basis in self.bases.items()
            if basis.shape[2] > basis.shape[1] / 2
        }

    def _allowed(self, name: str, change: Tensor) -> Tensor:
        if name in self._complements:
            return change @ self._complements[name]
        return project_out(change, self.bases[name])

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Extend the bases by the inputs of the experience just trained."""
        collected = self._collected(strategy)
        self._finished(strategy, bases=self._extended(strategy, self.bases, collected))

    def _collected(self, strategy: SupervisedTemplate) -> dict[str, Tensor]:
        """Inputs of each layer on a random subset of the experience, shape (groups, n, inputs)."""
        self._anchors, self._complements = {}, {}
        collected: dict[str, Tensor] = {}

        def observe(samples: int, calls: dict[str, list[Call]]) -> None:
            for name, of_layer in calls.items():
                parts = [collected[name]] if name in collected else []
                for layer, inputs, _ in of_layer:
                    parts.append(input_vectors(layer, inputs, bias=layer.bias is not None))
                collected[name] = compact(torch.cat(parts, dim=1))

        self._record_inputs(strategy, self.samples, _SAMPLES_PER_FORWARD, observe)
        return collected

    def _extended(
        self, strategy: SupervisedTemplate, bases: Bases, collected: dict[str, Tensor]
    ) -> Bases:
        """Orthonormal bases, extended by what was collected."""
        growth = self.threshold_growth * strategy.clock.train_exp_counter
        bases, thresholds = dict(bases), _shares(self.threshold)
        for index, (name, vectors) in enumerate(collected.items()):
            threshold = thresholds[min(index, len(thresholds) - 1)]
            if name not in bases:
                weight = strategy.model.get_submodule(name).weight
                bases[name] = weight.new_zeros(vectors.shape[0], vectors.shape[2], 0)
            bases[name] = extended_basis(bases[name], vectors, min(threshold + growth, 1.0))
        return bases
