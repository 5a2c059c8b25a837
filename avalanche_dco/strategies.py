"""Ready-made strategies: Avalanche's template with one plugin of this package.

A strategy has the arguments of Avalanche's template and those that its plugin declares.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from avalanche.training.templates import SupervisedTemplate

from avalanche_dco.baselines.gpm import GPMPlugin
from avalanche_dco.plugins.dco import DCOPlugin
from avalanche_dco.plugins.dco_comp import DCOCompPlugin
from avalanche_dco.plugins.dco_kron import DCOKronPlugin
from avalanche_dco.plugins.support.settings import DeclaredSettings, documented, refuse_unknown

__all__ = ["DCO", "GPM", "DCOComp", "DCOKron"]

_TEMPLATE = {
    "model": "PyTorch model.",
    "optimizer": "PyTorch optimizer.",
    "criterion": "loss function.",
    "train_mb_size": "mini-batch size for training.",
    "train_epochs": "number of training epochs.",
    "eval_mb_size": "mini-batch size for evaluation; None for that of training.",
    "device": "PyTorch device to run the model on.",
    "plugins": "further plugins.",
    "evaluator": "EvaluationPlugin for logging and metrics, or a function that makes one.",
    "eval_every": "frequency of the calls to `eval` inside the training loop: -1 for none, 0 for "
    "one after each experience, n for one after n epochs or iterations.",
    "peval_mode": "whether `eval_every` counts epochs (`'epoch'`) or iterations (`'iteration'`).",
}
"""The template's arguments."""


class _PluginStrategy(SupervisedTemplate):
    """Avalanche's template with one more plugin, whose arguments are among the strategy's."""

    _PLUGIN: ClassVar[type[DeclaredSettings]]
    _PLUGIN_FIRST: ClassVar[bool] = False
    """Whether other plugins that look at the weights have to see what this one made of them."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give a strategy the arguments of its plugin."""
        super().__init_subclass__(**kwargs)
        if "_PLUGIN" in vars(cls):
            cls.__init__ = _initialiser(cls)  # type: ignore[method-assign]
            described = "\n".join(f":param {name}: {text}" for name, text in _TEMPLATE.items())
            if cls.__doc__ is not None:
                cls.__doc__ = f"{documented(cls.__doc__, cls._PLUGIN.SETTINGS)}\n{described}"


def _initialiser(cls: type[_PluginStrategy]) -> Callable[..., None]:
    """Hands each argument to the plugin if it declares it, to the template otherwise."""
    settings, template = cls._PLUGIN.SETTINGS, inspect.signature(SupervisedTemplate).parameters
    base = [template[name] for name in _TEMPLATE if name != "eval_mb_size"]
    base.append(template["eval_mb_size"].replace(default=None))
    own = [s.parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for s in settings.values()]
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.Signature([first, *base[:3], *own, *base[3:]])

    def __init__(self: _PluginStrategy, **arguments: Any) -> None:  # noqa: N807
        refuse_unknown(type(self).__name__, arguments, signature.parameters)
        plugin = cls._PLUGIN(**{n: arguments.pop(n) for n in settings if n in arguments})
        others = arguments.pop("plugins", None) or ()
        plugins = [plugin, *others] if cls._PLUGIN_FIRST else [*others, plugin]
        arguments.setdefault("eval_mb_size", None)
        super(cls, self).__init__(plugins=plugins, **arguments)  # type: ignore[call-arg]

    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__


class DCO(_PluginStrategy):
    """Direction-Constrained Optimization strategy.

    See :class:`avalanche_dco.DCOPlugin` for details. This strategy does not use task identities.
    With ``eval_every=0``, `eval` sees the weights after the push into the cone.

    >>> import torch
    >>> from avalanche_dco import DCO
    >>> from avalanche_dco.models import MLP
    >>> model = MLP(64, hidden_size=50)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> strategy = DCO(model=model, optimizer=optimizer, k=1000)
    """

    _PLUGIN = DCOPlugin
    _PLUGIN_FIRST = True


class DCOComp(_PluginStrategy):
    """Compressed Direction-Constrained Optimization strategy (DCO-COMP).

    As :class:`avalanche_dco.DCO`, with the plugin :class:`avalanche_dco.DCOCompPlugin`.

    >>> import torch
    >>> from avalanche_dco import DCOComp
    >>> from avalanche_dco.models import MLP
    >>> model = MLP(64, hidden_size=50)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> strategy = DCOComp(model=model, optimizer=optimizer, k=1000)
    """

    _PLUGIN = DCOCompPlugin
    _PLUGIN_FIRST = True


class DCOKron(_PluginStrategy):
    """Direction-Constrained Optimization strategy with directions in closed form (DCO-KRON).

    See :class:`avalanche_dco.DCOKronPlugin` for details. This strategy does not use task
    identities.

    >>> import torch
    >>> from avalanche_dco import DCOKron
    >>> from avalanche_dco.models import MLP
    >>> model = MLP(64, hidden_size=50)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> strategy = DCOKron(model=model, optimizer=optimizer)
    """

    _PLUGIN = DCOKronPlugin


class GPM(_PluginStrategy):
    """Gradient Projection Memory (Saha, Garg and Roy, ICLR 2021).

    To use it inside another strategy, pass :class:`~avalanche_dco.baselines.gpm.GPMPlugin` as one
    of its plugins.

    >>> import torch
    >>> from avalanche_dco import GPM
    >>> from avalanche_dco.models import MLP
    >>> model = MLP(64, hidden_size=50)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> strategy = GPM(model=model, optimizer=optimizer, threshold=0.97)
    """

    _PLUGIN = GPMPlugin
