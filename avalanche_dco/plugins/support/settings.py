"""Arguments of plugins: each is declared once, as an attribute of its class.

From the declaration follow ``__init__`` and its signature, the checks when a plugin is built and
not hours later, the ``:param:`` part of the docstring, what a state records, the table of sources
in the documentation, and the benchmarks' presets::

    class MyPlugin(DeclaredSettings, SupervisedPlugin):
        strength: float = setting(default=1.0, at_least=0, meaning="strength of the penalty.")
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, ClassVar, get_args

from typing_extensions import Self, dataclass_transform

from avalanche_dco.errors import SettingError

PAPER, AUTHORS, OURS = "paper", "authors' code", "ours"
"""Where a value comes from: the paper's text, its authors' published scripts, this package."""


@dataclass(frozen=True)
class Published:
    """A value that the paper's text or its authors' code has.

    :param among: the set that the paper names where it does not say which value it used.
    """

    value: Any
    source: str
    among: tuple[Any, ...] = ()


def paper(*everywhere: Any, **on: Any) -> dict[str, Published]:
    """Values of the paper's text.

    :param everywhere: at most one, for all benchmarks that ``on`` does not name.
    :param on: values by benchmark, with underscores: ``split_cifar100=1.0``.
    """
    return _published(PAPER, everywhere, on, ())


def authors(*everywhere: Any, among: tuple[Any, ...] = (), **on: Any) -> dict[str, Published]:
    """Values of the authors' published code; see :func:`paper`."""
    return _published(AUTHORS, everywhere, on, among)


def _published(
    source: str, everywhere: tuple[Any, ...], on: Mapping[str, Any], among: tuple[Any, ...]
) -> dict[str, Published]:
    values = dict(zip([""], everywhere, strict=False))
    values |= {name.replace("_", "-"): value for name, value in on.items()}
    return {name: Published(value, source, among) for name, value in values.items()}


@dataclass(frozen=True)
class Setting:
    """One argument.

    :param default: its default.
    :param meaning: what it is; sentences, of which the first begins with a noun.
    :param symbol: what Algorithm 1 calls it.
    :param published: values of the paper and its authors' code by benchmark; ``""`` for all others.
    :param at_least: the smallest number that it may be.
    :param at_most: the largest.
    :param above: a number that it has to exceed, instead of ``at_least``.
    :param none: what None means; None is refused without it.
    :param choices: the values that it may have, and what each of them means.
    :param accepts: whether a value will do, where none of the above says so.
    :param expected: what ``accepts`` asks for, to end the sentence "it must be".
    :param kw_only: whether it has to be given by its name.
    :param binding: whether a plugin with another value refuses a state.
    :param recorded: whether a state records it.
    """

    default: Any
    meaning: str
    symbol: str = ""
    published: Mapping[str, Published] = field(default_factory=dict)
    at_least: float = 0
    at_most: float = math.inf
    above: float | None = None
    none: str | None = None
    choices: Mapping[Any, str] = field(default_factory=dict)
    accepts: Callable[[Any], bool] | None = None
    expected: str = ""
    kw_only: bool = True
    binding: bool = False
    recorded: bool = True
    name: str = ""
    kind: Any = None

    def but(self, **changes: Any) -> Any:
        """The same declaration with changes, for a subclass."""
        return replace(self, **changes)

    def check(self, value: Any) -> None:
        """Raise a :class:`SettingError` unless the argument may have this value."""
        if value is None and self.none is not None:
            return
        if self.choices:
            if not any(type(value) is type(choice) and value == choice for choice in self.choices):
                self._refuse(value, " or ".join(f"{c!r} ({t})" for c, t in self.choices.items()))
        elif self.accepts is not None:
            if not self.accepts(value):
                self._refuse(value, self.expected)
        else:
            check_number(
                self.name,
                value,
                low=self.at_least if self.above is None else self.above,
                high=self.at_most,
                above_low=self.above is not None,
                whole=int in (self.kind, *get_args(self.kind)),
                meaning=self._brief,
            )

    def _refuse(self, value: Any, expected: str) -> None:
        raise SettingError(f"{self.name}={value!r} must be {expected}.")

    @property
    def _brief(self) -> str:
        """The first clause of the meaning."""
        what = "the " + re.split(r"[.;:](?:\s|$)", self.meaning, maxsplit=1)[0]
        return what if self.none is None else f"{what} (None for {self.none})"

    def published_on(self, benchmark: str) -> Published | None:
        """The published value for a benchmark; None if there is none."""
        return self.published.get(benchmark, self.published.get(""))

    @property
    def source(self) -> str:
        """Where the default comes from."""
        known = self.published.get("")
        return known.source if known is not None and known.value == self.default else OURS

    @property
    def description(self) -> str:
        """What the docstring says of it."""
        parts = [self.meaning]
        parts += [f"``{choice!r}``: {text}." for choice, text in self.choices.items()]
        if self.none is not None:
            parts.append(f"None for {self.none}.")
        return " ".join(parts)

    @property
    def parameter(self) -> inspect.Parameter:
        """What a signature says of it."""
        by = inspect.Parameter.KEYWORD_ONLY
        kind = by if self.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Parameter(self.name, kind, default=self.default, annotation=self.kind)


def check_number(
    name: str,
    value: Any,
    *,
    meaning: str,
    low: float = 0,
    high: float = math.inf,
    above_low: bool = False,
    whole: bool = False,
) -> None:
    """Raise unless ``value`` is a finite number from ``low`` (or above it) to ``high``."""
    number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    finite = number and (whole or math.isfinite(value))
    if finite and low <= value <= high and not (above_low and value == low):
        return
    written = str if whole else "{:g}".format
    bound = f"{'above' if above_low else 'at least'} {written(low)}"
    if high < math.inf:
        bound += f" and at most {written(high)}"
    kind = "whole number of" if whole else "number"
    raise SettingError(f"{name}={value!r} must be a {kind} {bound}: it is {meaning}.")


def setting(*, default: Any, meaning: str, **declaration: Any) -> Any:
    """Declare an argument; see :class:`Setting`."""
    return Setting(default, meaning, **declaration)


@dataclass_transform(kw_only_default=True, field_specifiers=(setting,))
class DeclaredSettings:
    """For plugins whose arguments are declared with :func:`setting`.

    What ``__init__`` should do beyond keeping the arguments goes into ``__post_init__``.
    """

    SETTINGS: ClassVar[Mapping[str, Setting]] = {}
    """The declarations by name, inherited ones first."""
    _SETTINGS: ClassVar[tuple[str, ...]] = ()
    _BINDING: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read the declarations of a class."""
        super().__init_subclass__(**kwargs)
        declared = {name: value for name, value in vars(cls).items() if isinstance(value, Setting)}
        if declared:
            kinds = inspect.get_annotations(cls, eval_str=True)
            own = {n: replace(s, name=n, kind=kinds[n]) for n, s in declared.items()}
            cls.SETTINGS = MappingProxyType({**cls.SETTINGS, **own})
            for name, one in own.items():
                setattr(cls, name, one.default)
            if "__init__" not in vars(cls):
                cls.__init__ = _initialiser(cls.__qualname__, cls.SETTINGS)  # type: ignore[method-assign]
        # For every class: other bases may have these names, too.
        cls._SETTINGS = tuple(n for n, s in cls.SETTINGS.items() if s.recorded)
        cls._BINDING = tuple(n for n, s in cls.SETTINGS.items() if s.binding)
        if "__init__" not in vars(cls) or declared:
            cls.__doc__ = documented(cls.__doc__, cls.SETTINGS)

    def __post_init__(self) -> None:
        """Called when all arguments are set and in range."""

    @classmethod
    def paper(cls, *args: Any, benchmark: str = "", **settings: Any) -> Self:
        """The plugin with the settings of the paper and its authors' code.

        :param args: arguments that may be given by their place.
        :param benchmark: see :meth:`published`.
        :param settings: arguments that are to be others.
        """
        given = {**dict(zip(cls.SETTINGS, args, strict=False)), **settings}
        return cls(**{**cls.published(benchmark), **given})

    @classmethod
    def published(cls, benchmark: str = "") -> dict[str, Any]:
        """The arguments for which the paper or its authors' code has a value, with this value.

        :param benchmark: name of a benchmark, such as ``split-mnist``; one that is not among the
            paper's has the values that hold for all.
        """
        values = ((n, s.published_on(benchmark)) for n, s in cls.SETTINGS.items())
        return {name: one.value for name, one in values if one is not None}


def _initialiser(owner: str, settings: Mapping[str, Setting]) -> Callable[..., None]:
    by_place_first = sorted(settings.values(), key=lambda one: one.kw_only)
    signature = inspect.Signature([one.parameter for one in by_place_first])

    def __init__(self: DeclaredSettings, *args: Any, **given: Any) -> None:  # noqa: N807
        refuse_unknown(type(self).__name__, given, settings)
        bound = signature.bind(*args, **given)
        bound.apply_defaults()
        super(DeclaredSettings, self).__init__()
        for name, value in bound.arguments.items():
            settings[name].check(value)
            setattr(self, name, value)
        self.__post_init__()

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    of_method = signature.replace(parameters=[first, *signature.parameters.values()])
    __init__.__qualname__ = f"{owner}.__init__"
    __init__.__signature__ = of_method  # type: ignore[attr-defined]
    return __init__


def documented(doc: str | None, settings: Mapping[str, Setting]) -> str | None:
    """A docstring with a ``:param:`` entry for every setting."""
    if doc is None:
        return None
    entries = (f":param {name}: {one.description}" for name, one in settings.items())
    return "\n".join([inspect.cleandoc(doc), "", *entries])


def refuse_unknown(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise a TypeError that names the nearest argument if one is not known."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}."
            raise TypeError(f"{owner} has no argument {name!r}; {meant}")
