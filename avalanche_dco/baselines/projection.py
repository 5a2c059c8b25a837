"""What methods share that confine the changes of a layer by the inputs it has had."""

import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from avalanche.models import avalanche_forward
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.utils.data import default_collate

from avalanche_dco.baselines.effective_weights import (
    effective_matrix,
    refuse_computed,
    set_effective_matrix,
)
from avalanche_dco.core.checked import is_floating
from avalanche_dco.core.layers import (
    Call,
    MatrixLayer,
    as_matrix,
    groups_of,
    parameter_owners,
    recorded_calls,
    write_matrix,
)
from avalanche_dco.errors import ModelError
from avalanche_dco.plugins.support.checks import InputChecks
from avalanche_dco.plugins.support.isolation import model_kept, random_state_kept
from avalanche_dco.plugins.support.kept import Shapes
from avalanche_dco.plugins.support.sampling import as_tensors
from avalanche_dco.plugins.support.settings import DeclaredSettings, setting
from avalanche_dco.plugins.support.state import PluginState


def fits_layer(tensor: Tensor, name: str, shapes: Shapes) -> bool:
    """Whether a tensor (groups, inputs, ...) has the inputs of a layer, if the layer is known."""
    weight = shapes.get(f"{name}.weight".lstrip("."))
    if not is_floating(tensor, [None] * 3) or weight is None:
        return is_floating(tensor, [None] * 3)
    inputs = math.prod(weight[1:]) + (f"{name}.bias".lstrip(".") in shapes)
    return tensor.shape[1] == inputs and (len(weight) > 2 or tensor.shape[0] == 1)


class ProjectionPlugin(InputChecks, PluginState, DeclaredSettings, SupervisedPlugin, ABC):
    """Confines the changes of ``Linear`` and convolution layers; for plugins to inherit from.

    What the optimizer has made of a layer is confined, not its gradient: momentum left from earlier
    experiences, weight decay and the scaling of adaptive optimizers would leak through a
    projection of the gradient alone.
    """

    _IDEMPOTENT = False
    """Whether to confine twice is to confine once. If so, gradients are confined too, as published,
    and the change since the start of the experience is, so that rounding errors do not add up over
    the steps. If not, the change of each step is."""

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
        choices={True: "for a head that all experiences share", False: "for one head per task"},
    )

    def __post_init__(self) -> None:
        """No experience has begun."""
        super().__post_init__()
        self._anchors: dict[str, Tensor] = {}

    @property
    def _by_layer(self) -> dict[str, Tensor]:
        """What is kept of each layer's inputs, shape (groups, inputs, ...)."""
        (kept,) = self._KEEPS
        return kept.get(self)

    @abstractmethod
    def _allowed(self, name: str, change: Tensor) -> Tensor:
        """The part of a change (groups, outputs, inputs) that the layer may make."""

    @torch.no_grad()
    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Remember where each confined layer starts from."""
        self._projectable(strategy.model)  # refuses now rather than after training
        self._anchors = {
            name: effective_matrix(layer).clone() for name, layer in self._confined(strategy.model)
        }

    @torch.no_grad()
    def after_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Confine the gradients of the weights that are parameters, if that is not done twice."""
        for name, layer in self._confined(strategy.model) if self._IDEMPOTENT else ():
            if "weight" not in layer._parameters:
                continue
            weight, bias = layer.weight.grad, None if layer.bias is None else layer.bias.grad
            if weight is not None:
                gradient = as_matrix(weight, bias, groups=groups_of(layer))
                write_matrix(self._allowed(name, gradient), weight, bias)

    @torch.no_grad()
    def after_update(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Confine what the optimizer has made of the layers."""
        for name, layer in self._confined(strategy.model):
            anchor = self._anchors[name]
            matrix = anchor + self._allowed(name, effective_matrix(layer) - anchor)
            set_effective_matrix(layer, matrix)
            if not self._IDEMPOTENT:
                self._anchors[name] = matrix

    def _projectable(self, model: nn.Module) -> dict[str, MatrixLayer]:
        """The layers that may be confined, by name; raises if there are none or one cannot be."""
        layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, MatrixLayer)
            and (self.layers is None or any(fnmatch(name, pattern) for pattern in self.layers))
        }
        if not layers:
            raise ModelError(
                f"There is no Linear or convolution layer to project: layers={self.layers!r}, and "
                f"the model has {[name for name, _ in model.named_modules() if name]}. Name some "
                "of them, or leave the argument out."
            )
        owners = parameter_owners(model)
        for name, layer in layers.items():
            for parameter in layer.parameters():
                if len(owners[parameter]) > 1:
                    raise ModelError(
                        f"The modules {owners[parameter]} share one parameter, and a basis belongs "
                        "to one module; call the same module twice instead, or name the layers to "
                        f"project without '{name}'."
                    )
        refuse_computed(layers, type(self).__name__)
        return layers

    @torch.no_grad()
    def _record_inputs(
        self,
        strategy: SupervisedTemplate,
        samples: int | None,
        batch_size: int,
        observe: Callable[[int, dict[str, list[Call]]], None],
        passes: int = 1,
    ) -> None:
        """Record the inputs of the layers in forward passes that change nothing.

        A layer that is called several times in one pass multiplies all of its inputs by the same
        matrix, so all of them are recorded. The layer called last is left out if it is not to be
        confined. The first time, a warning names the parameters that were trained although no
        inputs of theirs can be recorded.

        :param observe: takes the number of samples of a batch, and the calls by the layers' names.
        """
        model, dataset = strategy.model, strategy.experience.dataset.eval()
        collate = getattr(dataset, "collate_fn", default_collate)
        layers = self._projectable(model)
        names = {layer: name for name, layer in layers.items()}
        called: set[str] = set()
        with model_kept(model, weights=False), random_state_kept():
            model.eval()
            fetched = as_tensors(dataset) if passes > 1 else None
            orders = [torch.randperm(len(dataset))[:samples] for _ in range(passes)]
            for indices in itertools.chain(*(order.split(batch_size) for order in orders)):
                if fetched is None:
                    batch = collate([dataset[index] for index in indices.tolist()])
                else:
                    batch = [part[indices] for part in fetched]
                x, *_, task_labels = batch
                with recorded_calls(layers.values()) as calls:
                    avalanche_forward(model, x.to(strategy.device), task_labels)
                by_name: dict[str, list[Call]] = {}
                for call in calls:
                    by_name.setdefault(names[call.layer], []).append(call)
                called |= by_name.keys()
                if calls and not self.project_head:
                    del by_name[names[calls[-1].layer]]
                observe(len(indices), by_name)
        if not self._by_layer:
            self._warn_of_unprotected(model, called, layers)

    def _confined(self, model: nn.Module) -> Iterator[tuple[str, MatrixLayer]]:
        """The trainable layers of which something is kept, checked: a head may have changed."""
        modules = dict(model.named_modules())
        for name, kept in self._by_layer.items():
            layer = modules.get(name)
            if not isinstance(layer, MatrixLayer):
                raise ModelError(
                    f"Layer '{name}' has a basis but is no longer in the model; a layer may gain "
                    "outputs between experiences, but has to keep its name."
                )
            inputs = layer.weight[0].numel() + (layer.bias is not None)
            if kept.shape[1] != inputs:
                raise ModelError(
                    f"Layer '{name}' now has {inputs} inputs, but its basis has {kept.shape[1]}; a "
                    "layer may gain outputs between experiences, but no inputs and no bias."
                )
            frozen = [own for own, p in layer.named_parameters() if not p.requires_grad]
            trainable = [own for own, p in layer.named_parameters() if p.requires_grad]
            if frozen and trainable:
                raise ModelError(
                    f"In layer '{name}' {frozen} are frozen and {trainable} are not; they are "
                    "projected together, so freeze all or none."
                )
            if trainable:
                yield name, layer

    def _warn_of_unprotected(
        self, model: nn.Module, called: set[str], layers: dict[str, MatrixLayer]
    ) -> None:
        protected_or_left_out = {
            part  # a parametrization belongs to its layer
            for name, module in model.named_modules()
            if isinstance(module, MatrixLayer) and (name in called or name not in layers)
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
                f"{type(self).__name__} does not protect {names}: they belong to no Linear or "
                "convolution layer that is called as a module, so they stay free to change. Freeze "
                "them with requires_grad_(False) if they should not.",
                stacklevel=2,
            )
