"""Parameters as one vector, and gradients along further optimizer steps after convergence."""

import copy
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from avalanche_dco.errors import ModelError, SettingError
from avalanche_dco.landscape.spectrum import GradientSpectrum, Method, gradient_spectrum
from avalanche_dco.plugins.support.gradients import trainable
from avalanche_dco.plugins.support.isolation import model_kept

Criterion = Callable[[Tensor, Tensor], Tensor]
Progress = Callable[[Iterable[Tensor]], Iterable[Tensor]]


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
        """Split vectors of shape (..., d) into one tensor per parameter name."""
        pieces = vectors.split([shape.numel() for shape in self.shapes.values()], dim=-1)
        return {
            name: piece.reshape(*vectors.shape[:-1], *shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }


def _endless(batches: Iterable) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        empty = True
        for inputs, targets, *_ in batches:
            empty = False
            yield inputs, targets
        if empty:
            raise SettingError(
                "The batches for the trajectory ran out: the data is empty, or a generator that "
                "can be read only once. Give a DataLoader or a list of (inputs, targets)."
            )


def trajectory_gradients(
    model: nn.Module, criterion: Criterion, optimizer: Optimizer, batches: Iterable, *, steps: int
) -> Generator[Tensor, None, None]:
    r"""Yield the gradients of ``steps`` further optimizer steps, each of shape (d,).

    The i-th is :math:`\nabla L(x_i; \zeta_i)`, taken before the i-th step, in training mode.
    The model moves while the generator is open; when it ends or is closed, model and optimizer
    are restored.

    >>> import torch
    >>> from avalanche_dco.landscape import trajectory_gradients
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> batches = [(torch.randn(8, 3), torch.randint(2, (8,)))]
    >>> loss = torch.nn.CrossEntropyLoss()
    >>> [g.shape for g in trajectory_gradients(model, loss, optimizer, batches, steps=2)]
    [torch.Size([8]), torch.Size([8])]

    :param model: a converged model, at :math:`x^*`.
    :param criterion: ``criterion(outputs, targets)``, a scalar.
    :param optimizer: the optimizer that moves the model, usually the one that trained it.
    :param batches: mini-batches ``(inputs, targets, ...)``, read again and again as needed.
    :param steps: the number n of steps.
    """
    flat = FlatParameters(model)
    device = flat.values().device
    source = _endless(batches)
    state = copy.deepcopy(optimizer.state_dict())
    try:
        with model_kept(model, weights=True):
            model.train()
            for _ in range(steps):
                inputs, targets = next(source)
                optimizer.zero_grad()
                criterion(model(inputs.to(device)), targets.to(device)).backward()
                yield flat.gradient()
                optimizer.step()
    finally:
        optimizer.load_state_dict(state)


def trajectory_spectrum(
    model: nn.Module,
    criterion: Criterion,
    optimizer: Optimizer,
    batches: Iterable,
    *,
    steps: int,
    top: int | None = None,
    method: Method = "auto",
    progress: Progress | None = None,
) -> GradientSpectrum:
    """Averaged gradient and eigenvectors of :math:`G G^T` along the optimizer's further steps.

    Model and optimizer are restored afterwards. ``model``, ``criterion``, ``optimizer``,
    ``batches`` and ``steps`` are those of :func:`trajectory_gradients`, ``top`` and ``method``
    those of :func:`gradient_spectrum`.

    >>> import torch
    >>> from avalanche_dco.landscape import trajectory_spectrum
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> batches = [(torch.randn(8, 3), torch.randint(2, (8,)))]
    >>> loss = torch.nn.CrossEntropyLoss()
    >>> trajectory_spectrum(model, loss, optimizer, batches, steps=20, top=2).eigenvectors.shape
    torch.Size([8, 2])

    :param progress: wraps the stream of gradients, e.g. ``functools.partial(tqdm, total=steps)``.
    """
    size = FlatParameters(model).size
    # Closed explicitly: after an error the traceback would keep it open, and the model moved.
    with closing(
        trajectory_gradients(model, criterion, optimizer, batches, steps=steps)
    ) as gradients:
        stream = gradients if progress is None else progress(gradients)
        return gradient_spectrum(stream, size=size, count=steps, top=top, method=method)
