"""What a log line keeps of a metric's name and value."""

import json
import re
from typing import Any, NamedTuple

import numpy as np
import torch
from avalanche.evaluation.metric_results import AlternativeValues


class NameParts(NamedTuple):
    """The parts of ``Name/eval_phase/test_stream/Task000/Exp003``; None for those it lacks."""

    metric: str
    phase: str | None
    stream: str | None
    task: int | None
    experience: int | None


def parse_name(name: str) -> NameParts:
    """Take Avalanche's full metric name apart.

    Parts that are none of phase, stream, task and experience stay with the metric's name.

    >>> parse_name("Loss_Exp/eval_phase/test_stream/Task000/Exp003")
    NameParts(metric='Loss_Exp', phase='eval', stream='test', task=0, experience=3)
    """
    metric, *rest = name.split("/")
    found: dict[str, str] = {}
    for part in rest:
        match = re.fullmatch(
            r"(?P<phase>.+)_phase|(?P<stream>.+)_stream|Task(?P<task>\d+)|Exp(?P<experience>\d+)",
            part,
        )
        if match is None:
            metric += f"/{part}"
        else:
            found |= {kind: text for kind, text in match.groupdict().items() if text is not None}
    return NameParts(
        metric,
        found.get("phase"),
        found.get("stream"),
        int(found["task"]) if "task" in found else None,
        int(found["experience"]) if "experience" in found else None,
    )


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
