"""The layout of modules: Black's, with 88 columns."""

from __future__ import annotations

import ast
import re
import textwrap
from itertools import groupby
from typing import Any

from avalanche_dco.errors import DCOError

COLUMNS = 88


def laid_out(text: str) -> str:
    """A module as Black lays it out, with no string and no line of prose above 88 columns."""
    black, plain = _black()
    splitting = black.Mode(
        target_versions=plain.target_versions,
        preview=True,
        unstable=True,
        enabled_features={black.mode.Preview.string_processing},
    )
    return blackened(black.format_str(wrapped(text), mode=splitting))


def blackened(text: str) -> str:
    """A module as Black lays it out."""
    black, plain = _black()
    return black.format_str(text, mode=plain)


def _black() -> tuple[Any, Any]:
    try:
        import black  # noqa: PLC0415
    except ImportError as error:
        raise DCOError(
            "the bundle is laid out by Black, which is not installed; write: pip install -e "
            "'.[dev]'."
        ) from error
    return black, black.Mode(target_versions={black.TargetVersion.PY38}, line_length=COLUMNS)


def wrapped(text: str) -> str:
    """The same with comments and docstrings wrapped where they are too long."""
    text = _RULER.sub(_shortened, _FOR_OUR_TOOLS.sub("", text))
    lines = text.split("\n")
    blocks = [
        (node.lineno - 1, node.end_lineno or node.lineno, "")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    inside = {at for start, stop, _ in blocks for at in range(start, stop)}
    comments = [lines[at].lstrip()[:2] == "# " and at not in inside for at in range(len(lines))]
    for is_comment, group in groupby(range(len(lines)), comments.__getitem__):
        if is_comment:
            numbers = list(group)
            blocks.append((numbers[0], numbers[-1] + 1, "# "))
    for start, stop, prefix in sorted(blocks, reverse=True):
        lines[start:stop] = _wrapped_block(lines[start:stop], prefix)
    return "\n".join(lines)


def _wrapped_block(lines: list[str], prefix: str) -> list[str]:
    """Wrap each line that is too long together with the rest of its paragraph."""
    done: list[str] = []
    while lines:
        line, *lines = lines
        if len(line) <= COLUMNS:
            done.append(line)
            continue
        indent = _indent(line)
        text = line.strip().removeprefix(prefix)
        hanging = indent + _HANGING.get(text.split(" ")[0], "")
        while lines and _continues(lines[0].strip().removeprefix(prefix), lines[0], hanging):
            text += " " + lines.pop(0).strip().removeprefix(prefix)
        closing = '"""' if text.endswith('"""') else ""
        done += textwrap.wrap(
            text.removesuffix(closing),
            COLUMNS - len(closing),
            initial_indent=indent + prefix,
            subsequent_indent=hanging + prefix,
            break_long_words=False,
            break_on_hyphens=False,
        )
        if closing:
            done.append(indent + closing)
    return done


_FOR_OUR_TOOLS = re.compile(r"  # (?:type: ignore|noqa)\b.*$", re.MULTILINE)
_RULER = re.compile(r"^( *)# -{4,} (.*)$", re.MULTILINE)


def _shortened(ruler: re.Match[str]) -> str:
    start, title = f"{ruler[1]}# ", f" {ruler[2]}"
    return start + "-" * (COLUMNS - len(start + title)) + title


_HANGING = {":param": " " * 4, ":return:": " " * 4, "*": " " * 2, "-": " " * 2, "..": " " * 10}
"""How far the lines after the first are indented, by what an entry starts with."""


def _continues(text: str, line: str, hanging: str) -> bool:
    return (
        text not in ("", '"""')
        and _indent(line) == hanging
        and text.split(" ", 1)[0] not in _HANGING
    )


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
