"""Figures as SVG: the same bytes each time, text as text, and nothing lost on the way."""

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.report.figures import compact, save_svg


def draw(heights: list[float]) -> Figure:
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot(heights, marker="o", color="#0072B2", label="DCO")
    axes.plot(heights[::-1], marker="s", color="#0072B2", label="Naive")
    axes.set(yscale="log", xlabel="Past tasks")
    axes.legend()
    return figure


def test_a_figure_is_written_alike_each_time_with_its_text(tmp_path: Path) -> None:
    texts = []
    for name in ("a.svg", "b.svg"):
        save_svg(tmp_path / name, draw, [0.1, 1.0, 10.0])
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    for there in (">Past tasks</text>", ">DCO</text>", "currentColor", "font-family:'DejaVu"):
        assert there in texts[0]
    assert "mathdefault" not in texts[0]
    assert len(ElementTree.fromstring(texts[0]).findall(".//{*}tspan")) >= 3  # 10^-1, 10^0, 10^1


def test_a_compact_figure_has_the_same_parts_and_looks(tmp_path: Path) -> None:
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw([0.1, 1.0, 10.0]).savefig(tmp_path / "plain.svg")
    plain = (tmp_path / "plain.svg").read_text()
    small = compact(plain)
    assert len(small) < len(plain) / 2
    before, after = ElementTree.fromstring(plain), ElementTree.fromstring(small)
    for tag in ("path", "use", "clipPath"):
        assert len(after.findall(f".//{{*}}{tag}")) == len(before.findall(f".//{{*}}{tag}"))
    rules = dict(re.findall(r"\.(c\d+)\{([^}]*)\}", small))
    looks = [
        [rules.get(one.get("class", ""), one.get("style")) for one in tree.findall(".//{*}use")]
        for tree in (before, after)
    ]
    assert looks[0] == looks[1]
    named = {one.get("id") for one in after.iter()} - {None}
    assert named == set(re.findall(r"#(i\d+)", small))
