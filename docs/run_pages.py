"""Run the Python in README.md and docs/ as printed, and write what it prints beside it.

    python docs/run_pages.py             all pages, examples and the notebook
    python docs/run_pages.py tutorial    those with this in their path

- The ``python`` blocks of a page run in order, in one namespace and in an empty folder. A block
  ``output`` after one of them shows what it prints, and ``docs/figures`` has what it draws.
- ``docs/examples/NAME.py`` has its output in ``NAME.txt`` and its figure in ``NAME.svg``.
- README.md shows the first example.
- The notebook holds its own outputs.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import runpy
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import nbclient
import nbformat
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
EXAMPLES = ROOT / "docs" / "examples"
_BLOCK = re.compile(r"^```(python|output)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ELSEWHERE = ("architecture.md",)  # its blocks are edits of the repository: tests/test_recipes.py
_VARIANT = re.compile(r"^\| `plugins=\[(.*)\]` \|.*\|$", re.MULTILINE)
_OWN = "DCOPlugin(k=1000)"  # the example's plugin
_TIME = re.compile(r"\d[\d.]* (?=m?s\b)")
_NUMBER = re.compile(r"-?\d+\.\d+")
TOLERANCE = 0.05
"""Of printed accuracies and errors: processors round in different ways."""


def pages() -> list[Path]:
    """All pages with Python in them but README.md, which shows an example."""
    found = (page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in _ELSEWHERE)
    return [page for page in found if "_build" not in page.parts and "```python" in _text(page)]


def scripts() -> list[Path]:
    """All examples."""
    return sorted(EXAMPLES.glob("*.py"))


def notebooks() -> list[Path]:
    """All notebooks."""
    return sorted(EXAMPLES.glob("*.ipynb"))


def run_page(page: Path) -> tuple[str, dict[str, bytes]]:
    """Run the blocks of a page.

    :param page: the page.
    :return: its text with the outputs of this run, and the figures on it that the run makes.
    """
    names: dict[str, object] = {"__name__": "__page__"}
    printed = ""

    def run_block(block: re.Match[str]) -> str:
        nonlocal printed
        if block[1] == "output":
            return f"```output\n{printed}```"
        line = block.string[: block.start()].count("\n") + 1
        code = compile("\n" * line + block[2], str(page), "exec")
        with _captured() as output:
            exec(code, names)
        printed = output.getvalue()
        return block[0]

    with _empty_folder() as folder:
        text = _BLOCK.sub(run_block, _text(page))
        files = _files(folder).items()
        return text, {name: file for name, file in files if f"(figures/{name})" in text}


def run_script(script: Path) -> tuple[str, dict[str, bytes]]:
    """Run an example.

    :param script: its path.
    :return: what it prints, and the files that it writes.
    """
    with _empty_folder() as folder, _captured() as output:
        runpy.run_path(str(script), run_name="__main__")
        return output.getvalue(), _files(folder)


def renewed_readme(accuracies: bool = False) -> str:
    """README.md with the first example, its output, and what other plugins make of it.

    :param accuracies: whether to run it with each of the plugins.
    """
    example = EXAMPLES / "plug_in.py"
    blocks = iter([_text(example), _text(example.with_suffix(".txt"))])
    text = _BLOCK.sub(lambda block: f"```{block[1]}\n{next(blocks)}```", _text(README))
    return _VARIANT.sub(lambda row: _run_variant(row[1]), text) if accuracies else text


def _run_variant(plugin: str) -> str:
    """The row of a plugin: the example's own output, or that of the example with another plugin."""
    printed = _text(EXAMPLES / "plug_in.txt") if plugin == _OWN else _printed_with(plugin)
    average, seconds = re.findall(r"average ([\d.]+), trained in (\d+ s)", printed)[0]
    return f"| `plugins=[{plugin}]` | {average} | {seconds} |"


def _printed_with(plugin: str) -> str:
    code = _text(EXAMPLES / "plug_in.py").replace(f"[{_OWN}]", f"[{plugin}]")
    name = plugin.split("(", maxsplit=1)[0] or "DCOPlugin"
    with _empty_folder() as folder:
        script = folder / "variant.py"
        script.write_text(code.replace("import DCOPlugin", f"import {name}"), encoding="utf-8")
        return run_script(script)[0]


def run_notebook(notebook: Path) -> nbformat.NotebookNode:
    """Run a notebook.

    :param notebook: its path.
    :return: the notebook with its outputs.
    """
    content = nbformat.read(notebook, as_version=4)
    with _empty_folder() as folder:
        nbclient.NotebookClient(content, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in content.cells:
        cell.metadata = {}
        if cell.cell_type == "code":  # what it prints and draws, not Avalanche's warnings
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
            for output in cell.outputs:
                data = output.get("data", {})
                if "image/png" in data:
                    data["image/png"] = _with_palette(data["image/png"])
    return content


def _with_palette(encoded: str) -> str:
    """The same PNG in a third of the bytes."""
    picture = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB")
    file = io.BytesIO()
    picture.quantize(128, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode() + "\n"


def _files(folder: Path) -> dict[str, bytes]:
    """What was written to a folder, figures with text as text."""
    from benchmarks.report.figures import compact  # noqa: PLC0415 (not installed)

    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {
        name: compact(file.decode()).encode() if name.endswith(".svg") else file
        for name, file in files.items()
    }


def agrees(shown: str, printed: str) -> bool:
    """Whether two outputs are the same but for times and rounding.

    :param shown: the output on the page.
    :param printed: the output of a run.
    """
    shown, printed = (_TIME.sub("", text) for text in (shown, printed))
    numbers = zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=False)
    return _NUMBER.sub("#", shown).split() == _NUMBER.sub("#", printed).split() and all(
        abs(float(one) - float(other)) <= TOLERANCE for one, other in numbers
    )


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    with contextlib.redirect_stdout(io.StringIO()) as output, warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # Avalanche's own
        yield output


@contextlib.contextmanager
def _empty_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "docs"}):
                yield Path(folder)
        finally:
            os.chdir(before)


def main(wanted: str = "") -> None:
    """Write the outputs of what has this in its path."""
    for page in pages():
        if wanted in str(page):
            text, figures = run_page(page)
            page.write_text(text, encoding="utf-8")
            for name, content in figures.items():
                (page.parent / "figures" / name).write_bytes(content)
            print(page.relative_to(ROOT))
    for script in scripts():
        if wanted in str(script):
            printed, files = run_script(script)
            script.with_suffix(".txt").write_text(printed, encoding="utf-8")
            for name, content in files.items():
                (EXAMPLES / name).write_bytes(content)
            print(script.relative_to(ROOT))
    if wanted in str(README):
        README.write_text(renewed_readme(accuracies=True), encoding="utf-8")
        print(README.relative_to(ROOT))
    for notebook in notebooks():
        if wanted in str(notebook):
            nbformat.write(run_notebook(notebook), notebook)
            print(notebook.relative_to(ROOT))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # pages also use the benchmarks, which are not installed
    main(*sys.argv[1:])
