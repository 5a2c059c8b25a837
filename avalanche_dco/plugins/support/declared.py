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
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from typing_extensions import Self, dataclass_transform

from avalanche_dco.plugins.support.settings import Setting


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
