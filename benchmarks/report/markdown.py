"""A report as Markdown, its figures as files beside it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from benchmarks.report.document import (
    Cell,
    Column,
    Document,
    Folded,
    Gallery,
    Heading,
    Listing,
    Paragraph,
    Part,
    Table,
)

FIGURES = "report-figures"
"""Folder of the figures, beside the Markdown file."""


def to_markdown(document: Document) -> str:
    """Write a report as Markdown.

    :param document: the report.
    """
    return "\n\n".join([f"# {_plain(document.title)}", *map(_part, document.parts)]) + "\n"


def _part(part: Part) -> str:
    match part:
        case Heading(level, text):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Table():
            return _table(part)
        case Gallery():
            return _gallery(part)
        case Listing(lines):
            return "\n".join(f"    {line}" for text in lines for line in text.splitlines())
        case Folded(summary, parts):
            return "\n\n".join([f"**{_plain(summary)}**", *map(_part, parts)])


def _gallery(gallery: Gallery) -> str:
    if gallery.page_only:
        return "In `report.html`, which has all figures."
    texts = [_plain(gallery.caption)]
    for one in gallery.pictures:
        texts += [_plain(one.caption), f"![{_plain(one.title)}]({FIGURES}/{one.name}.svg)"]
    return "\n\n".join(filter(None, texts))


def markdown_table(lines: Sequence[Sequence[str]], numeric: Collection[int] = ()) -> str:
    """A table as Markdown.

    :param lines: the cells, row by row, the head first.
    :param numeric: the columns that are set flush right.
    """
    rule = ["---:" if column in numeric else "---" for column in range(len(lines[0]))]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]])


def _table(table: Table) -> str:
    lines = [[_title(column) for column in table.columns]]
    for section in table.sections:
        if section.title:
            lines.append([f"*{_plain(section.title)}*"] + [""] * (len(table.columns) - 1))
        lines += [[_cell(cell) for cell in row] for row in section.rows]
    numeric = [index for index, column in enumerate(table.columns) if column.numeric]
    return _plain(table.caption) + "\n\n" + markdown_table(lines, numeric)


def _title(column: Column) -> str:
    return _plain(f"{column.group}: {column.title}" if column.group else column.title)


def _cell(cell: Cell) -> str:
    text = _plain(" ".join(part for part in (cell.text, cell.spread) if part))
    return f"**{text}**" if cell.best else text


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: one line, no markup, no HTML."""
    escaped = re.sub(r"([\\`*_\[\]|$~#])", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
