"""Checks of arguments, made when a plugin is built and not hours later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from avalanche_dco.errors import SettingError


def check_count(
    name: str, value: Any, *, at_least: int, meaning: str, at_most: int | None = None
) -> None:
    """Raise unless ``value`` is a whole number from ``at_least`` to ``at_most``."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or int(value) < at_least or (at_most is not None and int(value) > at_most):
        bound = f"at least {at_least}" + ("" if at_most is None else f" and at most {at_most}")
        raise SettingError(f"{name}={value!r} must be a whole number of {bound}: it is {meaning}.")


def check_number(
    name: str,
    value: Any,
    *,
    meaning: str,
    low: float = 0.0,
    high: float = math.inf,
    above_low: bool = False,
) -> None:
    """Raise unless ``value`` is a finite number from ``low`` to ``high``.

    :param above_low: whether ``low`` itself is excluded.
    """
    real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if real and low <= value <= high and not (above_low and value == low):
        return
    bound = f"above {low:g}" if above_low else f"at least {low:g}"
    if high < math.inf:
        bound += f" and at most {high:g}"
    raise SettingError(f"{name}={value!r} must be a number {bound}: it is {meaning}.")


_COUNTS: dict[str, tuple[int, str]] = {
    "k": (1, "the number of prohibited directions"),
    "push_epochs": (0, "the epochs N of step 2"),
    "averaged_points": (1, "the C points of each mean"),
    "gradients_per_update": (1, "the m gradients per autoencoder update"),
    "tau": (1, "the gradients per move of the model in step 3"),
    "autoencoder_updates": (0, "the number of autoencoder updates (0 for no directions at all)"),
}
_NUMBERS: dict[str, tuple[dict[str, Any], str]] = {
    "dco_lambda": ({}, "the strength of the penalty"),
    "gamma_1": ({"high": 1}, "the pull towards x_0 in step 1"),
    "gamma_2": ({"high": 1}, "the pull towards x* in step 3"),
    "theta": ({}, "the length of the push into the cone"),
    "rho": ({"above_low": True}, "the factor on the autoencoder's loss"),
    "autoencoder_lr": ({"above_low": True}, "Adam's learning rate"),
    "trajectory_lr": ({}, "the model's learning rate in step 3"),
}
_NUMBERS_OR_NONE: dict[str, tuple[dict[str, Any], str]] = {
    "autoencoder_tolerance": (
        {"high": 1},
        "the relative improvement below which training stops (None for never)",
    ),
    "max_penalty_grad_norm": (
        {"above_low": True},
        "the longest gradient the penalty may have (None for any)",
    ),
    "max_bytes": ({"above_low": True}, "the memory above which to warn (None for never)"),
}


def check_direction_settings(settings: Mapping[str, Any]) -> None:
    """Raise unless all arguments that DCO and DCO-COMP share are in range.

    :param settings: the arguments by name.
    """
    for name, (least, meaning) in _COUNTS.items():
        check_count(name, settings[name], at_least=least, meaning=meaning)
    for name, (bounds, meaning) in _NUMBERS.items():
        check_number(name, settings[name], meaning=meaning, **bounds)
    for name, (bounds, meaning) in _NUMBERS_OR_NONE.items():
        if settings[name] is not None:
            check_number(name, settings[name], meaning=meaning, **bounds)
    if settings["tau"] > settings["gradients_per_update"]:
        raise SettingError(
            f"tau={settings['tau']} must be at most gradients_per_update="
            f"{settings['gradients_per_update']}: the model moves after every tau gradients, and "
            "would not move at all."
        )
    if settings["penalty_step"] not in ("implicit", "gradient"):
        raise SettingError(
            f"penalty_step={settings['penalty_step']!r} must be 'implicit' (the penalty's exact "
            "implicit step after every update, stable with any learning rate) or 'gradient' (the "
            "paper's: its gradient is added to the loss's)."
        )
    if not isinstance(settings["move_unused"], bool):
        raise SettingError(
            f"move_unused={settings['move_unused']!r} must be False (parameters that an experience "
            "does not use stay as they are) or True (the penalty moves them too, as in the paper)."
        )
    if not isinstance(settings["couple_layers"], bool):
        raise SettingError(
            f"couple_layers={settings['couple_layers']!r} must be True (the penalty is on codes "
            "summed over all parameters, as in the paper) or False (on those of every parameter)."
        )
    if settings["gradient_source"] not in ("criterion", "logits"):
        raise SettingError(
            f"gradient_source={settings['gradient_source']!r} must be 'criterion' (the paper's: "
            "gradients of the loss along the optimizer's trajectory) or 'logits' (gradients of "
            "randomly weighted outputs at x*)."
        )
    chooses = settings["parameter_filter"]
    if chooses is not None and not callable(chooses):
        raise SettingError(
            f"parameter_filter={chooses!r} must be a function of a parameter's name and the "
            "parameter that tells whether to constrain it, for example "
            "lambda name, parameter: not name.startswith('head')."
        )
