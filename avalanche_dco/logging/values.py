"""What a log line keeps of a metric's name and value."""

import json
import math
from numbers import Complex, Real
from typing import Any

import numpy as np
import torch
from avalanche.evaluation.metric_results import AlternativeValues
from torch import Tensor

from avalanche_dco.metrics.names import MetricName, NameParts

_NUMBERED = {"Task": "task", "Exp": "experience"}
_LONGEST_INTEGER = 2000
"""Bits; Python may refuse to write, or to read, more than 640 digits."""


def parse_name(name: str) -> NameParts:
    """The parts of a metric's full name.

    The metrics of this package have them as data. Avalanche's own are text; what is none of phase,
    stream, task and experience in it stays with the metric's name.

    >>> parse_name("Loss_Exp/eval_phase/test_stream/Task000/Exp003")
    NameParts(metric='Loss_Exp', phase='eval', stream='test', task=0, experience=3)
    """
    if isinstance(name, MetricName):
        return name.parts
    metric, *rest = name.split("/")
    found: dict[str, Any] = {}
    for part in rest:
        text, _, kind = part.rpartition("_")
        prefix = part.rstrip("0123456789")
        digits = part[len(prefix) :]
        if text and kind in ("phase", "stream"):
            found[kind] = text
        elif prefix in _NUMBERED and 0 < len(digits) <= 18:
            found[_NUMBERED[prefix]] = int(digits)
        else:
            metric += f"/{part}"
    return NameParts(metric, **found)


def describe(value: Any) -> tuple[float | None, str | None]:
    """What is kept of a metric's value: no value is refused.

    :param value: what a metric emitted.
    :return: the number, or None for what is not one number; and JSON for what a float does not
        hold: integers that no float equals as integers (in hexadecimal text beyond 2000 bits),
        fractions and complex numbers as text, arrays and lists as nested lists (NaN and
        infinities as null), text as a string, anything else (pictures, weights) by its type alone.
    """
    if isinstance(value, AlternativeValues):
        value = value.best_supported_value(float, int, torch.Tensor, str)
    plain = _plain(value)
    if isinstance(plain, Real):
        return _number(plain)
    return None, json.dumps(_as_json(plain))


def position(x: Any) -> int | float | None:
    """What is kept of a metric's x position.

    :param x: what a metric gave, as a rule the number of training iterations.
    :return: an integer where it is one (of at most 64 bits), otherwise the nearest float; None
        for what is not a number or larger than any float.
    """
    exact: Any = _plain(x)
    number = _number(exact)[0] if isinstance(exact, Real) else None
    whole = number is not None and number.is_integer() and -(2**63) <= exact < 2**63
    return int(exact) if whole else number


def _plain(value: Any) -> Any:
    """Tensors, arrays and their scalars as Python's numbers, and lists of them."""
    if isinstance(value, Tensor) and not (value.is_meta or value.is_nested):
        value = value.detach()
        value = value.dequantize() if value.is_quantized else value
        value = value if value.layout == torch.strided else value.to_dense()
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, np.ndarray):
        return value.item() if value.size == 1 else value.tolist()
    return value.item() if isinstance(value, np.number | np.bool_) else value


def _number(value: Real) -> tuple[float | None, str | None]:
    """The nearest float if there is one, and the number itself as JSON if that is another one."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if number == value or math.isnan(number):
        return number, None
    return number if math.isfinite(number) else None, json.dumps(_as_json(value))


def _as_json(plain: Any) -> Any:
    if isinstance(plain, list | tuple):
        return [_as_json(one) for one in plain]
    if isinstance(plain, float):
        return plain if math.isfinite(plain) else None
    if isinstance(plain, int) and plain.bit_length() > _LONGEST_INTEGER:
        return hex(plain)
    if isinstance(plain, str | int):
        return plain
    return str(plain) if isinstance(plain, Complex) else {"type": type(plain).__name__}
