"""Check the values of baselines, whose classes take what they get and fail later."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from avalanche_dco.errors import SettingError
from avalanche_dco.plugins.support.settings import check_number
from benchmarks.methods import Method

_COUNTS = ("patterns_per_experience", "sample_size", "samples", "fisher_mb_size", "delta_t")


def check_values(method: Method, settings: Mapping[str, Any]) -> None:
    """Raise unless values are of the kind of the method's defaults, or of its grid.

    :param settings: values by name, all of which the method has.
    """
    for name, value in settings.items():
        default = method.arguments.get(name, Parameter.empty)
        example = method.grid[name][0] if default is Parameter.empty else default
        meaning = f"a setting of {method.name}"
        if isinstance(example, bool):
            if not isinstance(value, bool):
                raise SettingError(f"{name}={value!r} must be True or False: it is {meaning}.")
        elif name in _COUNTS:
            check_number(name, value, low=1, whole=True, meaning=meaning)
        elif isinstance(example, int | float):
            check_number(name, value, meaning=meaning)


def with_derived(method: Method, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the defaults that follow from other settings, as numbers.

    :param settings: its settings; returned as they are if one that it needs is missing.
    """
    if method.plugin is None or method.grid.keys() - settings.keys():
        return dict(settings)
    made = construct(method, settings)
    return dict(settings) | {
        name: getattr(made, name)
        for name, value in settings.items()
        if value is None and isinstance(getattr(made, name, None), int | float | str)
    }


def construct(method: Method, settings: Mapping[str, Any]) -> Any:
    """The method's plugin; raises a :class:`SettingError` for values that it does not take."""
    assert method.plugin is not None
    try:
        return method.plugin(**settings)
    except SettingError:
        raise
    except (TypeError, ValueError, AssertionError) as error:
        given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        raise SettingError(
            f"{method.name} does not take these settings: {given} ({type(error).__name__}: "
            f"{error}). See the arguments of {getattr(method.plugin, '__name__', method.name)}."
        ) from error
