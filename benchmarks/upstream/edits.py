"""Changes of places in someone else's code, described without quoting it.

A place is found by its syntax: the function it is in, the kind of syntax node, and identifiers that
occur in it. What stays of the text that was there is written ``<found>``.
"""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from avalanche_dco.errors import DCOError

_FOUND = "<found>"


class PlaceError(DCOError):
    """The code to change is not what the changes were written for."""


@dataclass(frozen=True)
class Edit:
    """New code for one place, or for several that are alike.

    :param inside: the function or class that the place is in, ``Class.method``; empty for the
        module.
    :param kind: the name of an ``ast`` class; or ``docstring`` for the end of the docstring, or
        ``name`` for the name of the function.
    :param code: what to write there; ``<found>`` stands for what was there. Empty: the lines are
        removed.
    :param naming: names, attributes, arguments and constants that have to occur. The innermost
        nodes that have all of them are meant.
    :param count: how many places there have to be.
    :param comment: whether the comment lines right above belong to the place.
    """

    inside: str
    kind: str
    code: str
    naming: tuple[str, ...] = ()
    count: int = 1
    comment: bool = False


@dataclass(frozen=True)
class Defect:
    """One defect.

    :param name: of its page in ``docs/upstream`` and of its patch.
    :param path: the file with the defect, in the package avalanche.
    :param test: the class with its unittest.
    """

    name: str
    path: str
    test: str
    edits: tuple[Edit, ...]


def methods_of(owner: str) -> Callable[..., Edit]:
    """Makes changes of the methods of one class, which are named first."""
    return lambda method, *rest, **options: Edit(f"{owner}.{method}", *rest, **options)


def edited(source: str, edits: Iterable[Edit], path: str) -> str:
    """The source with all changes made.

    :param edits: the changes; all places are looked for in the unchanged source.
    """
    tree = ast.parse(source)
    changes: list[tuple[int, int, int, str]] = []
    for edit in edits:
        places = list(_places(tree, source, edit))
        if len(places) != edit.count:
            raise PlaceError(
                f"{path} is not the version that this change was written for: in "
                f"{edit.inside or 'the module'} there are {len(places)} places of the kind "
                f"{edit.kind} with {', '.join(edit.naming) or 'any names'}, and there should be "
                f"{edit.count}. Compare that place by hand; it may be mended by now."
            )
        changes += (_change(source, *place, edit) for place in places)
    for start, stop, _, code in sorted(changes, reverse=True):
        source = source[:start] + code + source[stop:]
    ast.parse(source)
    return source


def unified_diff(before: str, after: str, path: str) -> str:
    """A patch that ``git apply`` takes."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/{path}" if before else "/dev/null",
        f"b/{path}",
    )
    mark = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + mark for line in lines)


def definition(tree: ast.Module, name: str) -> ast.AST | None:
    """The function or class of this qualified name; the module for an empty one."""
    found: ast.AST | None = tree
    for part in filter(None, name.split(".")):
        found = next(
            (
                node
                for node in (ast.iter_child_nodes(found) if found else ())
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
            ),
            None,
        )
    return found


def names_in(node: ast.AST) -> set[str]:
    """The names, attributes, arguments, imports and constants that occur in a node."""
    found = set()
    for part in ast.walk(node):
        for attribute in ("id", "attr", "arg", "name"):
            value = getattr(part, attribute, None)
            if isinstance(value, str):
                found.add(value)
        if isinstance(part, ast.Constant):
            found.add(str(part.value))
    return found


def _places(tree: ast.Module, source: str, edit: Edit) -> Iterator[tuple[int, int]]:
    """Start and end of each place, as offsets into the source."""
    scope = definition(tree, edit.inside)
    if scope is None:
        return
    if edit.kind == "name":
        assert isinstance(scope, ast.FunctionDef)
        start = source.index(scope.name, offset(source, scope.lineno, scope.col_offset))
        yield start, start + len(scope.name)
        return
    if edit.kind == "docstring":
        assert isinstance(scope, ast.FunctionDef | ast.ClassDef)
        start, stop = span(source, scope.body[0])
        last = source.rindex("\n", start, stop)
        yield last, last
        return
    kind = getattr(ast, edit.kind)
    wanted = set(edit.naming)
    found = [n for n in ast.walk(scope) if isinstance(n, kind) and wanted <= names_in(n)]
    for node in found:
        if not any(other is not node and other in found for other in ast.walk(node)):
            start, stop = span(source, node)
            yield (_above(source, start) if edit.comment else start), stop


def _change(source: str, start: int, stop: int, edit: Edit) -> tuple[int, int, int, str]:
    """Start, end, rank among changes at the same place, and new text."""
    line = source.rfind("\n", 0, start) + 1
    if edit.kind == "docstring":
        line = source.index("\n", start) + 1  # the line of the closing quotes
    text = source[line:]
    indent = text[: len(text) - len(text.lstrip(" "))]
    if not edit.code:
        return line, source.index("\n", stop) + 1, 0, ""
    code = textwrap.indent(textwrap.dedent(edit.code).strip("\n"), indent)
    code = "\n" + code if edit.kind == "docstring" else code.removeprefix(indent)
    # What is added before or after a place leaves room for other changes within it.
    if code.endswith(_FOUND):
        return start, start, start - stop, code.removesuffix(_FOUND)
    if code.startswith(_FOUND):
        return stop, stop, stop - start, code.removeprefix(_FOUND)
    return start, stop, 0, code.replace(_FOUND, source[start:stop])


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


def _above(source: str, start: int) -> int:
    """The start of the comment lines right above, without their indentation."""
    line = source.rfind("\n", 0, start) + 1
    while line:
        before = source.rfind("\n", 0, line - 1) + 1
        text = source[before:line]
        if not text.lstrip().startswith("#"):
            break
        line, start = before, before + len(text) - len(text.lstrip())
    return start
