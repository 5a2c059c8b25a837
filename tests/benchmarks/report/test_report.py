"""The report as a whole: what it says, that it needs nothing else, and that nothing breaks it."""

import csv
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from avalanche_dco.errors import SettingError
from benchmarks.__main__ import main
from benchmarks.commands.report import write_report
from benchmarks.report.error_tables import WIDEST
from benchmarks.report.paper_numbers import SWEEPS, TABLE_1
from tests.support.run_folders import change_run, write_run

SCRIPT = "<script>alert('k')</script>"
VOID = {"meta", "img", "br", "link"}


class Page(HTMLParser):
    """Text and attributes of a page; fails where tags do not close."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data.replace("\u00a0", " ")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of everything at once: two benchmarks of the paper, own arrays, broken files."""
    runs, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("out")
    for seed, naive, dco in ((1, 12.0, 2.0), (2, 14.8, 3.2)):
        write_run(runs, "naive", seed, naive, benchmark="split-mnist")
        write_run(runs, "dco", seed, dco, benchmark="split-mnist", settings={"tau": SCRIPT})
    write_run(runs, "a-gem", 1, 1.37, benchmark="split-mnist")
    write_run(runs, "joint", 1, errors=np.array([[1.1, 2.2]]), benchmark="split-mnist")
    for k, average in ((100, 11.0), (1000, 5.0)):
        write_run(runs, "dco-comp", 1, average, benchmark="permuted-mnist", settings={"k": k})
    write_run(runs, "ewc", 1, 77.77, benchmark="split-mnist", split="validation")
    own = {"name": "a|b <i>.npz", "sha256": "cd" * 32}
    write_run(runs, "dco", 1, 6.5, benchmark="split-cifar100", npz=own)
    unfinished = write_run(runs, "si", 1, benchmark="split-mnist")
    (unfinished / "outcome.json").unlink()
    broken = write_run(runs, "si", 2, benchmark="split-mnist")
    (broken / "config.json").write_text("{")
    (out / "report-figures").mkdir()
    (out / "report-figures" / "stale.svg").write_text("")
    return write_report([runs], out), unfinished.name, broken.name


@pytest.fixture(scope="module")
def page(report):
    return Page(report[0][0].read_text())


def row(page: Page, label: str, number: int = 0) -> list[str]:
    return [cells for cells in page.rows if cells and cells[0] == label][number]


def test_files(report):
    html, markdown, table = report[0]
    assert [path.name for path in (html, markdown, table)] == [
        "report.html", "report.md", "results.csv",
    ]  # fmt: skip
    assert not (html.parent / "report-figures" / "stale.svg").exists()
    assert not list(html.parent.rglob("*.part"))


def test_page_needs_nothing_from_outside(report, page):
    loads = [
        (tag, name, value)
        for tag, name, value in page.attributes
        if name in ("src", "href", "srcset", "action", "data", "poster")
    ]
    assert loads
    for tag, name, value in loads:
        assert value.startswith("data:image/svg+xml;base64," if tag == "img" else "#"), name
    assert not {"script", "link", "iframe", "object", "embed"} & set(page.tags)
    source = report[0][0].read_text()
    assert "@import" not in source
    assert "url(" not in source
    assert [value for tag, name, value in page.attributes if name == "href"] == [
        f"#{anchor}" for anchor in page.ids if f'href="#{anchor}"' in source
    ]


def test_page_suits_phones_and_both_colour_schemes(report, page):
    assert ("meta", "name", "viewport") in page.attributes
    assert ("meta", "content", "light dark") in page.attributes
    source = report[0][0].read_text()
    assert "prefers-color-scheme: dark" in source
    assert source.count('<div class="scroll" tabindex="0"><table>') == source.count("<table>")
    assert all(value for tag, name, value in page.attributes if name == "alt")
    assert len(page.ids) == len(set(page.ids))


def test_settings_cannot_add_markup(report):
    html, markdown, _ = (path.read_text() for path in report[0])
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#39;k&#39;" in html
    assert "<script" not in markdown
    assert "<i>" not in html + markdown
    for path in (report[0][0].parent / "report-figures").glob("*.svg"):
        assert "<script" not in path.read_text()


def test_numbers_of_the_table(page):
    assert row(page, "naive") == ["naive", "–", "–", "17.41", "–", "–"]  # permuted-mnist
    assert row(page, "naive", 1) == [
        "naive", "2", "13.40 ± 1.98", "9.68", "10.05 ± 1.48", "3.35 ± 0.49",
    ]  # fmt: skip
    assert ["dco", "–", "–", "4.68", "–", "–"] in page.rows  # permuted-mnist
    assert row(page, "a-gem")[:4] == ["a-gem", "1", "1.37", "–"]
    assert row(page, "joint") == ["joint", "1", "1.65", "–", "1.65", "0.00"]
    difference = row(page, "naive", 2)
    assert difference == ["naive", "2", "+10.80 ± 0.80", "+8.10 ± 0.60", "+2.70 ± 0.20"]
    assert row(page, "naive", 3) == ["naive", "3,456 ± 0", "12 ± 0", "7.89", "123"]


def test_no_table_has_more_than_six_columns(page):
    assert max(map(len, page.rows)) == WIDEST


def test_paper_numbers_are_not_set_beside_own_arrays(page, report):
    assert TABLE_1["split-cifar100"]["dco"] == 26.61
    assert "26.61" not in report[0][0].read_text()
    assert "26.61" not in report[0][1].read_text()
    assert "split-cifar100 on a|b &lt;i&gt;.npz cdcdcdcdcdcd</h2>" in report[0][0].read_text()


def test_validation_has_a_table_of_its_own(page, report):
    having = [cells for cells in page.rows if any("77.77" in cell for cell in cells)]
    assert len(having) == 1
    assert "errors on the validation split, not on test data" in report[0][0].read_text()


def test_replay_and_bound_are_set_apart(page):
    first = [cells[0] for cells in page.rows if cells]
    start = first.index("naive")
    replay = first.index("replay: keeps data of earlier tasks")
    bound = first.index("bound: has the data of all tasks at hand")
    assert start < first.index("dco-comp (100 directions)") < replay
    assert first[replay + 1] == "a-gem"
    assert bound == replay + 2
    assert first[bound + 1] == "joint"


def test_best_is_marked_without_replay_and_bound(report):
    marked = re.findall(r"<strong[^>]*>(.*?)</strong>", report[0][0].read_text())
    assert "2.60 ±\u00a00.85" in marked
    assert not {"1.37", "1.65"} & set(marked)


def test_sweep_has_the_paper_s_values_beside(page):
    values = {cells[0]: cells for cells in page.rows if len(cells) == 6 and cells[0].isdigit()}
    for k, error in SWEEPS["permuted-mnist", "dco-comp", "k"].items():
        assert values[str(k)][-1] == f"{error:.2f}"
    assert values["100"][2] == "11.00"
    assert values["500"][2] == "–"


def test_what_was_left_out_is_named(page, report):
    _, unfinished, broken = report
    left_out = {cells[0]: cells[1] for cells in page.rows if len(cells) == 2}
    assert left_out[unfinished] == "unfinished: no outcome.json yet"
    assert left_out[broken].startswith("not counted: JSONDecodeError")
    assert "10 finished runs, 1 unfinished, 1 problems with files" in report[0][0].read_text()


def test_configuration_is_shown(page, report):
    source = report[0][0].read_text()
    assert "python -m benchmarks run --methods a-gem" in source
    shown = {cells[0]: cells[1] for cells in page.rows if len(cells) == 2}
    assert shown["commit"] == "c0ffee"
    assert shown["torch"] == "2.9.9"
    assert shown["data digits"] == "ab" * 32
    assert shown["own arrays"].endswith("cd" * 32)


def test_markdown(report):
    path = report[0][1]
    text = path.read_text()
    shown = re.findall(r"!\[[^\n]*\]\((report-figures/[^)]+)\)", text)
    assert sorted(shown) == sorted(
        f"report-figures/{figure.name}" for figure in (path.parent / "report-figures").iterdir()
    )
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        lines = block.strip().splitlines()
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in lines}
        assert len(widths) == 1, block
    assert "| naive | 2 | 13.40 ± 1.98 | 9.68 | 10.05 ± 1.48 | 3.35 ± 0.49 |" in text
    assert "| dco | 2 | **2.60 ± 0.85** | 1.46 |" in text


def test_figures_adapt_to_dark_pages(report):
    figures = list((report[0][0].parent / "report-figures").glob("*.svg"))
    # Two of each comparison's runs and one sweep; none for validation. Heat maps are in the page.
    assert len(figures) == 3 * 2 + 1
    for path in figures:
        svg = path.read_text()
        assert svg.startswith("<svg")
        assert "prefers-color-scheme:dark" in svg
        assert "currentColor" in svg
        assert "#010203" not in svg


def test_lines_of_the_proposed_methods_come_first(report):
    (path,) = (report[0][0].parent / "report-figures").glob("*-split-mnist-average-error.svg")
    texts = re.findall(">([^<]*)</text>", path.read_text())
    explained = [text for text in texts if text in ("naive", "dco", "a-gem", "joint (once)")]
    assert explained == ["dco", "naive", "a-gem", "joint (once)"]


def test_heat_maps_name_method_and_trainings(page):
    sources = [value for tag, name, value in page.attributes if tag == "img" and name == "src"]
    drawn = [
        re.findall(">([^<]*)</text>", b64decode(source.partition(",")[2]).decode())
        for source in sources
    ]
    maps = [texts for texts in drawn if "Evaluated experience" in texts]
    assert len(maps) == 4 + 2 + 1  # one for each entry on test data
    methods = ("naive", "a-gem", "joint")
    by_method = {name: texts for texts in maps for name in methods if name in texts}
    assert {"1 (exp 0)", "2 (exp 1)", "6.7", "13.4"} <= set(by_method["naive"])  # mean over seeds
    assert not any("exp" in text for text in by_method["joint"] if "(" in text)
    assert {"1.1", "2.2"} <= set(by_method["joint"])


def test_results_csv(report):
    with report[0][2].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert list(rows[0])[:6] == ["benchmark", "preset", "npz", "split", "method", "seed"]
    (script,) = {one["settings.tau"] for one in rows} - {""}
    assert script == SCRIPT
    naive = next(one for one in rows if one["method"] == "naive" and one["seed"] == "2")
    assert float(naive["average"]) == 14.8
    assert float(naive["training.lr"]) == 0.1
    assert naive["gradient_evaluations"] == "3456"
    assert [one["split"] for one in rows].count("validation") == 1


def test_command_prints_what_it_wrote(tmp_path, capsys):
    write_run(tmp_path / "runs", "dco", 1, errors=np.array([[3.0]]))
    assert main(["report", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "new" / name) for name in ("report.html", "report.md", "results.csv")
    ]
    assert "1 task;" in (tmp_path / "new" / "report.html").read_text()


def test_a_stale_figure_may_be_removed_by_another_process(tmp_path, monkeypatch):
    write_run(tmp_path / "runs", "dco", 1, errors=np.array([[3.0]]))
    stale = tmp_path / "out" / "report-figures" / "stale.svg"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    unlink = Path.unlink

    def after_another(path, missing_ok=False):
        unlink(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", after_another)
    write_report([tmp_path / "runs"], tmp_path / "out")
    assert not stale.exists()


def test_nothing_to_report(tmp_path, capsys):
    with pytest.raises(SettingError, match="is not there"):
        write_report([tmp_path / "absent"], tmp_path)
    assert main(["report", "--runs", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "there is no run below" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_only_unfinished_and_empty_runs(tmp_path):
    unfinished = write_run(tmp_path, "dco", 1)
    (unfinished / "outcome.json").unlink()
    folder = write_run(tmp_path, "naive", 1)
    metrics = (folder / "metrics.csv").read_bytes()
    change_run(folder, "metrics.csv", metrics.splitlines(keepends=True)[0])
    change_run(folder, "outcome.json", b"{}")
    html = write_report([tmp_path], tmp_path / "out")[0].read_text()
    page = Page(html)
    assert row(page, "naive") == ["naive", "1", "–", "–", "–"]
    assert "img" not in page.tags
    assert unfinished.name in html
