"""What a report consists of, before it is written as HTML or Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the report's own."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


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


@dataclass(frozen=True)
class Picture:
    """A figure.

    :param name: of its file, without ending.
    :param title: what it shows, for those who do not see it, too.
    :param svg: the picture.
    :param caption: how to read it, unless the gallery says so.
    """

    name: str
    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Gallery:
    """Pictures side by side, under one caption if they share it.

    :param caption: what they share.
    :param pictures: the pictures.
    :param page_only: whether only the HTML page shows them.
    """

    caption: str
    pictures: Sequence[Picture]
    page_only: bool = False


@dataclass(frozen=True)
class Listing:
    """Lines to be shown as they are."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Folded:
    """Parts that are out of sight until asked for."""

    summary: str
    parts: Sequence[Table | Listing | Paragraph]


Part = Heading | Paragraph | Table | Gallery | Listing | Folded


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    parts: Sequence[Part] = field(default_factory=tuple)
