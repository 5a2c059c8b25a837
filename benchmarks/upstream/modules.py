"""A module of another package, composed of definitions."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from avalanche_dco.errors import DCOError
from benchmarks.upstream.layout import laid_out
from benchmarks.upstream.needed import Needed
from benchmarks.upstream.rendering import Rendered, portable
from benchmarks.upstream.sources import Import, Name

_REFERENCE = re.compile(r":(?:mod|class|func|meth):`~?avalanche_dco\.(?:\w+\.)*(\w+)`")


@dataclass(frozen=True)
class Target:
    """A module to write.

    :param path: where, from the root of the repository.
    :param sources: the modules whose definitions go there; a name that ends with a dot stands for
        all modules of a package that no other target has.
    :param exported: what ``__all__`` names.
    :param main: what it does if it is run as a program.
    :param explained: whether docstrings of single source modules are taken over as sections.
    """

    path: str
    sources: tuple[str, ...]
    doc: str
    exported: tuple[str, ...] = ()
    main: str = ""
    explained: bool = False

    @property
    def name(self) -> str:
        """The full name of the module."""
        return self.path.removesuffix(".py").replace("/", ".")


def composed(needed: Needed, targets: Iterable[Target]) -> dict[str, str]:
    """The text of each target by its path.

    :param needed: the definitions; every one of them belongs to a target.
    """
    targets = list(targets)
    place = {name: _target_of(name, targets) for name in needed.in_order}
    _refuse_cycles(needed, place)
    _refuse_same_names(place)
    return {
        target.path: _composed(needed, target, place)
        for target in targets
        if target in place.values()
    }


def _refuse_cycles(needed: Needed, place: Mapping[Name, Target]) -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for name, uses in needed.uses.items():
        graph[place[name].path] |= {place[used].path for used in uses} - {place[name].path}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise DCOError(
            f"the modules to write would import each other: {' -> '.join(error.args[1])}. Put "
            "their sources into other modules."
        ) from error


def _target_of(name: Name, targets: list[Target]) -> Target:
    fitting = [
        (len(source), number)
        for number, target in enumerate(targets)
        for source in target.sources
        if name.module == source or (source.endswith(".") and name.module.startswith(source))
    ]
    assert fitting, f"no module to write takes {name.module}"
    return targets[max(fitting)[1]]


def _refuse_same_names(place: Mapping[Name, Target]) -> None:
    found: dict[tuple[str, str], str] = {}
    for name, target in place.items():
        other = found.setdefault((target.path, name.name), name.module)
        if other != name.module:
            raise DCOError(
                f"{name.name} of {other} and of {name.module} would both go to {target.path}. "
                "Rename one of them, or put their modules into other targets."
            )


def _composed(needed: Needed, target: Target, place: Mapping[Name, Target]) -> str:
    imports: set[Import] = set()
    body = ""
    previous: Name | None = None
    for name in (name for name in needed.in_order if place[name] is target):
        rendered = Rendered(needed, name)
        imports |= needed.imports[name] | rendered.imports
        for used in needed.uses[name]:
            if place[used] is not target:
                imports.add(Import(place[used].name, used.name, used.name))
        constants = previous is not None and all(map(needed.library.is_constant, (previous, name)))
        together = constants and previous is not None and previous.module == name.module
        body += ("\n" if together else "\n\n\n") + rendered.text.strip("\n")
        previous = name
    doc = _doc(needed, target)
    quotes = 'r"""' if "\\" in doc else '"""'
    head = f'{quotes}{doc}\n"""\n\nfrom __future__ import annotations\n\n{_written(imports)}'
    exported = f"\n\n\n__all__ = {list(target.exported)}" if target.exported else ""
    main = f'\n\n\nif __name__ == "__main__":\n    {target.main}' if target.main else ""
    return laid_out(_REFERENCE.sub(r"``\1``", f"{head}{body}{exported}{main}\n"))


def _doc(needed: Needed, target: Target) -> str:
    sections = [target.doc]
    modules = [source for source in target.sources if not source.endswith(".")]
    for module in modules if target.explained else ():
        title = module.split(".")[-1]
        sections.append(f"{title}\n{'-' * len(title)}\n\n{needed.library.module(module).doc}")
    return "\n\n".join(sections)


def _written(imports: Iterable[Import]) -> str:
    """Import statements: the standard library's, others', Avalanche's, those for typing."""
    groups: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    found = {portable(one) for one in imports}
    typed = {one for one in found if one.typing_only}
    if typed:
        found.add(Import("typing", "TYPE_CHECKING", "TYPE_CHECKING"))
    needed_anyway = {one.bound for one in found - typed}
    for one in found:
        if one.typing_only and one.bound in needed_anyway:
            continue
        root = one.module.split(".")[0]
        group = 3 if one.typing_only else 2 if root == "avalanche" else 1
        group = 0 if root in sys.stdlib_module_names else group
        if one.attribute:
            alias = "" if one.bound == one.attribute else f" as {one.bound}"
            groups[group][one.module].add(one.attribute + alias)
        else:
            alias = "" if one.bound == one.module else f" as {one.bound}"
            groups[group][f"import {one.module}{alias}"] = set()
    written = []
    for group, modules in sorted(groups.items()):
        lines = [
            f"from {module} import ({', '.join(sorted(names))})" if names else module
            for module, names in sorted(modules.items(), key=lambda m: (bool(m[1]), m[0]))
        ]
        if group == 3:
            lines = ["if TYPE_CHECKING:", *(f"    {line}" for line in lines)]
        written.append("\n".join(lines))
    return "\n\n".join(written)
