"""Tables and pictures, and the report as one HTML file or as Markdown with figures beside it."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

Report = dict[str, Any]
"""What the templates read, by the names they use."""
_POINTS_TO_PIXELS = 4 / 3


class Best(str):
    """The lowest value of its column."""

    __slots__ = ()


Rows = list[dict[str, str]]
"""Rows of a table, by column."""


@dataclass(frozen=True)
class Table:
    """A table with a caption.

    :param sections: rows by the title above them; the first section has none.
    :param numeric: whether all columns but the first have numbers.
    """

    caption: str
    sections: Mapping[str, Rows]
    numeric: bool = True

    @property
    def columns(self) -> list[str]:
        """Their titles."""
        return list(dict.fromkeys(key for rows in self.sections.values() for key in rows[0]))


@dataclass(frozen=True)
class Picture:
    """A figure.

    :param name: of its file, without ending.
    :param title: what it shows, for those who do not see it, too.
    :param caption: how to read it, unless what is above it says so.
    """

    name: str
    title: str
    svg: str
    caption: str = ""

    @property
    def encoded(self) -> str:
        """The picture as a data URL has it."""
        return base64.b64encode(self.svg.encode()).decode()

    @property
    def width(self) -> float:
        """In pixels; matplotlib writes points."""
        found = re.search(r'<svg[^>]* width="([0-9.]+)pt"', self.svg)
        assert found is not None
        return float(found[1]) * _POINTS_TO_PIXELS


FIGURES = "report-figures"
"""Folder of the figures, beside the Markdown file."""


def to_html(report: Report) -> str:
    """Write a report as HTML."""
    return _rendered("page.html", report)


def to_markdown(report: Report) -> str:
    """Write a report as Markdown."""
    return re.sub(r"\n{3,}", "\n\n", _rendered("page.md", report)).strip() + "\n"


def markdown_table(lines: Sequence[Sequence[str]], numeric: Collection[int] = ()) -> str:
    """A table as Markdown.

    :param lines: the cells, row by row, the head first.
    """
    rule = ["---:" if column in numeric else "---" for column in range(len(lines[0]))]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]])


def _rendered(template: str, report: Report) -> str:
    environment = Environment(
        loader=PackageLoader("benchmarks.report"),
        autoescape=template.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": _plain, "table": markdown_of}
    environment.tests["best"] = lambda text: isinstance(text, Best)
    return environment.get_template(template).render(report=report, figures=FIGURES)


def markdown_of(table: Table) -> str:
    """A table of the report, with its caption."""
    columns = table.columns
    lines = [list(map(_plain, columns))]
    for title, rows in table.sections.items():
        if title:
            lines.append([f"*{_plain(title)}*"] + [""] * (len(columns) - 1))
        lines += [[_cell(cell) for cell in row.values()] for row in rows]
    numeric = range(1, len(columns)) if table.numeric else ()
    return _plain(table.caption) + "\n\n" + markdown_table(lines, numeric)


def _cell(text: str) -> str:
    return f"**{_plain(text)}**" if isinstance(text, Best) else _plain(text)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: one line, no markup, no HTML."""
    escaped = re.sub(r"([\\`*_\[\]|$~#])", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
