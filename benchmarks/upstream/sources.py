"""Python modules taken apart into definitions and imports, and what a set of names needs of them.

Definitions are followed from name to name, through modules, and members of classes from attribute
to attribute: a method stays if something that stays has an attribute of its name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from avalanche_dco.errors import DCOError
from benchmarks.upstream.edits import Edit, edited, offset, span

_CALLED_FROM_OUTSIDE = ("before_", "after_", "test_")
"""How names of methods start that Avalanche or unittest calls."""


class Name(NamedTuple):
    """A definition by its module and its name there."""

    module: str
    name: str


@dataclass(frozen=True, order=True)
class Import:
    """What a module gets from elsewhere.

    :param module: the module.
    :param attribute: what of it; empty for the module itself.
    :param bound: the name it is given.
    :param typing_only: whether it is imported for type checkers only.
    """

    module: str
    attribute: str
    bound: str
    typing_only: bool = False


@dataclass(frozen=True)
class Part:
    """A statement with its decorators, the comment above it and the string below it.

    :param name: the name it defines.
    :param node: the statement.
    :param start: where it starts in the source.
    :param stop: where it ends.
    """

    name: str
    node: ast.stmt
    start: int
    stop: int


class Module:
    """A module.

    :param name: its full name.
    :param source: its text.
    """

    def __init__(self, name: str, source: str):
        self.name, self.source = name, source
        self.tree = ast.parse(source)
        self.doc = ast.get_docstring(self.tree) or ""
        self.parts = {part.name: part for part in parts_of(source, self.tree.body)}
        self.imports = {found.bound: found for found in _imports(self.tree.body, False)}


def parts_of(source: str, body: Sequence[ast.stmt]) -> Iterator[Part]:
    """The named statements of a module or class.

    :param source: the text of the module.
    :param body: the statements.
    """
    for at, node in enumerate(body):
        name = _defined(node)
        if name is None:
            continue
        first = min([node, *getattr(node, "decorator_list", ())], key=lambda n: n.lineno)
        start = _comment_above(source, offset(source, first.lineno, 0))
        last = node
        following = body[at + 1] if at + 1 < len(body) else None
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_string(following):
            assert following is not None
            last = following
        stop = source.find("\n", span(source, last)[1])
        yield Part(name, node, start, len(source) if stop < 0 else stop + 1)


def _defined(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return targets[0].id if isinstance(targets[0], ast.Name) else None


def _is_string(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _comment_above(source: str, start: int) -> int:
    while start:
        line = source.rfind("\n", 0, start - 1) + 1
        text = source[line:start].strip()
        if not text.startswith("#") or "----" in text:  # a ruler belongs to several
            break
        start = line
    return start


def _imports(body: Iterable[ast.stmt], typing_only: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", alias.asname or alias.name, typing_only)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bound = alias.asname or alias.name
                yield Import(node.module or "", alias.name, bound, typing_only)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _imports(node.body, True)


@dataclass
class Library:
    """The modules to take definitions from.

    :param root: the folder that they are in.
    :param packages: the packages to follow names into.
    :param edits: changes of modules, by module.
    :param instead: definitions that take the place of others; None for those that are left out.
    :param without: members of classes that are left out, ``Class.member``.
    :param builtins: definitions that a name known everywhere takes the place of.
    """

    root: Path
    packages: tuple[str, ...]
    edits: Mapping[str, Sequence[Edit]] = field(default_factory=dict)
    instead: Mapping[Name, Name | None] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    builtins: Mapping[Name, str] = field(default_factory=dict)
    _modules: dict[str, Module] = field(default_factory=dict)

    def module(self, name: str) -> Module:
        """A module, with its changes made."""
        if name not in self._modules:
            path = self.root / (name.replace(".", "/") + ".py")
            source = edited(path.read_text(), self.edits.get(name, ()), str(path))
            self._modules[name] = Module(name, source)
        return self._modules[name]

    def resolve(self, module: str, name: str) -> Name | Import | None:
        """What a name stands for in a module; None for a local name or one known everywhere."""
        here = self.module(module)
        if name in here.parts:
            return Name(module, name)
        found = here.imports.get(name)
        if found is None or found.module == "__future__":
            return None
        if found.module.split(".")[0] not in self.packages:
            return found
        there = self.resolve(found.module, found.attribute)
        if there is None:
            raise DCOError(f"{module}: {found.module} has no definition of {found.attribute}.")
        return there

    def part(self, name: Name) -> Part:
        """A definition."""
        return self.module(name.module).parts[name.name]

    def is_constant(self, name: Name) -> bool:
        """Whether a definition is an assignment."""
        return isinstance(self.part(name).node, ast.Assign | ast.AnnAssign)


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
            elif found is not None and found not in self.library.builtins:
                found = self.library.instead.get(found, found)
                if found is not None and found != name:
                    uses.add(found)
        return uses

    def used_names(self, name: Name) -> set[str]:
        """The names that occur in what is kept of a definition."""
        nodes = list(self.kept_nodes(name))
        quoted = {str(n.value) for n in nodes if isinstance(n, ast.Constant)}
        module = self.library.module(name.module)
        known = {*module.parts, *module.imports}
        return {n.id for n in nodes if isinstance(n, ast.Name)} | (quoted & known)

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
            root = base
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            assert isinstance(root, ast.Name)
            found = self.library.resolve(name.module, root.id)
            if isinstance(found, Name):
                found = self.library.instead.get(found, found)
                if found is not None and self._extends_others(found):
                    return True
            elif isinstance(found, Import) and found.module not in ("abc", "typing", "enum"):
                return True
        return False

    @cached_property
    def in_order(self) -> list[Name]:
        """Each definition after those that it may need while it is executed."""
        modules: list[str] = []

        def visit(module: str) -> None:
            if module in modules:
                return
            for name in self.names:
                if name.module == module:
                    for used in sorted(self.uses[name]):
                        if used.module != module and used.module not in visiting:
                            visiting.add(used.module)
                            visit(used.module)
            modules.append(module)

        visiting: set[str] = set()
        for module in sorted({name.module for name in self.names}):
            visiting.add(module)
            visit(module)
        place: Callable[[Name], tuple[int, int]] = lambda name: (  # noqa: E731
            modules.index(name.module),
            self.library.part(name).start,
        )
        return sorted(self.names, key=place)
