"""Times of the tensor core: the autoencoder, the penalty's steps, and how they grow."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d

from avalanche_dco.core.autoencoder import DirectionAutoencoder
from avalanche_dco.core.compressed_tasks import CompressedTasks
from avalanche_dco.core.compression import compress
from avalanche_dco.core.curvature import CurvatureEstimator
from avalanche_dco.core.damping import DampedUpdate
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.implicit_step import ImplicitStep
from avalanche_dco.core.kronecker import Curvature
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.models import MLP, mlp_256

Row = dict[str, Any]
Weights = dict[str, Tensor]
Action = Callable[[], object]

_STRENGTH, _CLIP, _LR = 100.0, 20.0, 1e-3  # the preset paper's, for MNIST


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    :param k: directions per task.
    :param gradients: m, gradients per autoencoder update.
    :param side: of the square matrices whose product gives the machine's rate.
    :param repeats: how often each action is timed.
    :param tasks: numbers of past tasks.
    :param ks: numbers of directions over which growth is fitted.
    :param widths: hidden widths over which growth is fitted.
    :param samples: of the measurements on data.
    :param seeds: of whole trainings.
    """

    k: int = 1000
    gradients: int = 16
    side: int = 2048
    repeats: int = 5
    tasks: tuple[int, ...] = (2, 5, 10, 20, 50)
    ks: tuple[int, ...] = (125, 250, 500, 1000)
    widths: tuple[int, ...] = (128, 256, 512, 1024)
    samples: int = 1000
    seeds: tuple[int, ...] = (1, 2)


QUICK = Sizes(20, 2, 64, 1, (2, 4), (4, 8), (8, 16), 20, (1,))
"""A few seconds, to see that everything runs; the figures mean nothing."""


def alternately(
    repeats: int, actions: Mapping[str, Action], clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds of each action, taken in turn so that a busy moment affects all alike.

    :param repeats: how often each is timed, after once to warm up.
    :param actions: what to time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats + 1):
        for name, action in actions.items():
            start = clock()
            action()
            seconds[name].append(clock() - start)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def compared(seconds: Mapping[str, float]) -> Iterator[Row]:
    """Times against the first of them.

    :param seconds: by what took them.
    """
    first, *_ = seconds
    for name, spent in seconds.items():
        against = {} if name == first else {"against": first, "ratio": spent / seconds[first]}
        yield {"case": name, "seconds": spent, **against}


def autoencoder(sizes: Sizes) -> Iterator[Row]:
    """An update against its products at the machine's best rate, and autograd against the update.

    :param sizes: how much is measured.
    """
    x = _weights(mlp_256())
    square = torch.randn(sizes.side, sizes.side)
    # Two matrix products per gradient, 2 k d operations each: what the formula cannot do without.
    work = 2 * 2 * sizes.k * _count(x) * sizes.gradients
    # As much work in square products: a short burst runs faster than the machine can sustain.
    products = max(1, round(work / (2 * sizes.side**3)))
    update, rival = "autoencoder update", "the same with autograd through convolutions"
    seconds = alternately(
        sizes.repeats,
        {
            "large": lambda: [square @ square for _ in range(products)],
            update: _update(DirectionAutoencoder(Directions.random(x, sizes.k)), x, sizes),
            rival: _update(AutogradAutoencoder(Directions.random(x, sizes.k)), x, sizes),
        },
    )
    rate = products * 2 * sizes.side**3 / seconds["large"]
    large = f"its matrix products at the rate of large ones, {rate / 1e9:.0f} GFlop/s"
    yield from compared({large: work / rate, update: seconds[update]})
    yield from list(compared({name: seconds[name] for name in (update, rival)}))[1:]


def penalty(sizes: Sizes) -> Iterator[Row]:
    """Every form of the penalty's step against the two matrix products that it consists of.

    :param sizes: how much is measured.
    """
    x = _weights(mlp_256(), leaves=True)
    directions = Directions.random(x, sizes.k)
    steps: dict[str, Action] = {
        "two matrix products per parameter": lambda: [
            (x[name].detach() @ f.V, f.U @ f.V.T) for name, f in directions.factors.items()
        ]
    }
    for couple, title in ((True, "coupled layers"), (False, "uncoupled layers")):
        for form in ("gradient", "implicit"):
            steps[f"{form} step, {title}"] = _step(x, directions, form, couple)
    yield from compared(alternately(10 * sizes.repeats, steps))


def tasks(sizes: Sizes) -> Iterator[Row]:
    """The penalty's step after few and after many tasks, for each method.

    :param sizes: how much is measured.
    """
    model = mlp_256()
    x = _weights(model, leaves=True)
    k = sizes.k // 5  # DCO holds as many for each of all tasks
    learned = _curvature(model, sizes.samples)
    methods: dict[str, list[Any]] = {
        "DCO": [Penalty(Directions.random(x, k * n), torch.randn(k * n)) for n in sizes.tasks],
        "DCO-COMP": [_compressed(x, k, n) for n in sizes.tasks],
        "DCO-KRON": [sum([learned] * n, Curvature()) for n in sizes.tasks],
    }
    for method, held in methods.items():
        steps = {
            str(n): _task_step(model, x, one) for n, one in zip(sizes.tasks, held, strict=True)
        }
        times = list(alternately(4 * sizes.repeats, steps).values())
        for n, one, seconds in zip(sizes.tasks, held, times, strict=True):
            yield {"case": method, "at": n, "seconds": seconds, "memory_mb": _bytes(one) / 1e6}
        yield _growth(f"step of {method}", "tasks", sizes.tasks, times)


def growth(sizes: Sizes) -> Iterator[Row]:
    """The exponents with which times grow in k and in the number of weights d.

    :param sizes: how much is measured.
    """
    x = _weights(mlp_256(), leaves=True)
    networks = [_weights(MLP(784, hidden_size=w), leaves=True) for w in sizes.widths]
    for variable, at, cases in (
        ("k", sizes.ks, [(x, k) for k in sizes.ks]),
        ("d", [_count(net) for net in networks], [(net, sizes.ks[0]) for net in networks]),
    ):
        made = [(net, Directions.random(net, k)) for net, k in cases]
        for name, actions in {
            "autoencoder update": [_update(DirectionAutoencoder(d), w, sizes) for w, d in made],
            "gradient step": [_step(w, d, "gradient") for w, d in made],
            "implicit step": [_step(w, d, "implicit") for w, d in made],
        }.items():
            times = alternately(sizes.repeats, dict(zip(map(str, at), actions, strict=True)))
            yield _growth(name, variable, at, list(times.values()))


def _growth(case: str, variable: str, at: Sequence[int], seconds: list[float]) -> Row:
    slope = np.polyfit(np.log(at), np.log(seconds), 1)[0]
    return {"part": "growth", "case": case, "against": variable, "from": at[0], "at": at[-1],
            "slope": float(slope)}  # fmt: skip


def _weights(model: nn.Module, *, leaves: bool = False) -> Weights:
    return {n: p.detach().clone().requires_grad_(leaves) for n, p in model.named_parameters()}


def _count(x: Weights) -> int:
    return sum(t.numel() for t in x.values())


def _update(autoencoder: Any, x: Weights, sizes: Sizes) -> Action:
    some = [{n: 1e-2 * torch.randn_like(t).detach() for n, t in x.items()} for _ in range(8)]

    def update() -> None:
        for gradient in itertools.islice(itertools.cycle(some), sizes.gradients):
            autoencoder.observe(gradient)
        autoencoder.update()

    return update


def _step(x: Weights, directions: Directions, form: str, couple: bool = True) -> Action:
    kept = {name: t.detach() for name, t in x.items()}
    penalty = Penalty.keeping(kept, directions, couple_layers=couple)
    if form == "gradient":
        return lambda: penalty(x, _STRENGTH, _CLIP).backward()
    implicit = ImplicitStep(penalty, _STRENGTH, dict.fromkeys(x, _LR))
    return lambda: implicit(kept, _CLIP)


def _task_step(model: nn.Module, x: Weights, held: Any) -> Action:
    if not isinstance(held, Curvature):
        penalty = held.penalty() if isinstance(held, CompressedTasks) else held
        return lambda: penalty(x, _STRENGTH, _CLIP).backward()
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)  # so that the optimizer moves it
    damped = DampedUpdate(held, parameters, _STRENGTH)

    def update() -> None:
        damped.before_update()
        damped.after_update()

    return update


def _bytes(held: Any) -> int:
    if isinstance(held, Curvature):
        return sum(f.A.nbytes + f.S.nbytes for f in held.layers.values())
    return held.nbytes


def _compressed(x: Weights, k: int, count: int) -> CompressedTasks | None:
    held = None
    for _ in range(count):
        held, _ = compress(held, Directions.random(x, k // 2), x, k=k, updates=1)
    return held


def _curvature(model: nn.Module, samples: int) -> Curvature:
    estimator = CurvatureEstimator(model, dict(model.named_parameters()))
    estimator.observe(lambda: model(torch.randn(samples, 784)), samples)
    return estimator.finish()


class AutogradAutoencoder:
    """The convolutions of the paper's supplement, one gradient at a time, trained with autograd.

    :param directions: where it starts.
    """

    def __init__(self, directions: Directions):
        self.layers = {
            name: (f.U.requires_grad_(), f.V.requires_grad_())
            for name, f in directions.factors.items()
        }
        self._optimizer = torch.optim.Adam([t for pair in self.layers.values() for t in pair])

    def observe(self, gradient: Weights) -> None:
        """Add the gradient of one reconstruction's loss."""
        self.loss(gradient).backward()

    def update(self) -> None:
        """One step of Adam."""
        self._optimizer.step()
        self._optimizer.zero_grad()

    def loss(self, gradient: Weights) -> Tensor:
        """The squared error of DEC(ENC(gradient))."""
        code = torch.stack([encode(gradient[n], *UV) for n, UV in self.layers.items()]).sum(0)
        errors = [decode(code, *UV) - gradient[n] for n, UV in self.layers.items()]
        return torch.stack([error.square().sum() for error in errors]).sum()


def encode(G: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """A 1 x c convolution, then an r x 1 one, per direction."""
    rows = conv2d(G[None, None], V.T[:, None, None, :])  # 1 x k x r x 1
    return conv2d(rows, U.T[:, None, :, None], groups=U.shape[1]).flatten()


def decode(code: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """The transposed convolutions."""
    rows = conv_transpose2d(code[None, :, None, None], U.T[:, None, :, None], groups=U.shape[1])
    return conv_transpose2d(rows, V.T[:, None, None, :])[0, 0]
