r"""Directions in closed form: the curvature of the outputs, one Kronecker product per layer.

Eq. (general_obj) of the paper penalises :math:`||(G^j)^\top (x - x_j^*)||^2`, with the gradients
:math:`G^j` of task j as columns. With gradients of the network's *outputs*, this is the change of
the outputs on the task's data. Layer by layer, its matrix is nearly a Kronecker product of

.. math:: A = E[a a^\top], \qquad S = E[\delta \delta^\top], \qquad
          ||\Delta W||^2 = tr(S \, \Delta W A \, \Delta W^\top):

:math:`a` is what the layer multiplies by its matrix, and :math:`\delta` the gradient of
:math:`\sum_c e_c \, output_c`, :math:`e \sim N(0, I)`, at the layer's output. The eigenvectors are
rank-one matrices :math:`u_i v_j^\top`, DCO's own directions, with the weights :math:`s_i a_j`. The
implicit step on the penalty moves along direction (i, j) by
:math:`1 / (1 + \lambda s_i a_j)` of what the optimizer wants:

.. math:: \Delta W \leftarrow \Delta W - U_S \Big[ \frac{\lambda s a^\top}{1 + \lambda s a^\top}
          * (U_S^\top \Delta W U_A) \Big] U_A^\top.

**Tasks** add up as :math:`\sum_j A_j \otimes \frac1n \sum_j S_j`, in constant memory.

**Shared matrices.** A matrix that several positions of a sample share (a convolution, a layer that
is called twice) has a gradient G of higher rank, and positions are correlated: factors of single
positions miss most of it. Such layers have the partial traces of the exact matrix instead,
:math:`A = E[G^\top G]` and :math:`S = E[G G^\top] / E||G||^2`, from the gradients of batches: with
e independent from sample to sample, the cross terms of a batch have mean zero.

**Scale.** The product of the factors has the trace of the exact matrix, :math:`E||G||^2`.

**Other parameters** (normalisations, embeddings, recurrent layers) have the diagonal of the same
matrix. Random signs make it cheap: with e independent from sample to sample, the square of a
batch's summed gradient has the sum of the samples' squares as its mean.

Index legend: g groups, o outputs and d inputs of a layer's matrix, see
:mod:`avalanche_dco.core.layers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from avalanche_dco.core.checked import entries, is_count, is_floating, require
from avalanche_dco.core.factors import require_growth
from avalanche_dco.core.layers import at_least_single
from avalanche_dco.errors import ModelError


@dataclass(frozen=True)
class KroneckerFactors:
    """The curvature of one layer, summed over tasks.

    :param A: sum of the second moments of the layer's inputs, g x d x d.
    :param S: sum of the scaled second moments of the gradients at its outputs, g x o x o.
    :param bias: whether the last input is the constant that multiplies the bias.
    :param tasks: n, the number of tasks in the sums.
    """

    A: Tensor
    S: Tensor
    bias: bool = False
    tasks: int = 1

    def __add__(self, other: KroneckerFactors) -> KroneckerFactors:
        outputs = max(self.S.shape[1], other.S.shape[1])
        inputs = max(f.A.shape[1] - f.bias for f in (self, other))
        bias = self.bias or other.bias
        mine, new = (f.grown(outputs, inputs, bias) for f in (self, other))
        return KroneckerFactors(
            mine.A + new.A.to(mine.A), mine.S + new.S.to(mine.S), bias, mine.tasks + new.tasks
        )

    def free_share(self, strength: float) -> float:
        """The share of the layer's directions that is free: the mean of 1 / (1 + lambda s_i a_j).

        :param strength: lambda.
        """
        s, a = (torch.linalg.eigvalsh(factor).clamp(min=0) for factor in (self.S, self.A))
        weights = (strength / self.tasks) * s.unsqueeze(2) * a.unsqueeze(1)
        return float((1 / (1 + weights)).mean())

    def grown(self, outputs: int, inputs: int, bias: bool) -> KroneckerFactors:
        """The same for a layer that has more outputs or inputs, or a bias; these are free.

        :param outputs: o.
        :param inputs: the inputs without the constant.
        :param bias: whether there is a constant.
        """
        more_out, more_in = outputs - self.S.shape[1], inputs + self.bias - self.A.shape[1]
        A, S = self.A, functional.pad(self.S, (0, more_out, 0, more_out))
        if more_in or bias > self.bias:
            kept = torch.arange(A.shape[1], device=A.device)
            if self.bias:
                kept[-1] += more_in  # the constant stays last
            A = A.new_zeros(len(A), inputs + bias, inputs + bias)
            A[:, kept[:, None], kept] = self.A
        return KroneckerFactors(A, S, bias or self.bias, self.tasks)


@dataclass(frozen=True)
class Curvature:
    """The curvature of a network's outputs, summed over tasks.

    :param layers: the factors of every layer, by the name of its weight.
    :param diagonal: the diagonal of the curvature of all other parameters, by name.
    :param tasks: n, the number of tasks in the sum.
    """

    layers: dict[str, KroneckerFactors] = field(default_factory=dict)
    diagonal: dict[str, Tensor] = field(default_factory=dict)
    tasks: int = 0

    def __add__(self, other: Curvature) -> Curvature:
        layers, diagonal = dict(self.layers), dict(self.diagonal)
        for name, factors in other.layers.items():
            layers[name] = layers[name] + factors if name in layers else factors
        for name, part in other.diagonal.items():
            old = diagonal.get(name)
            diagonal[name] = part if old is None else _padded(name, old, part.shape).to(part) + part
        return Curvature(layers, diagonal, self.tasks + other.tasks)

    def strength(self, of_one: float, growth: float) -> float:
        """What the sum of n tasks is multiplied by, if it is to count n^growth times their mean.

        :param of_one: lambda, of one task.
        :param growth: 1 for the sum of the tasks' curvatures, 0 for their mean.
        """
        return of_one * max(self.tasks, 1) ** (growth - 1)

    def state(self) -> dict[str, Any]:
        """Tensors and numbers from which :meth:`from_state` makes the same curvature."""
        return {
            "layers": {name: dict(vars(f)) for name, f in self.layers.items()},
            "diagonal": dict(self.diagonal),
            "tasks": self.tasks,
        }

    @classmethod
    def from_state(cls, state: Any, shapes: Mapping[str, Sequence[int]]) -> Curvature:
        """The curvature that :meth:`state` was taken of; a StateError for anything else.

        :param state: the state.
        :param shapes: of the parameters of the model that it belongs to.
        """
        layers, diagonal, tasks = entries(state, ("layers", "diagonal", "tasks"), "the curvature")
        require(is_count(tasks), "the number of tasks has to be a whole number of at least 0")
        require(isinstance(layers, dict), "the layers have to be a dictionary")
        require(isinstance(diagonal, dict), "the diagonal has to be a dictionary")
        for name, part in diagonal.items():
            fits = name in shapes and is_floating(part, shapes[name])
            require(fits, f"the diagonal of {name!r} does not have the shape of the parameter")
        return cls(
            {name: _factors_of(f, name, shapes.get(name)) for name, f in layers.items()},
            dict(diagonal),
            tasks,
        )

    def free_shares(self, strength: float) -> dict[str, float]:
        """The share of every layer's and other parameter's directions that is still free.

        :param strength: lambda, what the sum over tasks is multiplied by.
        """
        return {name: f.free_share(strength) for name, f in self.layers.items()} | {
            name: float((1 / (1 + strength * part)).mean()) for name, part in self.diagonal.items()
        }

    def adapted_to(self, parameters: Mapping[str, Tensor]) -> Curvature:
        """The same for parameters that may have grown, or moved to another device or precision.

        :param parameters: the model's parameters as they are now.
        """
        biases = {bias_of(name) for name, f in self.layers.items() if f.bias}
        held = self.layers.keys() | self.diagonal.keys() | biases
        missing = sorted(held - parameters.keys())
        if missing:
            raise ModelError(
                f"The model no longer has {', '.join(map(repr, missing))}, for which directions of "
                "past experiences are held. Keep these parameters in the model, or leave them out "
                "from the start with parameter_filter."
            )
        layers = {}
        for name, f in self.layers.items():
            weight = parameters[name]
            inputs = math.prod(weight.shape[1:])
            before = (len(f.S) * f.S.shape[1], f.A.shape[1] - f.bias)
            require_growth(name, before, (weight.shape[0], inputs))
            like = at_least_single(weight)
            moved = KroneckerFactors(f.A.to(like), f.S.to(like), f.bias, f.tasks)
            layers[name] = moved.grown(weight.shape[0] // len(f.S), inputs, f.bias)
        diagonal = {
            name: _padded(name, part.to(at_least_single(parameters[name])), parameters[name].shape)
            for name, part in self.diagonal.items()
        }
        return Curvature(layers, diagonal, self.tasks)


def _factors_of(state: Any, name: Any, shape: Sequence[int] | None) -> KroneckerFactors:
    A, S, bias, tasks = entries(state, ("A", "S", "bias", "tasks"), f"the factors of {name!r}")
    right = shape is not None and len(shape) > 1 and isinstance(bias, bool)
    require(right and is_count(tasks) and tasks > 0, f"{name!r} is not the weight of a layer")
    assert shape is not None
    groups = len(S) if isinstance(S, Tensor) and S.ndim and len(S) else 1
    outputs, inputs = shape[0] // groups, math.prod(shape[1:]) + bias
    fits = is_floating(A, (groups, inputs, inputs)) and is_floating(S, (groups, outputs, outputs))
    require(fits and groups * outputs == shape[0], f"the factors of {name!r} have wrong shapes")
    return KroneckerFactors(A, S, bias, tasks)


def _padded(name: str, part: Tensor, shape: torch.Size) -> Tensor:
    """With zeros for what has grown."""
    require_growth(name, part.shape, shape)
    grown = part.new_zeros(shape)
    grown[tuple(slice(size) for size in part.shape)] = part
    return grown


def bias_of(weight: str) -> str:
    """The name of the bias that belongs to a layer's weight."""
    return weight.removesuffix("weight") + "bias"
