"""Tables and pictures, before a template writes them as HTML or Markdown."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

_POINTS_TO_PIXELS = 4 / 3


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    :param text: what it says; for numbers the value alone.
    :param spread: standard deviation or error, set beside the value.
    :param best: whether it is the lowest of its column.
    """

    text: str
    spread: str = ""
    best: bool = False


@dataclass(frozen=True)
class Column:
    """A column's head.

    :param title: its own title.
    :param group: title that it shares with its neighbours.
    :param numeric: whether its cells are numbers.
    """

    title: str
    group: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Section:
    """Rows of a table under a title of their own; the first section has none."""

    title: str
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Table:
    """A table with a caption."""

    caption: str
    columns: Sequence[Column]
    sections: Sequence[Section]

    @property
    def groups(self) -> list[tuple[str, list[Column]]]:
        """Neighbouring columns by the title they share."""
        return [(title, list(own)) for title, own in groupby(self.columns, lambda c: c.group)]

    @property
    def spread_widths(self) -> list[int]:
        """The most characters of a spread in each column."""
        rows = [row for section in self.sections for row in section.rows]
        return [max((len(row[i].spread) for row in rows), default=0) for i in range(len(self))]

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True)
class Picture:
    """A figure.

    :param name: of its file, without ending.
    :param title: what it shows, for those who do not see it, too.
    :param svg: the picture.
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
