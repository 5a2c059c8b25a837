"""Constructors written out: what a class declares of its settings, as an ``__init__``.

In this package a plugin's arguments are declared once, and their checks and documentation follow.
Avalanche has them in the signature, the docstring and the body of ``__init__``.
"""

from __future__ import annotations

import ast
import importlib
import textwrap
from typing import Any

from benchmarks.upstream.sources import Change, Part, applied, parts_of, span, whole_lines

_BASE = "DeclaredSettings"
_SET_UP = "_set_up"
"""What ``__post_init__`` is called, which is no name for classes that are no data classes."""


def with_constructors(module: str, source: str, without: frozenset[str]) -> str:
    """A module whose classes have constructors instead of declarations.

    :param without: settings to leave out, ``Class.setting``.
    """
    changes: list[Change] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            cls = getattr(importlib.import_module(module), node.name)
            declared = [
                part
                for part in parts_of(source, node.body)
                if isinstance(part.node, ast.AnnAssign) and part.name in _settings(cls)
            ]
            if declared:
                changes += _class_changes(source, node, cls, declared, without)
    return applied(source, changes).replace("__post_init__", _SET_UP)


def _settings(cls: type) -> dict[str, Any]:
    return dict(getattr(cls, "SETTINGS", {}))


def _class_changes(
    source: str, node: ast.ClassDef, cls: type, declared: list[Part], without: frozenset[str]
) -> list[Change]:
    inherited = _settings(cls.__mro__[1])
    above = [base for base in cls.__mro__[1:] if "__post_init__" in vars(base)]
    root = [base.__name__ for base in above] == [_BASE]
    stay = [
        part
        for part in declared
        if f"{node.name}.{part.name}" not in without
        and not _same(_settings(cls)[part.name], inherited.get(part.name))
    ]
    text = _constructor(source, cls, stay, inherited)
    changes = [(part.start, part.stop, "") for part in declared[1:]]
    changes.append((declared[0].start, declared[0].stop, text + "\n"))
    if root:  # nothing is set up above it
        for statement in ast.walk(node):
            if (
                isinstance(statement, ast.Expr)
                and ast.unparse(statement) == "super().__post_init__()"
            ):
                changes.append((*whole_lines(source, *span(source, statement)), ""))
    return changes


def _same(one: Any, other: Any) -> bool:
    """Whether two declarations differ in nothing that a constructor says."""
    facts = ("default", "meaning", "at_least", "at_most", "above", "kw_only")
    return other is not None and all(getattr(one, f) == getattr(other, f) for f in facts)


def _constructor(source: str, cls: type, parts: list[Part], inherited: dict[str, Any]) -> str:
    settings = _settings(cls)
    chosen = [(part, settings[part.name]) for part in parts]
    chosen.sort(key=lambda pair: pair[1].kw_only)
    positional = [part.name for part, one in chosen if not one.kw_only]
    signature = ["self"]
    for part, one in chosen:
        assert isinstance(part.node, ast.AnnAssign)
        kind = source[slice(*span(source, part.node.annotation))]
        if one.kw_only and "*" not in signature:
            signature.append("*")
        signature.append(f"{part.name}: {kind} = {one.default!r}")
    described = [f":param {part.name}: {one.description}" for part, one in chosen]
    kept = [f"self.{part.name} = {part.name}" for part, _ in chosen if part.name not in inherited]
    checks = [check for _, one in chosen for check in _checks(one)]
    if inherited:
        signature.append("**settings: Any")
        described.append(":param settings: the arguments of the class that it extends.")
        changed = [f"{p.name}={p.name}" for p, one in chosen if one.kw_only and p.name in inherited]
        passed = ", ".join([*positional, *changed, "**settings"])
        body = [*checks, *kept, f"super().__init__({passed})"]
    else:
        body = ["super().__init__()", *checks, *kept, f"self.{_SET_UP}()"]
    doc = "\n".join(["Create the plugin.", "", *described])
    lines = [f"def __init__({', '.join(signature)}):", f'    """{doc}', '    """']
    text = "\n".join([*lines, *(f"    {line}" for line in body)])
    return textwrap.indent(text.replace("\n:param", "\n    :param"), "    ") + "\n"


def _checks(one: Any) -> list[str]:
    """Assertions of a setting's range, as Avalanche's plugins have them."""
    name = one.name
    unless = f"{name} is None or " if one.none is not None else ""
    if one.choices:
        values = ", ".join(repr(choice) for choice in one.choices)
        if set(one.choices) == {True, False}:
            return []
        return [f'assert {unless}{name} in ({values}), "`{name}` must be one of {values}."']
    if one.accepts is not None:
        return []
    low = f"{one.at_least:g} <= " if one.above is None else f"{one.above:g} < "
    said = f"at least {one.at_least:g}" if one.above is None else f"above {one.above:g}"
    if one.at_most == float("inf"):
        return [f'assert {unless}{low}{name}, "`{name}` must be {said}."']
    most = f"{one.at_most:g}"
    return [f'assert {unless}{low}{name} <= {most}, "`{name}` must be {said}, at most {most}."']
