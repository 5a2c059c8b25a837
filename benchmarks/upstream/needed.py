"""What some definitions need of the modules that they are in.

Definitions are followed from name to name, through modules, and members of classes from attribute
to attribute: a method stays if something that stays has an attribute of its name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from graphlib import TopologicalSorter

from benchmarks.upstream.sources import Import, Library, Name, Part, parts_of

_CALLED_FROM_OUTSIDE = ("before_", "after_", "test_")
"""How names of methods start that Avalanche or unittest calls."""


class Needed:
    """The definitions, and members of classes, that some definitions need.

    :param library: where to look for them.
    :param entries: the definitions that are wanted; all their public members stay.
    """

    def __init__(self, library: Library, entries: Iterable[Name]):
        self.library = library
        self.entries = frozenset(entries)
        self.names: dict[Name, None] = {}
        self.imports: dict[Name, set[Import]] = {}
        self.uses: dict[Name, set[Name]] = {}
        self._attributes: set[str] = set()
        known = -1
        while known < len(self._attributes):  # new attributes may bring methods back
            known = len(self._attributes)
            self._follow()

    def _follow(self) -> None:
        waiting, seen = list(self.entries), set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            self.names[name] = None
            waiting += self._needs(name)

    def _needs(self, name: Name) -> set[Name]:
        imports, uses = self.imports.setdefault(name, set()), self.uses.setdefault(name, set())
        for node in self.kept_nodes(name):
            if isinstance(node, ast.Attribute):
                self._attributes.add(node.attr)
            elif isinstance(node, ast.Constant) and str(node.value).isidentifier():
                self._attributes.add(str(node.value))
        for used in self.used_names(name):
            found = self.library.resolve(name.module, used)
            if isinstance(found, Import):
                imports.add(found)
            elif found is not None and found not in (name, *self.library.builtins):
                uses |= {found} - self.library.left_out
        return uses

    def used_names(self, name: Name) -> set[str]:
        """The names that occur in what is kept of a definition."""
        nodes = list(self.kept_nodes(name))
        quoted = {str(n.value) for n in nodes if isinstance(n, ast.Constant)}
        own = set(self.library.module(name.module).parts)
        return {n.id for n in nodes if isinstance(n, ast.Name)} | (quoted & own)

    def kept_nodes(self, name: Name) -> Iterator[ast.AST]:
        """The syntax nodes of a definition without the members that are left out."""
        node = self.library.part(name).node
        dropped = {part.node for part in self.dropped_members(name)}

        def walk(node: ast.AST) -> Iterator[ast.AST]:
            if node not in dropped:
                yield node
                for child in ast.iter_child_nodes(node):
                    yield from walk(child)

        return walk(node)

    def dropped_members(self, name: Name) -> list[Part]:
        """The members of a class that nothing needs."""
        node = self.library.part(name).node
        if not isinstance(node, ast.ClassDef):
            return []
        members = list(parts_of(self.library.module(name.module).source, node.body))
        return [part for part in members if not self._stays(name, node, part)]

    def _stays(self, owner: Name, cls: ast.ClassDef, part: Part) -> bool:
        if f"{owner.name}.{part.name}" in self.library.without:
            return False
        public = not part.name.startswith("_")
        return (
            part.name in self._attributes
            or part.name.startswith(_CALLED_FROM_OUTSIDE)
            or (part.name.startswith("__") and part.name.endswith("__"))
            or (public and (owner in self.entries or self._extends_others(owner)))
            or (isinstance(part.node, ast.AnnAssign) and bool(cls.decorator_list))
        )

    def _extends_others(self, name: Name) -> bool:
        """Whether a class has a base that is not of the library, whose callers are not known."""
        node = self.library.part(name).node
        bases = node.bases if isinstance(node, ast.ClassDef) else []
        for base in bases:
            assert isinstance(base, ast.Name)
            found = self.library.resolve(name.module, base.id)
            if isinstance(found, Name):
                if found not in self.library.left_out and self._extends_others(found):
                    return True
            elif isinstance(found, Import) and found.module not in ("abc", "typing", "enum"):
                return True
        return False

    @cached_property
    def in_order(self) -> list[Name]:
        """Each definition after those that it may need while it is executed."""
        needs: dict[str, set[str]] = {}
        for name in sorted(self.names):
            others = {used.module for used in self.uses[name]} - {name.module}
            needs.setdefault(name.module, set()).update(others)
        modules = list(TopologicalSorter({m: sorted(needs[m]) for m in needs}).static_order())

        def place(name: Name) -> tuple[int, int]:
            return modules.index(name.module), self.library.part(name).start

        return sorted(self.names, key=place)
