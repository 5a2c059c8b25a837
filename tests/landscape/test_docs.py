"""The figures of the documentation page."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "landscape.md"


def test_every_figure_on_the_page_exists_and_is_small() -> None:
    figures = re.findall(r"\]\((figures/[^)]+)\)", PAGE.read_text())
    assert [Path(figure).stem for figure in figures] == [
        *(f"mnist-observation{number}" for number in (1, 2, 3)),
        "mnist-cone",
    ]
    for figure in figures:
        assert 0 < (PAGE.parent / figure).stat().st_size < 200_000, figure
