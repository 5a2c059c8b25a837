"""Tables and pictures, before a template writes them as HTML or Markdown."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass

_POINTS_TO_PIXELS = 4 / 3


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    :param text: what it says.
    :param best: whether it is the lowest of its column.
    """

    text: str
    best: bool = False


@dataclass(frozen=True)
class Section:
    """Rows of a table under a title of their own; the first section has none."""

    title: str
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Table:
    """A table with a caption.

    :param caption: what it shows.
    :param columns: titles; the first column has names.
    :param sections: its rows.
    :param numeric: whether the other columns have numbers.
    """

    caption: str
    columns: Sequence[str]
    sections: Sequence[Section]
    numeric: bool = True


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
