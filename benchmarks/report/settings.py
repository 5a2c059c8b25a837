"""Settings of methods: their defaults, their sources, and how two differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Any

from avalanche_dco import DCOPlugin
from avalanche_dco.errors import SettingError
from avalanche_dco.plugins.support.settings import DeclaredSettings, Setting
from benchmarks.methods import METHODS, get_method
from benchmarks.report.statistics import NONE
from benchmarks.runs.training import Training

PROPOSED = ("dco", "dco-comp")
"""What the paper proposes."""

_LONGEST_VALUE = 24


def default_settings(method: str) -> dict[str, Any]:
    """What a method's settings are where nothing is said; nothing for methods not known here.

    Those that DCO and DCO-COMP share are the paper's for DCO, with which most of the kept results
    were made.
    """
    if method not in METHODS:
        return {}
    published = DCOPlugin.published() if method in PROPOSED else {}
    arguments = METHODS[method].arguments | published
    return {name: value for name, value in arguments.items() if value is not Parameter.empty}


def sources(results: Path, names: list[str]) -> list[dict[str, str]]:
    """A table: where each setting of a method comes from.

    :param results: not used; a table is made from results otherwise.
    :param names: the method; a second one, if any, whose settings are left out where they are the
        same.
    """
    declared, *others = (_declared(name) for name in names)
    return [
        {
            "argument": f"`{name}`",
            "symbol": one.symbol,
            "default": f"`{one.default!r}`",
            "published": "; ".join(_publications(one)) or NONE,
            "source of the default": one.source,
        }
        for name, one in declared.items()
        if all(_sourced(one) != _sourced(other.get(name)) for other in others)
    ]


def _declared(method: str) -> Mapping[str, Setting]:
    plugin = get_method(method).plugin
    if not (isinstance(plugin, type) and issubclass(plugin, DeclaredSettings)):
        raise SettingError(f"{method} does not declare its settings; dco, dco-comp and others do.")
    return plugin.SETTINGS


def _sourced(one: Setting | None) -> Any:
    return None if one is None else (one.default, one.published)


def _publications(one: Setting) -> Iterator[str]:
    """``value (source)`` for all benchmarks, then for those with a value of their own."""
    for benchmark, known in one.published.items():
        where = f"{benchmark}: " if benchmark else ""
        yield f"{where}`{known.value!r}` ({known.source})"
    for among in dict.fromkeys(known.among for known in one.published.values() if known.among):
        yield f"the paper has the set {', '.join(map(str, among))}"


def changed_settings(method: str, settings: Mapping[str, Any]) -> list[str]:
    """``name=value`` for the settings that are not the method's defaults."""
    defaults = default_settings(method)
    return [
        f"{name}={_short(value)}"
        for name, value in settings.items()
        if name not in defaults or key_of(value) != key_of(defaults[name])
    ]


def difference_words(own: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> list[str]:
    """In words, everything that is not the same in all others."""
    others = list(others)
    names = dict.fromkeys(name for settings in (own, *others) for name in settings)
    return [
        in_words(name, own)
        for name in names
        if any(
            name not in own or name not in other or key_of(own[name]) != key_of(other[name])
            for other in others
        )
    ]


_WORDS = {
    "lr": "learning rate {}",
    "later_lr_factor": "learning rate times {} after the first task",
    "epochs": "{} epochs",
    "batch_size": "batches of {}",
    "experiences": "first {} tasks only",
    "precision": "{}",
    "k": "{} directions",
    "new_task_k": "{} directions of a new task",
    "compression_updates": "{} compression updates",
    "gradients_per_update": "{} gradients per update",
    "ewc_lambda": "strength {}",
    "si_lambda": "strength {}",
    "lambda_reg": "strength {}",
    "dco_lambda": "strength {}",
    "gamma_1": "pull {}",
    "autoencoder_updates": "{} autoencoder updates",
    "autoencoder_lr_decay": "autoencoder's learning rate times {} per update",
    "max_penalty_grad_norm": "clip {}",
}
_WORDS_OF_VALUES = {
    ("weight_decay", 0): "no weight decay",
    ("later_lr_factor", 1): "one learning rate for all tasks",
    ("gamma_1", 0): "no pull",
    ("couple_layers", False): "uncoupled layers",
    ("couple_layers", True): "coupled layers",
    ("pull_first", True): "the first task pulled, too",
    ("pull_first", False): "the first task not pulled",
    ("autoencoder_lr_decay", 1): "no decay of the autoencoder's learning rate",
    ("layer_weights", "equal"): "equal layer weights",
    ("layer_weights", "decreasing"): "decreasing layer weights",
    ("shrink_new_task_k", False): "as many for every task",
    ("shrink_new_task_k", True): "fewer for later tasks",
    ("compression_start", "previous"): "compression from the previous columns",
    ("compression_start", "noise"): "compression from noise",
    ("compression_loss", "directions"): "the paper's compression loss",
    ("compression_loss", "gradients"): "our compression loss",
    ("gradient_source", "logits"): "gradients of the outputs",
    ("gradient_source", "criterion"): "gradients of the criterion",
    ("penalty_step", "gradient"): "the penalty's gradient step",
    ("penalty_step", "implicit"): "the penalty's implicit step",
}


def in_words(name: str, settings: Mapping[str, Any]) -> str:
    """One setting of a method or a training."""
    if name == "matched_to":  # the numbers in it say what DCO's settings say
        return "compute as DCO's" if name in settings else "compute by epochs"
    usual = Training.defaults()
    if name not in settings and name not in usual:
        return f"{name.replace('_', ' ')} unset"
    value = settings.get(name, usual.get(name))
    if name == "experiences" and value is None:
        return "all experiences"
    hashable = not isinstance(value, list | dict)
    if hashable and (name, value) in _WORDS_OF_VALUES:
        return _WORDS_OF_VALUES[name, value]
    return _WORDS.get(name, name.replace("_", " ") + " {}").format(_short(value))


def is_number(value: Any) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def key_of(value: Any) -> str:
    """Equal for equal values, whatever JSON made of them: 1 and 1.0, lists and tuples."""
    return json.dumps(_plain(value), sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " and ".join(map(_short, value))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
