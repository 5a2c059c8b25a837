"""The wheel, installed into an empty environment, runs the tutorial and the examples."""

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from docs.run_pages import ROOT, agrees, scripts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and what it declares, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = ["-I", "-m", "pip", "--quiet"]  # -I: neither this folder nor PYTHONPATH
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # modules of earlier builds
    build = [sys.executable, *pip, "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("avalanche_dco-*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run([python, *pip, "install", str(wheel)], check=True)
    return python


def _run(python: Path, code: Path, folder: Path) -> str:
    done = subprocess.run(
        [python, "-I", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_package_is_the_wheel_and_nothing_of_the_repository(
    python: Path, tmp_path: Path
) -> None:
    code = tmp_path / "where.py"
    code.write_text(
        "import importlib.util, avalanche_dco\n"
        "print(avalanche_dco.__file__, importlib.util.find_spec('benchmarks'))\n"
    )
    where, benchmarks = _run(python, code, tmp_path).split()
    assert Path(where).is_relative_to(python.parent.parent)
    assert benchmarks == "None"


def test_nothing_is_installed_that_the_wheel_does_not_need(python: Path) -> None:
    command = [python, "-I", "-m", "pip", "list", "--format=freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {line.split("==")[0].lower() for line in listed.splitlines()}
    assert "avalanche-lib" in names
    assert not names & {"pytest", "hypothesis", "ruff", "mypy", "sphinx", "ray"}


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.stem)
def test_an_example_runs_with_the_wheel(script: Path, python: Path, tmp_path: Path) -> None:
    shown = script.with_suffix(".txt").read_text(encoding="utf-8")
    assert agrees(shown, _run(python, script, tmp_path))


def test_the_tutorial_runs_with_the_wheel(python: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = dict.fromkeys(("python", "output"), "")
    for kind, text in re.findall(
        r"^```(python|output)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE
    ):
        blocks[kind] += text
    code = tmp_path / "tutorial.py"
    code.write_text(blocks["python"], encoding="utf-8")
    assert agrees(blocks["output"], _run(python, code, tmp_path))
    assert (tmp_path / "tutorial.svg").exists()
