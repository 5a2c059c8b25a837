"""The Python on every page, in every example and in every public docstring runs as printed."""

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from _pytest.mark.structures import ParameterSet

from avalanche_dco import baselines
from avalanche_dco.errors import DCOError
from docs.run_pages import (
    EXAMPLES,
    README,
    ROOT,
    agrees,
    notebooks,
    pages,
    renewed_readme,
    run_notebook,
    run_page,
    run_script,
    scripts,
)


@pytest.fixture(autouse=True)
def _one_generator() -> None:
    torch.manual_seed(0)


_MODULES = (
    "",
    ".baselines",
    ".landscape",
    ".logging",
    ".metrics",
    ".models",
    ".persistence",
    ".plots",
    ".strategies",
)
_SLOW = ("cost",)  # a measurement of times


def _marked(paths: list[Path]) -> list[ParameterSet]:
    return [
        pytest.param(path, marks=[pytest.mark.slow] if path.stem in _SLOW else []) for path in paths
    ]


@pytest.mark.parametrize("page", _marked(pages()), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_and_print_what_it_shows(page: Path) -> None:
    text, figures = run_page(page)
    assert agrees(page.read_text(encoding="utf-8"), text)
    assert all((page.parent / "figures" / name).exists() for name in figures)


@pytest.mark.parametrize("script", _marked(scripts()), ids=lambda script: script.stem)
def test_an_example_runs_and_prints_what_is_shown(script: Path) -> None:
    printed, files = run_script(script)
    assert agrees(script.with_suffix(".txt").read_text(encoding="utf-8"), printed)
    assert all((script.parent / name).exists() for name in files)


def test_the_readme_shows_the_first_example_and_its_output() -> None:
    assert README.read_text(encoding="utf-8") == renewed_readme()


def test_the_readme_says_of_class_incremental_streams_what_the_example_prints() -> None:
    (paragraph,) = re.findall(
        r"^- \*\*Not on .*?(?=^- )", README.read_text(), re.DOTALL | re.MULTILINE
    )
    printed = (EXAMPLES / "replay.txt").read_text()
    numbers = re.findall(r"\b0\.\d\d\b", paragraph)
    assert len(numbers) == 5
    assert set(numbers) <= set(printed.split())


@pytest.mark.slow
def test_the_readme_tells_what_each_plugin_reaches() -> None:
    assert agrees(README.read_text(encoding="utf-8"), renewed_readme(accuracies=True))


def test_the_readme_is_short_and_so_are_its_sentences() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    prose = re.sub(
        r"```.*?```|<!--.*?-->|^\|.*$|^#.*$|^!.*$", "\n\n", text, flags=re.DOTALL | re.MULTILINE
    )
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    for paragraph in re.split(r"\n\s*\n|\n- ", prose):
        for sentence in re.split(r"(?<=[.:;?])\s", paragraph):
            assert len(sentence.split()) <= 30, sentence


@pytest.mark.parametrize("notebook", notebooks(), ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_and_prints_what_it_shows(notebook: Path) -> None:
    outputs = [
        [
            "".join(output.get("text", ""))
            for cell in content.cells
            if cell.cell_type == "code"
            for output in cell.outputs
        ]
        for content in (_read(notebook), run_notebook(notebook))
    ]
    assert any(outputs[0])
    assert agrees("\n".join(outputs[0]), "\n".join(outputs[1]))


def _read(notebook: Path) -> nbformat.NotebookNode:
    return nbformat.read(notebook, as_version=4)


def test_there_are_five_examples_and_one_notebook_all_short() -> None:
    assert len(scripts()) == 5
    assert len(notebooks()) == 1
    for script in scripts():
        assert len(script.read_text().splitlines()) < 60, script
    (notebook,) = notebooks()
    code = [cell.source for cell in _read(notebook).cells if cell.cell_type == "code"]
    assert sum(len(source.splitlines()) for source in code) < 60


def test_outputs_agree_up_to_times_and_rounding() -> None:
    assert agrees("error 0.31 in 12 s", "error 0.33 in 9.5 s")
    assert not agrees("error 0.31 in 12 s", "error 0.51 in 12 s")
    assert not agrees("error 0.31", "accuracy 0.31")


def test_examples_need_nothing_but_the_package_and_what_it_installs() -> None:
    allowed = {"avalanche", "avalanche_dco", "matplotlib", "pandas", "sklearn", "time", "torch"}
    for script in scripts():
        imported = re.findall(r"^(?:from|import) (\w+)", script.read_text(), re.MULTILINE)
        assert set(imported) <= allowed, script


def _public() -> list[Any]:
    """Every class and function that the package exports, once, and modules with an example."""
    modules = [importlib.import_module(f"avalanche_dco{name}") for name in _MODULES]
    named = {getattr(module, name): None for module in modules for name in module.__all__}
    return [DCOError, baselines, *(one for one in named if callable(one))]


@pytest.mark.parametrize("named", _public(), ids=lambda named: named.__name__)
def test_the_example_of_a_public_docstring_runs(
    named: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    documentation = inspect.getdoc(named)
    assert documentation is not None
    test = doctest.DocTestParser().get_doctest(documentation, {}, named.__name__, "", 0)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
