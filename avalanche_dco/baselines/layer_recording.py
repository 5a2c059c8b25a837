"""Find the layers whose inputs can be remembered, and record them; no Avalanche in here."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from avalanche_dco.baselines.effective_weights import refuse_computed
from avalanche_dco.baselines.gradient_projection import compact
from avalanche_dco.core.layers import MatrixLayer, input_vectors
from avalanche_dco.errors import ModelError


def projectable_layers(
    model: nn.Module, patterns: Sequence[str] | None = None
) -> dict[str, MatrixLayer]:
    """The ``Linear`` and convolution layers of a model, by name.

    :param model: the model.
    :param patterns: names, with the wildcards of ``fnmatch``, of the layers wanted; None for all.
    """
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, MatrixLayer)
        and (patterns is None or any(fnmatch(name, pattern) for pattern in patterns))
    }
    if not layers:
        raise ModelError(
            f"no Linear or convolution layer to project: layers={patterns!r}, and the model has "
            f"the modules {[name for name, _ in model.named_modules() if name]}; name some of "
            "them, or leave the argument out."
        )
    owners = parameter_owners(model)
    for name, layer in layers.items():
        for parameter in layer.parameters():
            if len(owners[parameter]) > 1:
                raise ModelError(
                    f"the modules {owners[parameter]} share one parameter, and a basis belongs to "
                    "one module; call the same module twice instead, or name the layers to "
                    f"project without '{name}'."
                )
    refuse_computed(layers)
    return layers


def parameter_owners(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """For every parameter the names of the modules that hold it: several if it is tied."""
    owners: dict[nn.Parameter, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(parameter, []).append(name)
    return owners


class InputRecorder:
    """The input vectors of layers, over as many forward passes as one likes.

    A layer that is called several times in one pass multiplies all of its inputs by the same
    matrix, so all of them are recorded.
    """

    def __init__(self, layers: dict[str, MatrixLayer]):
        """Record nothing yet.

        :param layers: the layers to listen to, by name.
        """
        self.layers = layers
        self.vectors: dict[str, Tensor] = {}
        """ Per layer, in the order of the first call: float64 vectors (groups, n, inputs). """
        self.called_last: set[str] = set()
        """ The layers with which a forward pass ended. """

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Listen to the forward pass inside the block."""
        calls: list[str] = []
        handles = [
            layer.register_forward_pre_hook(self._listener(name, calls))
            for name, layer in self.layers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self.called_last.update(calls[-1:])

    def _listener(
        self, name: str, calls: list[str]
    ) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def listen(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            calls.append(name)
            module = self.layers[name]
            vectors = input_vectors(module, inputs[0], bias=module.bias is not None).double()
            if name in self.vectors:
                vectors = torch.cat([self.vectors[name], vectors], dim=1)
            self.vectors[name] = compact(vectors)

        return listen
