"""The methods that are compared: name, constructor, grid, marks. No benchmark asks for a name.

method = get_method("ewc")
for setting in method.settings():
strategy = method.make(setting, model=model, optimizer=optimizer, train_mb_size=128)
method.train(strategy, benchmark.train_stream)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import Parameter, signature
from itertools import product
from types import MappingProxyType
from typing import Any

from avalanche.training.plugins import GEMPlugin, SupervisedPlugin
from avalanche.training.supervised import Cumulative, JointTraining, Naive
from avalanche.training.templates import SupervisedTemplate

from avalanche_dco import DCO, GPM, DCOComp, DCOCompPlugin, DCOPlugin
from avalanche_dco.baselines import (
    AGEMPlugin,
    EWCPlugin,
    LwFPlugin,
    MASPlugin,
    RWalkPlugin,
    SynapticIntelligencePlugin,
)
from avalanche_dco.errors import SettingError
from avalanche_dco.plugins.base import DirectionConstrainedPlugin

Setting = Mapping[str, Any]
Constructor = Callable[..., SupervisedTemplate]

REPLAY = "replay"
"""Mark of a method that keeps data of earlier experiences."""
BOUND = "bound"
"""Mark of a method that has all data at hand: what continual learning can hope for."""


@dataclass(frozen=True)
class Method:
    """A method to compare, as data.

    :param name: what tables and commands call it.
    :param constructor: called with the setting and the strategy's arguments, all by keyword.
    :param grid: for each tuned argument the values to try.
    :param fixed: arguments that are not tuned.
    :param others: further arguments that a setting may have.
    :param marks: REPLAY, BOUND.
    :param whole_stream: whether it is trained once, on all experiences together.
    """

    name: str
    constructor: Constructor
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fixed: Setting = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    marks: frozenset[str] = frozenset()
    whole_stream: bool = False

    def settings(self) -> Iterator[dict[str, Any]]:
        """Every combination of the grid's values; one empty setting if there is no grid."""
        for values in product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def check(self, setting: Setting) -> None:
        """Raise unless the method has these settings, and all that it needs are among them.

        :param setting: values by name.
        """
        known = self.grid.keys() | self.fixed.keys() | self.others
        unknown = setting.keys() - known
        if unknown:
            raise SettingError(
                f"{self.name} has no setting {sorted(unknown)}; it has {sorted(known)}."
            )
        needed = self.grid.keys() - setting.keys()
        if needed:
            raise SettingError(
                f"{self.name} needs a value for {sorted(needed)}; "
                f"its grid has {', '.join(f'{name} {self.grid[name]}' for name in sorted(needed))}."
            )

    def make(self, setting: Setting, **arguments: Any) -> SupervisedTemplate:
        """Construct the strategy.

        :param setting: values of the tuned arguments, such as one of :meth:`settings`.
        :param arguments: the strategy's own: model, optimizer, train_epochs, plugins, ...
        """
        self.check(setting)
        return self.constructor(**{**self.fixed, **setting}, **arguments)

    def train(
        self,
        strategy: SupervisedTemplate,
        stream: Iterable[Any],
        after_experience: Callable[[int], None] = lambda index: None,
        **arguments: Any,
    ) -> None:
        """Train on a stream the way this method does it.

        :param strategy: what :meth:`make` made.
        :param stream: the training experiences.
        :param after_experience: called with the number of experiences seen so far, less one.
        :param arguments: passed on to the strategy's ``train``.
        """
        experiences = list(stream)
        if self.whole_stream:
            strategy.train(experiences, **arguments)
            after_experience(len(experiences) - 1)
            return
        for index, experience in enumerate(experiences):
            strategy.train(experience, **arguments)
            after_experience(index)


def with_plugin(plugin: Callable[..., SupervisedPlugin], *names: str) -> Constructor:
    """A constructor of Naive with one plugin.

    :param plugin: the plugin's class.
    :param names: the arguments that go to the plugin; all others go to the strategy.
    """

    def construct(**arguments: Any) -> SupervisedTemplate:
        own = {name: arguments.pop(name) for name in names}
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


def _arguments(plugin: type[DirectionConstrainedPlugin]) -> frozenset[str]:
    """Names of a plugin's arguments, those it shares with its base class among them."""
    return frozenset(
        name
        for cls in (plugin, DirectionConstrainedPlugin)
        for name, parameter in signature(cls.__init__).parameters.items()
        if name != "self" and parameter.kind is not Parameter.VAR_KEYWORD
    )


_ALL = (
    Method("naive", Naive),
    Method("dco", DCO, others=_arguments(DCOPlugin)),
    Method("dco-comp", DCOComp, others=_arguments(DCOCompPlugin)),
    Method(
        "ewc",
        with_plugin(EWCPlugin, "ewc_lambda", "half"),
        grid={"ewc_lambda": (10, 20, 50, 100, 1000)},
        fixed={"half": True},
    ),
    Method(
        "si",
        with_plugin(SynapticIntelligencePlugin, "si_lambda", "eps", "max_importance"),
        grid={"si_lambda": (1, 10, 100, 1000)},
        fixed={"eps": 0.1, "max_importance": None},
    ),
    Method(
        "rwalk", with_plugin(RWalkPlugin, "ewc_lambda"), grid={"ewc_lambda": (0.01, 0.1, 1, 10)}
    ),
    Method(
        "gpm",
        GPM,
        grid={"threshold": ((0.95, 0.99), 0.95, 0.97)},
        fixed={"samples": 300, "threshold_growth": 0.0, "project_head": True},
    ),
    Method("mas", with_plugin(MASPlugin, "lambda_reg"), grid={"lambda_reg": (0.001, 0.01, 0.1, 1)}),
    Method(
        "lwf",
        with_plugin(LwFPlugin, "alpha", "temperature"),
        grid={"alpha": (0.5, 1, 2, 5)},
        fixed={"temperature": 2},
    ),
    Method(
        "a-gem",
        with_plugin(AGEMPlugin, "patterns_per_experience", "sample_size"),
        fixed={"patterns_per_experience": 256, "sample_size": 256},
        marks=frozenset({REPLAY}),
    ),
    Method(
        "gem",
        with_plugin(_gem, "patterns_per_experience", "memory_strength"),
        grid={"memory_strength": (0.0, 0.5)},
        fixed={"patterns_per_experience": 256},
        marks=frozenset({REPLAY}),
    ),
    Method("cumulative", Cumulative, marks=frozenset({REPLAY, BOUND})),
    Method("joint", JointTraining, marks=frozenset({BOUND}), whole_stream=True),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ALL})
"""All methods by name."""

NOT_WORKING: Mapping[str, str] = MappingProxyType(
    {
        "bic": "Avalanche 0.6.0's BiC cannot run: it passes MultiStepLR the argument verbose that "
        "torch has removed, and assigns to experience.dataset, which has no setter on benchmarks "
        "made by benchmark_from_datasets."
    }
)
"""Methods one might ask for, and why they are not offered."""


def get_method(name: str) -> Method:
    """Look a method up.

    :param name: its name, such as ``ewc``.
    """
    if name in NOT_WORKING:
        raise SettingError(f"{name}: {NOT_WORKING[name]} Choose one of {sorted(METHODS)}.")
    if name not in METHODS:
        raise SettingError(f"there is no method '{name}'; choose one of {sorted(METHODS)}.")
    return METHODS[name]
