"""The methods that are compared: name, constructor, grid, marks. No benchmark asks for a name.

method = get_method("ewc")
for setting in method.settings():
strategy = method.make(setting, model=model, optimizer=optimizer, train_mb_size=128)
method.train(strategy, benchmark.train_stream)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import signature
from itertools import product
from types import MappingProxyType
from typing import Any

from avalanche.training.plugins import GEMPlugin, SupervisedPlugin
from avalanche.training.supervised import Cumulative, JointTraining, Naive
from avalanche.training.templates import SupervisedTemplate

from avalanche_dco import (
    DCO,
    GPM,
    DCOComp,
    DCOCompPlugin,
    DCOKron,
    DCOKronPlugin,
    DCOPlugin,
    GPMPlugin,
)
from avalanche_dco.baselines import (
    AGEMPlugin,
    EWCPlugin,
    LwFPlugin,
    MASPlugin,
    OWMPlugin,
    RWalkPlugin,
    SGPPlugin,
    SynapticIntelligencePlugin,
)
from avalanche_dco.errors import SettingError
from benchmarks.runs.search import Ladder

Setting = Mapping[str, Any]
Constructor = Callable[..., SupervisedTemplate]

REPLAY = "replay"
"""Mark of a method that keeps data of earlier experiences."""
BOUND = "bound"
"""Mark of a method that has all data at hand: what continual learning can hope for."""

_NOT_SETTINGS = {"device", "verbose"}  # they change no result


@dataclass(frozen=True)
class Method:
    """A method to compare, as data.

    :param name: what tables and commands call it.
    :param constructor: called with the setting and the strategy's arguments, all by keyword.
    :param plugin: the class or function whose arguments are the method's settings; None if it
        has none.
    :param grid: for each tuned argument the values to try.
    :param ladders: the arguments that a search tunes, such as the method's strength; every name of
        the grid is among them.
    :param fixed: values that replace the plugin's defaults.
    :param data: the data of earlier experiences that a strategy holds apart from the plugins of
        this package, which know what they keep.
    :param whole_stream: whether it is trained once, on all experiences together.
    """

    name: str
    constructor: Constructor
    plugin: Callable[..., Any] | None = None
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    ladders: Mapping[str, Ladder] = field(default_factory=dict)
    fixed: Setting = field(default_factory=dict)
    data: Callable[[SupervisedTemplate], Any] = lambda strategy: ()
    marks: frozenset[str] = frozenset()
    whole_stream: bool = False

    def settings(self) -> Iterator[dict[str, Any]]:
        """Every combination of the grid's values; one empty setting if there is no grid."""
        for values in product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    @property
    def arguments(self) -> dict[str, Any]:
        """The settings it has, with their defaults; ``Parameter.empty`` for those without."""
        return ({} if self.plugin is None else _arguments(self.plugin)) | dict(self.fixed)

    def check(self, setting: Setting) -> None:
        """Raise unless the method has these settings, and all that it needs are among them."""
        known = self.arguments.keys() | self.grid.keys()
        unknown = setting.keys() - known
        if unknown:
            raise SettingError(
                f"{self.name} has no setting {sorted(unknown)}; it has {sorted(known)}. To set "
                "something for one of several methods, write METHOD.NAME=VALUE."
            )
        needed = self.grid.keys() - setting.keys()
        if needed:
            raise SettingError(
                f"{self.name} needs a value for {sorted(needed)}; "
                f"its grid has {', '.join(f'{name} {self.grid[name]}' for name in sorted(needed))}."
            )

    def resolved(self, setting: Setting) -> dict[str, Any]:
        """Every argument of the method with its value, defaults among them."""
        self.check(setting)
        return {**self.arguments, **setting}

    def make(self, setting: Setting, **arguments: Any) -> SupervisedTemplate:
        """Construct the strategy.

        :param setting: values of the tuned arguments, such as one of :meth:`settings`.
        """
        self.check(setting)
        return self.constructor(**{**self.fixed, **setting}, **arguments)

    def train_inputs(self, stream: Iterable[Any]) -> list[Any]:
        """What the strategy's ``train`` is called with, one after the other."""
        experiences = list(stream)
        return [experiences] if self.whole_stream else experiences

    def train(
        self,
        strategy: SupervisedTemplate,
        stream: Iterable[Any],
        after_experience: Callable[[int], None] = lambda index: None,
        **arguments: Any,
    ) -> None:
        """Train on a stream the way this method does it.

        :param after_experience: called with the number of experiences seen so far, less one.
        """
        for index, train_input in enumerate(self.train_inputs(stream)):
            strategy.train(train_input, **arguments)
            after_experience(len(train_input) - 1 if self.whole_stream else index)


def with_plugin(plugin: Callable[..., SupervisedPlugin]) -> Constructor:
    """A constructor of Naive with one plugin.

    :param plugin: makes the plugin; arguments that it has go to it, all others to the strategy.
    """

    def construct(**arguments: Any) -> SupervisedTemplate:
        own = {name: arguments.pop(name) for name in _arguments(plugin) if name in arguments}
        others = arguments.pop("plugins", None) or []
        return Naive(plugins=[*others, plugin(**own)], **arguments)

    return construct


def _gem(patterns_per_experience: int, memory_strength: float) -> SupervisedPlugin:
    if find_spec("quadprog") is None:
        raise SettingError(
            "gem: Avalanche's GEM solves a quadratic program in every step with the package "
            "quadprog, which is not installed; run: pip install quadprog"
        )
    return GEMPlugin(patterns_per_experience, memory_strength)


def _gem_memory(strategy: SupervisedTemplate) -> list[Any]:
    (plugin,) = (one for one in strategy.plugins if isinstance(one, GEMPlugin))
    return [plugin.memory_x, plugin.memory_y, plugin.memory_tid]


def _arguments(plugin: Callable[..., Any]) -> dict[str, Any]:
    """Arguments with their defaults."""
    return {
        name: parameter.default
        for name, parameter in signature(plugin).parameters.items()
        if name not in _NOT_SETTINGS
    }


def _plugged(name: str, plugin: Callable[..., SupervisedPlugin], **entries: Any) -> Method:
    return Method(name, with_plugin(plugin), plugin, **entries)


# From the weakest to the strongest, with the plugin's default in its place.
_THRESHOLD = Ladder(
    (0.95, 0.99),
    (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, (0.95, 0.99), 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999),
)

_ALL = (
    Method("naive", Naive),
    Method("dco", DCO, DCOPlugin, ladders={"dco_lambda": Ladder(3)}),
    Method("dco-comp", DCOComp, DCOCompPlugin, ladders={"dco_lambda": Ladder(3)}),
    Method("dco-kron", DCOKron, DCOKronPlugin, ladders={"dco_lambda": Ladder(100)}),
    _plugged(
        "ewc",
        EWCPlugin,
        grid={"ewc_lambda": (10, 20, 50, 100, 1000)},
        ladders={"ewc_lambda": Ladder(100)},
        fixed={"half": True},
    ),
    _plugged(
        "si",
        SynapticIntelligencePlugin,
        grid={"si_lambda": (1, 10, 100, 1000)},
        ladders={"si_lambda": Ladder(300)},
        fixed={"eps": 0.1, "max_importance": None},
    ),
    _plugged(
        "rwalk",
        RWalkPlugin,
        grid={"ewc_lambda": (0.01, 0.1, 1, 10)},
        ladders={"ewc_lambda": Ladder(3)},
    ),
    Method(
        "gpm",
        GPM,
        GPMPlugin,
        grid={"threshold": ((0.95, 0.99), 0.95, 0.97)},
        ladders={"threshold": _THRESHOLD},
        fixed={"samples": 300, "threshold_growth": 0.0, "project_head": True},
    ),
    _plugged(
        "sgp",
        SGPPlugin,
        grid={"alpha": (1, 10, 100)},
        ladders={"threshold": _THRESHOLD, "alpha": Ladder(10)},
    ),
    _plugged("owm", OWMPlugin, grid={"alpha": (0.1, 1, 10)}, ladders={"alpha": Ladder(1)}),
    _plugged(
        "mas",
        MASPlugin,
        grid={"lambda_reg": (0.001, 0.01, 0.1, 1)},
        ladders={"lambda_reg": Ladder(0.1)},
    ),
    _plugged(
        "lwf",
        LwFPlugin,
        grid={"alpha": (0.5, 1, 2, 5)},
        ladders={"alpha": Ladder(1)},
        fixed={"temperature": 2},
    ),
    _plugged(
        "a-gem",
        AGEMPlugin,
        fixed={"patterns_per_experience": 256, "sample_size": 256},
        marks=frozenset({REPLAY}),
    ),
    _plugged(
        "gem",
        _gem,
        grid={"memory_strength": (0.0, 0.5)},
        ladders={"memory_strength": Ladder(0.5, (0.0, 0.25, 0.5, 0.75, 1.0))},
        fixed={"patterns_per_experience": 256},
        data=_gem_memory,
        marks=frozenset({REPLAY}),
    ),
    Method(
        "cumulative",
        Cumulative,
        data=lambda strategy: strategy.dataset,
        marks=frozenset({REPLAY, BOUND}),
    ),
    Method(
        "joint",
        JointTraining,
        data=lambda strategy: strategy._experiences,
        marks=frozenset({BOUND}),
        whole_stream=True,
    ),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ALL})
"""All methods by name."""

DIRECTION_CONSTRAINED = frozenset({"dco", "dco-comp"})
"""The methods of this package, beside which all others are baselines."""

NOT_WORKING: Mapping[str, str] = MappingProxyType(
    {
        "bic": "Avalanche 0.6.0's BiC cannot run: it passes MultiStepLR the argument verbose that "
        "torch has removed, and assigns to experience.dataset, which has no setter on benchmarks "
        "made by benchmark_from_datasets."
    }
)
"""Methods one might ask for, and why they are not offered."""


def get_method(name: str) -> Method:
    """Look a method up."""
    if name in NOT_WORKING:
        raise SettingError(f"{name}: {NOT_WORKING[name]} Choose one of {sorted(METHODS)}.")
    if name not in METHODS:
        raise SettingError(f"there is no method '{name}'; choose one of {sorted(METHODS)}.")
    return METHODS[name]
