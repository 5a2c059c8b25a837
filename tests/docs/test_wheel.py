"""The wheel, installed into an empty environment, runs the tutorial and the examples."""

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from docs.run_pages import ROOT, agrees, scripts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, and with this one's packages as dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = [*pip, "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("avalanche_dco-*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    # A path file adds folders, but does not read the path files in them: no editable install.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    install = [*pip, "install", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True)
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
