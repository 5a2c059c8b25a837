"""Definitions written for another package, which has other names and Python 3.8."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from avalanche_dco.errors import DCOError
from benchmarks.upstream.edits import span
from benchmarks.upstream.needed import Needed
from benchmarks.upstream.sources import Import, Library, Name

Change = tuple[int, int, str]
"""Start and end in the source, and what comes there."""

_ABSTRACT = {"Callable", "Collection", "Iterable", "Iterator", "Mapping", "Sequence"}
_SINCE_3_8 = {"ClassVar", "Literal", "Protocol", "TypedDict", "runtime_checkable"}
_LATER_TYPING = {"Concatenate", "ParamSpec", "Self", "TypeAlias", "TypeGuard"}
_GENERIC = {"dict": "Dict", "list": "List", "set": "Set", "tuple": "Tuple", "type": "Type"}
_SETS = re.compile(r"\bset\(|\.keys\(\)|^{[^:]*}$")
"""What a union of sets has in it; any other union at run time is one of dictionaries."""


def portable(found: Import) -> Import:
    """The import of the same name that Python 3.8 has."""
    if found.module == "collections.abc" and found.attribute in _ABSTRACT:
        return Import("typing", found.attribute, found.bound, found.typing_only)
    if found.module == "typing" and found.attribute in _LATER_TYPING:
        return Import("typing_extensions", found.attribute, found.bound, found.typing_only)
    return found


class Rendered:
    """One definition as text.

    :param needed: what is kept of it.
    :param name: the definition.
    :param renames: new names of definitions.
    """

    def __init__(self, needed: Needed, name: Name, renames: Mapping[Name, str]):
        self._needed, self._name, self._renames = needed, name, renames
        self._library: Library = needed.library
        self._source = self._library.module(name.module).source
        self.imports: set[Import] = set()
        """Imports that the portable form needs besides."""
        part = self._library.part(name)
        changes = list(self._changes(part.node))
        changes += [(p.start, p.stop, "") for p in needed.dropped_members(name)]
        self.text = _applied(self._source, changes, part.start, part.stop)

    def _changes(self, definition: ast.stmt) -> Iterator[Change]:
        yield from self._bases(definition)
        bare = _annotations(definition)
        done: set[ast.AST] = set()
        for node in self._needed.kept_nodes(self._name):
            if node in done or not hasattr(node, "lineno"):
                continue
            change = self._renamed(node)
            if change is None and node not in bare:
                change = self._portable(node, definition)
                if change is not None:
                    done.update(ast.walk(node))
            if change is not None:
                yield change

    def _bases(self, definition: ast.stmt) -> Iterator[Change]:
        """Drop bases that are left out."""
        bases = definition.bases if isinstance(definition, ast.ClassDef) else []
        stay = [base for base in bases if not self._left_out(base)]
        if len(stay) < len(bases):
            start, stop = span(self._source, bases[0])[0], span(self._source, bases[-1])[1]
            yield start, stop, ", ".join(self._text(base) for base in stay)

    def _left_out(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Name):
            return False
        found = self._library.resolve(self._name.module, node.id)
        return isinstance(found, Name) and self._library.instead.get(found, found) is None

    def _renamed(self, node: ast.AST) -> Change | None:
        quoted = isinstance(node, ast.Constant) and isinstance(node.value, str)
        old = node.id if isinstance(node, ast.Name) else str(node.value) if quoted else ""  # type: ignore[attr-defined]
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node is self._definition:
            new = self._renames.get(self._name)
            if new is None:
                return None
            start = self._source.index(node.name, span(self._source, node)[0])
            return start, start + len(node.name), new
        if not old.isidentifier():
            return None
        found = self._library.resolve(self._name.module, old)
        if not isinstance(found, Name):
            return None
        new = self._library.builtins.get(found)
        if new is None:
            target = self._library.instead.get(found, found)
            if target is None:
                raise DCOError(
                    f"{self._name.module}, line {node.lineno}: {old} is left out, and "  # type: ignore[attr-defined]
                    f"{self._name.name} uses it. Declare what comes in its place."
                )
            new = self._renames.get(target, target.name)
        if new == old:
            return None
        start, stop = span(self._source, node)
        return (start + 1, stop - 1, new) if quoted else (start, stop, new)

    @property
    def _definition(self) -> ast.stmt:
        return self._library.part(self._name).node

    def _portable(self, node: ast.AST, definition: ast.stmt) -> Change | None:
        """Write what Python 3.8 does not know in another way."""
        if isinstance(node, ast.Call):
            return self._portable_call(node)
        if isinstance(definition, ast.Assign | ast.AnnAssign):
            return self._portable_alias(node)
        if isinstance(node, ast.With) and len(node.items) > 1:
            start = span(self._source, node)[0]
            stop = self._source.index(":", span(self._source, node.items[-1].context_expr)[1])
            items = (
                self._text(item.context_expr)
                + (f" as {self._text(item.optional_vars)}" if item.optional_vars else "")
                for item in node.items
            )
            return start, stop, f"with {', '.join(items)}"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            parts = [self._text(part) for part in _operands(node)]
            if not any(_SETS.search(part) for part in parts):
                merged = ", ".join(f"**{part}" for part in parts)
                return (*span(self._source, node), f"{{{merged}}}")
        return None

    def _portable_call(self, node: ast.Call) -> Change | None:
        """A call of zip that is strict, or of isinstance with a union."""
        if any(keyword.arg == "strict" for keyword in node.keywords):
            return span(self._source, node.args[-1])[1], span(self._source, node)[1] - 1, ""
        if getattr(node.func, "id", "") == "isinstance" and isinstance(node.args[1], ast.BinOp):
            kinds = ", ".join(self._text(kind) for kind in _operands(node.args[1]))
            return (*span(self._source, node.args[1]), f"({kinds})")
        return None

    def _portable_alias(self, node: ast.AST) -> Change | None:
        """A type that has a name, which is evaluated."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            self.imports.add(Import("typing", "Union", "Union"))
            parts = ", ".join(self._text(part) for part in _operands(node))
            return (*span(self._source, node), f"Union[{parts}]")
        if isinstance(node, ast.Subscript):
            generic = _GENERIC.get(getattr(node.value, "id", ""))
            if generic is not None:
                self.imports.add(Import("typing", generic, generic))
                return (*span(self._source, node.value), generic)
        return None

    def _text(self, node: ast.AST) -> str:
        return self._source[slice(*span(self._source, node))]


def _annotations(definition: ast.AST) -> set[ast.AST]:
    """The nodes that are never evaluated."""
    found: set[ast.AST] = set()
    for node in ast.walk(definition):
        for name in ("annotation", "returns"):
            part = getattr(node, name, None)
            if part is not None:
                found.update(ast.walk(part))
    return found


def _operands(node: ast.expr) -> list[ast.expr]:
    """The operands of a chain of unions."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_operands(node.left), *_operands(node.right)]
    return [node]


def _applied(source: str, changes: Iterable[Change], start: int, stop: int) -> str:
    """Part of a source with changes made; one within another is made first."""
    text, shift = source[start:stop], -start
    kept: list[Change] = []
    for change in sorted(changes, key=lambda c: (c[0], -c[1])):
        if kept and change[1] <= kept[-1][1]:
            continue  # inside of one that is replaced as a whole
        kept.append(change)
    for first, last, new in reversed(kept):
        text = text[: first + shift] + new + text[last + shift :]
    return text
