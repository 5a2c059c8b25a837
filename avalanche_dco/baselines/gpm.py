"""Gradient Projection Memory as an Avalanche plugin."""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from avalanche.models import avalanche_forward
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.utils.data import default_collate

from avalanche_dco.baselines.effective_weights import effective_matrix, set_effective_matrix
from avalanche_dco.baselines.gradient_projection import extended_basis, project_out
from avalanche_dco.baselines.layer_recording import InputRecorder, projectable_layers
from avalanche_dco.core.checked import is_floating
from avalanche_dco.core.layers import MatrixLayer, as_matrix, groups_of, write_matrix
from avalanche_dco.errors import ModelError
from avalanche_dco.plugins.support.checks import InputChecks
from avalanche_dco.plugins.support.declared import DeclaredSettings, setting
from avalanche_dco.plugins.support.kept import Kept, Shapes, Tensors
from avalanche_dco.plugins.support.model_state import model_kept, random_state_kept
from avalanche_dco.plugins.support.state import PluginState

_SAMPLES_PER_FORWARD = 128


def _fits_layer(basis: Tensor, name: str, shapes: Shapes) -> bool:
    """Whether a basis has the inputs of a layer, as far as the layer is among the parameters."""
    weight = shapes.get(f"{name}.weight".lstrip("."))
    if not is_floating(basis, [None] * 3) or weight is None:
        return is_floating(basis, [None] * 3)
    inputs = math.prod(weight[1:]) + (f"{name}.bias".lstrip(".") in shapes)
    return basis.shape[1] == inputs and (len(weight) > 2 or basis.shape[0] == 1)


def _shares(threshold: float | Sequence[float]) -> tuple[float, ...]:
    return (threshold,) if isinstance(threshold, int | float) else tuple(threshold)


class GPMPlugin(InputChecks, PluginState, DeclaredSettings, SupervisedPlugin):
    """Gradient Projection Memory (Saha, Garg and Roy, ICLR 2021).

    After each experience the inputs of every ``Linear`` and convolution layer are collected on a
    random subset of its data, and the layer's basis is extended until it holds the share
    ``threshold`` of their energy. From then on the layer moves only orthogonally to its basis:
    what it answers to the inputs of earlier experiences stays as it is.

    Two projections see to that. The gradient is projected after the backward pass, as in the
    paper. After the optimizer's step the *change* of the weights since the start of the experience
    is projected again: momentum left from earlier experiences, weight decay and the scaling of
    adaptive optimizers would leak through a projection of the gradient alone. So any optimizer
    may be used.

    A bias counts as the weight of a constant input and is protected together with its layer.
    Under weight normalisation (``parametrizations.weight_norm`` or the old ``weight_norm``) the
    change of the computed weight is projected. A layer whose weight is computed in another way
    (spectral normalisation, pruning, any other parametrization) is refused before training.

    Other parameters are not protected: batch normalisation (affine parameters and running
    statistics), embeddings, recurrent layers. A warning names them after the first experience.
    """

    _KEEPS = (Kept("bases", Tensors(_fits_layer)),)

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
    layers: Sequence[str] | None = setting(
        default=None,
        none="every ``Linear`` and convolution",
        accepts=lambda value: not isinstance(value, str) and all(isinstance(n, str) for n in value),
        expected="a list of names, for example ['0', 'features.*']",
        meaning="names of the layers to project, with the wildcards of ``fnmatch``.",
    )
    project_head: bool = setting(
        default=True,
        meaning="whether the output layer, the one called last, is projected as well.",
        choices={
            True: "for a head that all experiences share",
            False: "for one head per task",
        },
    )

    def __post_init__(self) -> None:
        """Nothing is remembered yet."""
        super().__post_init__()
        self.bases: dict[str, Tensor] = {}
        """ Per layer: orthonormal columns, shape (groups, inputs, vectors). """
        self._anchors: dict[str, Tensor] = {}

    @torch.no_grad()
    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Remember where each layer with a basis starts from."""
        projectable_layers(strategy.model, self.layers)  # complains now rather than after training
        self._anchors = {
            name: effective_matrix(layer).clone() for name, layer in self._protected(strategy.model)
        }

    @torch.no_grad()
    def after_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Project the gradients of the weights that are parameters."""
        for name, layer in self._protected(strategy.model):
            if "weight" not in layer._parameters:
                continue
            weight, bias = layer.weight.grad, None if layer.bias is None else layer.bias.grad
            if weight is not None:
                gradient = as_matrix(weight, bias, groups=groups_of(layer))
                write_matrix(project_out(gradient, self.bases[name]), weight, bias)

    @torch.no_grad()
    def after_update(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Project what the optimizer made of them."""
        for name, layer in self._protected(strategy.model):
            anchor = self._anchors[name]
            change = effective_matrix(layer) - anchor
            set_effective_matrix(layer, anchor + project_out(change, self.bases[name]))

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Extend the bases by the inputs of the experience just trained."""
        self._anchors = {}
        recorder = self._recorded(strategy)
        if not self.bases:
            _warn_of_unprotected(strategy.model, recorder)
        remembered = {
            name: vectors
            for name, vectors in recorder.vectors.items()
            if self.project_head or name not in recorder.called_last
        }
        growth = self.threshold_growth * strategy.clock.train_exp_counter
        bases, thresholds = dict(self.bases), _shares(self.threshold)
        for index, (name, vectors) in enumerate(remembered.items()):
            threshold = thresholds[min(index, len(thresholds) - 1)]
            if name not in bases:
                weight = recorder.layers[name].weight
                bases[name] = weight.new_zeros(vectors.shape[0], vectors.shape[2], 0)
            bases[name] = extended_basis(bases[name], vectors, min(threshold + growth, 1.0))
        self._finished(strategy, bases=bases)

    @torch.no_grad()
    def _recorded(self, strategy: SupervisedTemplate) -> InputRecorder:
        """The inputs of the layers on a random subset of the experience, nothing else touched."""
        model, dataset = strategy.model, strategy.experience.dataset.eval()
        collate = getattr(dataset, "collate_fn", default_collate)
        recorder = InputRecorder(projectable_layers(model, self.layers))
        with model_kept(model, weights=False), random_state_kept():
            model.eval()
            chosen = torch.randperm(len(dataset))[: self.samples]
            for indices in chosen.split(_SAMPLES_PER_FORWARD):
                x, *_, task_labels = collate([dataset[index] for index in indices.tolist()])
                with recorder.one_pass():
                    avalanche_forward(model, x.to(strategy.device), task_labels)
        return recorder

    def _protected(self, model: nn.Module) -> Iterator[tuple[str, MatrixLayer]]:
        """The trainable layers that have a basis, checked against it: a head may have changed."""
        modules = dict(model.named_modules())
        for name, basis in self.bases.items():
            layer = modules.get(name)
            if not isinstance(layer, MatrixLayer):
                raise ModelError(
                    f"layer '{name}' has a basis but is no longer in the model; a layer may grow "
                    "more outputs between experiences, but has to keep its name."
                )
            inputs = layer.weight[0].numel() + (layer.bias is not None)
            if basis.shape[1] != inputs:
                raise ModelError(
                    f"layer '{name}' now has {inputs} inputs, its basis {basis.shape[1]}; a layer "
                    "may grow more outputs between experiences, but not more inputs or a bias."
                )
            frozen = [own for own, p in layer.named_parameters() if not p.requires_grad]
            trainable = [own for own, p in layer.named_parameters() if p.requires_grad]
            if frozen and trainable:
                raise ModelError(
                    f"in layer '{name}' {frozen} are frozen and {trainable} are not; they are "
                    "projected together, so freeze all or none."
                )
            if trainable:
                yield name, layer


def _warn_of_unprotected(model: nn.Module, recorder: InputRecorder) -> None:
    """Name the parameters that were trained although no input of theirs could be recorded."""
    protected_or_left_out = {
        part  # a parametrization belongs to its layer
        for name, module in model.named_modules()
        if isinstance(module, MatrixLayer)
        and (name in recorder.vectors or name not in recorder.layers)
        for part in module.modules()
    }
    names = [
        f"{module_name}.{name}".lstrip(".")
        for module_name, module in model.named_modules()
        if module not in protected_or_left_out
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.grad is not None
    ]
    if names:
        warnings.warn(
            f"GPM does not protect {names}: they belong to no Linear or convolution layer that is "
            "called as a module, so they stay free to change. Freeze them with "
            "requires_grad_(False) if they should not.",
            stacklevel=2,
        )
