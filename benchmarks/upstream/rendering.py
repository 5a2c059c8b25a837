"""Definitions written for another package, which has other names and Python 3.8."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from avalanche_dco.errors import DCOError
from benchmarks.upstream.needed import Needed
from benchmarks.upstream.sources import Change, Import, Library, Name, applied, span

_ABSTRACT = {"Callable", "Collection", "Iterable", "Iterator", "Mapping", "Sequence"}
_SINCE_3_8 = {"ClassVar", "Literal", "Protocol", "TypedDict", "runtime_checkable"}
_LATER_TYPING = {"Concatenate", "ParamSpec", "Self", "TypeAlias", "TypeGuard"}
_GENERIC = {"dict": "Dict", "list": "List", "set": "Set", "tuple": "Tuple", "type": "Type"}
_SETS = re.compile(r"\bset\(|\.keys\(\)|^{[^:]*}$")
"""What a union of sets has in it; any other union at run time is one of dictionaries."""


def portable(found: Import) -> Import:
    """The import of the same name that Python 3.8 has."""
    if found.module == "avalanche.training.templates":  # is imported after the plugins
        return Import(found.module, found.attribute, found.bound, True)
    if found.module == "collections.abc" and found.attribute in _ABSTRACT:
        return Import("typing", found.attribute, found.bound, found.typing_only)
    if found.module == "typing" and found.attribute in _LATER_TYPING:
        return Import("typing_extensions", found.attribute, found.bound, found.typing_only)
    return found


class Rendered:
    """One definition as text.

    :param needed: what is kept of it.
    """

    def __init__(self, needed: Needed, name: Name):
        self._needed, self._name = needed, name
        self._library: Library = needed.library
        self._source = self._library.module(name.module).source
        self.imports: set[Import] = set()
        """Imports that the portable form needs besides."""
        part = self._library.part(name)
        changes = list(self._changes(part.node))
        changes += [(p.start, p.stop, "") for p in needed.dropped_members(name)]
        self.text = applied(self._source, changes, part.start, part.stop)

    def _changes(self, definition: ast.stmt) -> Iterator[Change]:
        yield from self._bases(definition)
        bare = _annotations(definition)
        self._done: set[ast.AST] = {base for base in _bases(definition) if self._left_out(base)}
        for node in self._needed.kept_nodes(self._name):
            if node in self._done or not hasattr(node, "lineno"):
                continue
            change = self._renamed(node)
            if change is not None:
                yield change
            elif node not in bare:
                yield from self._portable(node, definition)

    def _bases(self, definition: ast.stmt) -> Iterator[Change]:
        """Drop bases that are left out."""
        bases = _bases(definition)
        for base, following in zip(bases, [*bases[1:], None], strict=False):
            if self._left_out(base):
                start, stop = span(self._source, base)
                yield start, stop if following is None else span(self._source, following)[0], ""

    def _left_out(self, node: ast.expr) -> bool:
        return self._library.is_left_out(self._name.module, node)

    def _renamed(self, node: ast.AST) -> Change | None:
        """A name that is imported under another one, or that a builtin takes the place of."""
        if not isinstance(node, ast.Name):
            return None
        found = self._library.resolve(self._name.module, node.id)
        if not isinstance(found, Name) or node.id in self._library.module(found.module).first:
            return None
        if found in self._library.left_out and found not in self._library.builtins:
            raise DCOError(
                f"{self._name.module}, line {node.lineno}: {node.id} is left out, and "
                f"{self._name.name} uses it. Declare what comes in its place."
            )
        new = self._library.builtins.get(found, found.name)
        return None if new == node.id else (*self._span(node), new)

    def _portable(self, node: ast.AST, definition: ast.stmt) -> Iterator[Change]:
        """Write what Python 3.8 does not know in another way."""
        if isinstance(node, ast.With) and len(node.items) > 1:
            items = [
                (item.context_expr, item.optional_vars or item.context_expr) for item in node.items
            ]
            spans = [(self._span(first)[0], self._span(last)[1]) for first, last in items]
            colon = self._source.index(":", spans[-1][1])
            yield from _joined((self._span(node)[0], colon), spans, "with ", ", ", "")
        elif isinstance(node, ast.Call):
            yield from self._portable_call(node)
        elif isinstance(definition, ast.Assign | ast.AnnAssign):
            yield from self._portable_alias(node)
        elif _is_union(node):
            parts = _operands(node)
            if not any(_SETS.search(self._source[slice(*self._span(part))]) for part in parts):
                yield from self._rejoined(node, "{**", ", **", "}")

    def _portable_call(self, node: ast.Call) -> Iterator[Change]:
        """A call of zip that is strict, or of isinstance with a union."""
        if any(keyword.arg == "strict" for keyword in node.keywords):
            yield self._span(node.args[-1])[1], self._span(node)[1] - 1, ""
        if getattr(node.func, "id", "") == "isinstance" and _is_union(node.args[1]):
            yield from self._rejoined(node.args[1], "(", ", ", ")")

    def _portable_alias(self, node: ast.AST) -> Iterator[Change]:
        """A type that has a name, which is evaluated."""
        if _is_union(node):
            self.imports.add(Import("typing", "Union", "Union"))
            yield from self._rejoined(node, "Union[", ", ", "]")
        if isinstance(node, ast.Subscript):
            generic = _GENERIC.get(getattr(node.value, "id", ""))
            if generic is not None:
                self.imports.add(Import("typing", generic, generic))
                yield (*self._span(node.value), generic)

    def _rejoined(self, node: ast.AST, start: str, between: str, end: str) -> Iterator[Change]:
        """The operands of a union with other text around and between them."""
        spans = [self._span(part) for part in _operands(node)]
        self._done.update(part for part in ast.walk(node) if _is_union(part))
        return _joined(self._span(node), spans, start, between, end)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return span(self._source, node)


def _joined(
    whole: tuple[int, int], spans: list[tuple[int, int]], start: str, between: str, end: str
) -> Iterator[Change]:
    """Other text before, between and after some parts of a text, which stay."""
    yield whole[0], spans[0][0], start
    for one, other in pairwise(spans):
        yield one[1], other[0], between
    yield spans[-1][1], whole[1], end


def _is_union(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def _bases(definition: ast.stmt) -> list[ast.expr]:
    return definition.bases if isinstance(definition, ast.ClassDef) else []


def _annotations(definition: ast.AST) -> set[ast.AST]:
    """The nodes that are never evaluated."""
    found: set[ast.AST] = set()
    for node in ast.walk(definition):
        for name in ("annotation", "returns"):
            part = getattr(node, name, None)
            if part is not None:
                found.update(ast.walk(part))
    return found


def _operands(node: ast.AST) -> list[ast.AST]:
    """The operands of a chain of unions."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_operands(node.left), *_operands(node.right)]
    return [node]
