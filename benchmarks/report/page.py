"""A report as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

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
    Picture,
    Section,
    Table,
)

_STYLE = Path(__file__).with_name("style.css")
_POINTS_TO_PIXELS = 4 / 3
_SMALLEST_SCALE = 0.7  # below this a picture scrolls instead of shrinking further


def to_html(document: Document) -> str:
    """Write a report as HTML.

    :param document: the report.
    """
    anchors = {
        id(part): f"section-{number}"
        for number, part in enumerate(document.parts, start=1)
        if isinstance(part, Heading)
    }
    links = "".join(
        f'<li><a href="#{anchors[id(part)]}">{escape(part.text)}</a></li>'
        for part in document.parts
        if isinstance(part, Heading) and part.level == 2
    )
    body = "\n".join(_part(part, anchors.get(id(part), "")) for part in document.parts)
    title = escape(document.title)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{_STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<nav aria-label="Sections"><ul>{links}</ul></nav>
{body}
</main>
</body>
</html>
"""


def _part(part: Part, anchor: str = "") -> str:
    match part:
        case Heading(level, text):
            return f'<h{level} id="{anchor}">{escape(text)}</h{level}>'
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Table():
            return _table(part)
        case Gallery(caption, pictures):
            shown = "\n".join(map(_picture, pictures))
            above = f'<p class="caption">{escape(caption)}</p>\n' if caption else ""
            return f'{above}<div class="gallery">\n{shown}\n</div>'
        case Listing(lines):
            return f'<pre tabindex="0">{escape(chr(10).join(lines))}</pre>'
        case Folded(summary, parts):
            inner = "\n".join(map(_part, parts))
            return f"<details><summary>{escape(summary)}</summary>\n{inner}\n</details>"


def _picture(picture: Picture) -> str:
    width = _width(picture.svg)
    source = base64.b64encode(picture.svg.encode()).decode()
    return (
        f'<figure class="picture" style="width:{width:.0f}px">{_caption(picture.caption)}'
        f'<div class="scroll" tabindex="0"><img alt="{escape(picture.title)}" '
        f'style="min-width:{width * _SMALLEST_SCALE:.0f}px" '
        f'src="data:image/svg+xml;base64,{source}"></div></figure>'
    )


def _caption(text: str) -> str:
    return f"<figcaption>{escape(text)}</figcaption>" if text else ""


def _width(svg: str) -> float:
    """In pixels; matplotlib writes points."""
    found = re.search(r'<svg[^>]* width="([0-9.]+)pt"', svg)
    if found is None:
        raise ValueError("the SVG does not begin with a width in points")
    return float(found[1]) * _POINTS_TO_PIXELS


def _table(table: Table) -> str:
    spreads = [
        max((len(row[i].spread) for section in table.sections for row in section.rows), default=0)
        for i in range(len(table.columns))
    ]
    body = "\n".join(_section(section, table.columns, spreads) for section in table.sections)
    return (
        f'<figure class="table">{_caption(table.caption)}\n'
        f'<div class="scroll" tabindex="0"><table>\n<thead>{_head(table.columns)}</thead>\n'
        f"{body}\n</table></div></figure>"
    )


def _head(columns: Sequence[Column]) -> str:
    """One row, or two if columns share a title."""
    grouped = any(column.group for column in columns)
    above, below = [], []
    for group, members in groupby(columns, key=lambda column: column.group):
        own = list(members)
        cells = [f"<th{_kind(c)} scope=col>{escape(c.title)}</th>" for c in own]
        if group:
            above.append(
                f'<th class="group" colspan="{len(own)}" scope=colgroup>{escape(group)}</th>'
            )
            below += cells
        elif grouped:
            above += [c.replace("<th", '<th rowspan="2"', 1) for c in cells]
        else:
            above += cells
    return f"<tr>{''.join(above)}</tr>" + (f"<tr>{''.join(below)}</tr>" if below else "")


def _section(section: Section, columns: Sequence[Column], spreads: Sequence[int]) -> str:
    title = (
        f'<tr class="apart"><th colspan="{len(columns)}" scope=rowgroup>'
        f"<span>{escape(section.title)}</span></th></tr>\n"
        if section.title
        else ""
    )
    rows = "\n".join(
        "<tr>" + "".join(map(_cell, row, columns, spreads, range(len(columns)))) + "</tr>"
        for row in section.rows
    )
    return f"<tbody>{title}{rows}</tbody>"


def _cell(cell: Cell, column: Column, spread: int, index: int) -> str:
    text = escape(cell.text)
    if cell.best:
        text = f'<strong title="lowest mean">{text}</strong>'
    if spread:  # an empty one, too, so that the values above and below are aligned
        width = f"calc({spread}ch + .6em)"
        text += f'<span class="spread" style="width:{width}">{escape(cell.spread)}</span>'
    tag = "th scope=row" if index == 0 else "td"
    return f"<{tag}{_kind(column)}>{text}</{tag.split(maxsplit=1)[0]}>"


def _kind(column: Column) -> str:
    return ' class="number"' if column.numeric else ""
