"""Python modules taken apart into definitions and imports."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from avalanche_dco.errors import DCOError


class Name(NamedTuple):
    """A definition by its module and its name there."""

    module: str
    name: str


@dataclass(frozen=True, order=True)
class Import:
    """What a module gets from elsewhere.

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

    :param start: where it starts in the source.
    """

    name: str
    node: ast.stmt
    start: int
    stop: int


class Module:
    """A module."""

    def __init__(self, name: str, source: str):
        self.name, self.source = name, source
        self.tree = ast.parse(source)
        self.doc = ast.get_docstring(self.tree) or ""
        self.parts = {part.name: part for part in parts_of(source, self.tree.body)}
        self.imports = {found.bound: found for found in _imports(self.tree.body, False)}
        assigned = map(_assigned, self.tree.body)
        self.first = {other: names[0] for names in assigned for other in names[1:]}
        """Names that are assigned together with another one, which stands for them."""


def parts_of(source: str, body: Sequence[ast.stmt]) -> Iterator[Part]:
    """The named statements of a module or class."""
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


def span(source: str, node: ast.AST) -> tuple[int, int]:
    """Where a node starts and ends, as offsets into the source."""
    assert isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.arg)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = offset(source, node.lineno, node.col_offset)
    return start, offset(source, node.end_lineno, node.end_col_offset)


def offset(source: str, line: int, column: int) -> int:
    """The offset of a place that ``ast`` names by its line and its byte in it."""
    lines = source.split("\n")
    before = sum(len(text) + 1 for text in lines[: line - 1])
    return before + len(lines[line - 1].encode()[:column].decode())


def whole_lines(source: str, start: int, stop: int) -> tuple[int, int]:
    """The lines from one place to another."""
    return source.rfind("\n", 0, start) + 1, source.index("\n", stop) + 1


Change = tuple[int, int, str]
"""Start and end in the source, and what comes there."""


def applied(source: str, changes: Iterable[Change], start: int = 0, stop: int | None = None) -> str:
    """A source, or a part of it, with changes made; one within another is not."""
    text, done = "", start
    for first, last, new in sorted(changes, key=lambda change: change[:2]):
        if first >= done:
            text += source[done:first] + new
            done = last
    return text + source[done:stop]


def _defined(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    names = _assigned(node)
    return names[0] if names else None


def _assigned(node: ast.stmt) -> list[str]:
    """The names that a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    parts = targets[0].elts if isinstance(targets[0], ast.Tuple) else targets
    return [part.id for part in parts if isinstance(part, ast.Name)]


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
    :param left_out: definitions that do not go there.
    :param without: members of classes that are left out, ``Class.member``.
    :param builtins: definitions that a name known everywhere takes the place of.
    :param prepared: what is done with a module's name and text before the changes.
    """

    root: Path
    packages: tuple[str, ...]
    left_out: frozenset[Name] = frozenset()
    without: frozenset[str] = frozenset()
    builtins: Mapping[Name, str] = field(default_factory=dict)
    prepared: Callable[[str, str], str] = lambda name, source: source
    _modules: dict[str, Module] = field(default_factory=dict)

    def module(self, name: str) -> Module:
        """A module, with its changes made."""
        if name not in self._modules:
            path = self.root / (name.replace(".", "/") + ".py")
            source = self.prepared(name, path.read_text())
            self._modules[name] = Module(name, source)
            self._modules[name] = Module(name, self._without_calls(self._modules[name]))
        return self._modules[name]

    def is_left_out(self, module: str, node: ast.AST | None) -> bool:
        """Whether a node is the name of a definition that is left out."""
        return isinstance(node, ast.Name) and self.resolve(module, node.id) in self.left_out

    def _without_calls(self, module: Module) -> str:
        """The text without statements and contexts that only call what is left out."""

        def calls(node: ast.AST) -> bool:
            return isinstance(node, ast.Call) and self.is_left_out(module.name, node.func)

        changes = []
        blocks = [getattr(node, "body", None) for node in ast.walk(module.tree)]
        only = {block[0] for block in blocks if isinstance(block, list) and len(block) == 1}
        for node in ast.walk(module.tree):
            alone = isinstance(node, ast.If) and not node.orelse and len(node.body) == 1
            statement = node.body[0] if alone and isinstance(node, ast.If) else node
            if isinstance(statement, ast.Expr) and calls(statement.value):
                start, stop = span(module.source, node)
                if node in only:
                    changes.append((start, stop, "pass"))
                    continue
                start, stop = whole_lines(module.source, start, stop)
                changes.append((_comment_above(module.source, start), stop, ""))
            elif isinstance(node, ast.With):
                stay = [item for item in node.items if not calls(item.context_expr)]
                if stay and len(stay) < len(node.items):
                    start, stop = span(module.source, node)[0], span(module.source, node.body[0])[0]
                    stop = module.source.rindex(":", start, stop)
                    changes.append((start, stop, f"with {', '.join(map(ast.unparse, stay))}"))
        return applied(module.source, changes)

    def resolve(self, module: str, name: str) -> Name | Import | None:
        """What a name stands for in a module; None for a local name or one known everywhere."""
        here = self.module(module)
        if here.first.get(name, name) in here.parts:
            return Name(module, here.first.get(name, name))
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
