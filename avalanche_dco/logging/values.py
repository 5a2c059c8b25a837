"""What a log line keeps of a metric's name and value."""

import json
from typing import Any

import numpy as np
import torch
from avalanche.evaluation.metric_results import AlternativeValues

from avalanche_dco.metrics.names import MetricName, NameParts


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
        if part.endswith("_phase"):
            found["phase"] = part.removesuffix("_phase")
        elif part.endswith("_stream"):
            found["stream"] = part.removesuffix("_stream")
        elif part.startswith("Task") and part[4:].isdecimal():
            found["task"] = int(part[4:])
        elif part.startswith("Exp") and part[3:].isdecimal():
            found["experience"] = int(part[3:])
        else:
            metric += f"/{part}"
    return NameParts(metric, **found)


def describe(value: Any) -> tuple[float | None, str | None]:
    """What is kept of a metric's value.

    :param value: what a metric emitted.
    :return: the number, or None for what is not one number; and JSON for what is not: arrays as
        nested lists (NaN and infinities as null), text as a string, anything else (pictures,
        weights) by its type alone.
    """
    if isinstance(value, AlternativeValues):
        value = value.best_supported_value(float, int, torch.Tensor, str)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, int | float | np.number | np.bool_) or (
        isinstance(value, np.ndarray) and value.size == 1
    ):
        return float(value.item() if isinstance(value, np.ndarray) else value), None
    if isinstance(value, np.ndarray):
        return None, json.dumps(_finite(value.tolist()))
    if isinstance(value, str):
        return None, json.dumps(value)
    return None, json.dumps({"type": type(value).__name__})


def _finite(nested: Any) -> Any:
    if isinstance(nested, list):
        return [_finite(one) for one in nested]
    return nested if np.isfinite(nested) else None
