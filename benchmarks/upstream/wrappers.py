"""Strategies as Avalanche has them: the template with one plugin, and all arguments by name."""

from __future__ import annotations

import ast
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from avalanche_dco import strategies
from benchmarks.upstream.layout import laid_out

PATH = "avalanche/training/supervised/dco.py"
NAMES = ("DCO", "DCOComp", "DCOKron")
_HEAD = '''"""Strategies of Direction-Constrained Optimization."""

from typing import Callable, List, Optional, Union

import torch
from torch.nn import CrossEntropyLoss, Module
from torch.optim import Optimizer

from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import DCOCompPlugin, DCOKronPlugin, DCOPlugin
from avalanche.training.plugins.evaluation import EvaluationPlugin, default_evaluator
from avalanche.training.templates import SupervisedTemplate
'''
_BEFORE = ("model: Module", "optimizer: Optimizer", "criterion=CrossEntropyLoss()")
_AFTER = (
    "train_mb_size: int = 1",
    "train_epochs: int = 1",
    "eval_mb_size: Optional[int] = None",
    'device: Union[str, torch.device] = "cpu"',
    "plugins: Optional[List[SupervisedPlugin]] = None",
    "evaluator: Union[EvaluationPlugin, Callable[[], EvaluationPlugin]] = default_evaluator",
    "eval_every=-1",
    "**base_kwargs",
)
_CLASS = '''
class {name}(SupervisedTemplate):
    """{doc}
    """

    def __init__(self, *, {signature}):
        """Init.

        {described}
        """
        plugin = {plugin}({settings})
        others = [] if plugins is None else list(plugins)
        super().__init__({arguments}, plugins={plugins}, **base_kwargs)
'''


def strategy_wrappers(without: frozenset[str]) -> str:
    """The module with the strategies.

    :param without: settings of plugins that are left out, ``Class.setting``.
    """
    left_out = {name.split(".")[1] for name in without}
    tree = ast.parse(Path(strategies.__file__).read_text())
    docs = {n.name: ast.get_docstring(n) for n in tree.body if isinstance(n, ast.ClassDef)}
    classes = [_wrapper(name, docs[name] or "", left_out) for name in NAMES]
    exported = f"\n\n__all__ = {list(NAMES)}\n"
    return laid_out(_HEAD + "".join(classes) + exported)


def _wrapper(name: str, doc: str, left_out: set[str]) -> str:
    strategy = getattr(strategies, name)
    plugin = strategy._PLUGIN
    settings = {n: one for n, one in plugin.SETTINGS.items() if n not in left_out}
    own = [f"{n}: {_kind(one.kind)} = {one.default!r}" for n, one in settings.items()]
    arguments = [argument.split(":")[0].split("=")[0] for argument in (*_BEFORE, *_AFTER)]
    first, *_, last = settings
    text = f"for this and all arguments up to `{last}` see :class:`{plugin.__name__}`."
    described = {**strategies._TEMPLATE, first: text}
    described["base_kwargs"] = "any additional :class:`BaseTemplate` constructor arguments."
    order = [*arguments[:3], first, *arguments[3:-1], "base_kwargs"]
    return _CLASS.format(
        name=name,
        doc=doc.replace("avalanche_dco.", "").replace("\n", "\n    "),
        signature=", ".join([*_BEFORE, *own, *_AFTER]),
        described="\n        ".join(f":param {n}: {described[n]}" for n in order),
        plugin=plugin.__name__,
        settings=", ".join(f"{n}={n}" for n in settings),
        arguments=", ".join(f"{n}={n}" for n in arguments[:-1] if n != "plugins"),
        plugins="[plugin, *others]" if strategy._PLUGIN_FIRST else "[*others, plugin]",
    )


def _kind(kind: Any) -> str:
    """A type as Python 3.8 writes it."""
    parts = get_args(kind)
    if NoneType in parts:
        (inner,) = (part for part in parts if part is not NoneType)
        return f"Optional[{_kind(inner)}]"
    if get_origin(kind) is Literal:
        return "str"
    return getattr(kind, "__name__", "Callable")
