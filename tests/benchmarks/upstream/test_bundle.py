"""The bundle in a copy of the installed Avalanche: it applies, and its tests pass."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.upstream.fixes import DEFECTS, installed_avalanche

pytestmark = pytest.mark.slow

UNITTEST = ("-m", "unittest", "discover", "-v", "-s", "tests/training")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle as the command writes it."""
    out = tmp_path_factory.mktemp("upstream") / "bundle"
    assert main(["upstream", "--out", str(out)]) == 0
    return out


def patches(bundle: Path) -> list[Path]:
    return sorted(bundle.rglob("*.patch"))


def copy_of_avalanche(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(installed_avalanche(), folder / "avalanche", ignore=ignored)
    for path in folder.rglob("*.py"):  # Windows line ends in the release, none in the repository
        path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
    return folder


@pytest.fixture(scope="module")
def patched(bundle: Path) -> Path:
    """A copy of Avalanche with all patches."""
    folder = copy_of_avalanche(bundle.parent / "patched")
    for patch in patches(bundle):
        subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True)
    return folder


def run_tests(folder: Path, pattern: str) -> list[tuple[str, bool]]:
    """Unittests and whether they pass, with the Avalanche in a folder."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *UNITTEST, "-p", pattern],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(
        r"^(test_\w+) \((.*)\).*?\.\.\. (?:.*\n)*?.*?(ok|FAIL|ERROR)$", done.stderr, re.M
    )
    assert found, done.stderr
    assert f"Ran {len(found)} tests" in done.stderr, done.stderr
    return [(f"{where}.{name}", outcome == "ok") for name, where, outcome in found]


def test_every_defect_has_a_patch_and_a_text(bundle: Path) -> None:
    for defect in DEFECTS:
        assert (bundle / "fixes" / f"{defect.name}.patch").exists()
        assert (bundle / "fixes" / f"{defect.name}.md").read_text().startswith("# ")


def test_each_test_of_a_defect_fails_before_and_passes_after(bundle: Path, patched: Path) -> None:
    plain = copy_of_avalanche(bundle.parent / "plain")
    shutil.copytree(patched / "tests", plain / "tests")
    before, after = (run_tests(folder, "test_fix_*.py") for folder in (plain, patched))
    assert [name for name, passed in before if passed] == []
    assert [name for name, passed in after if not passed] == []
    assert [name for name, _ in before] == [name for name, _ in after]
    files = {name.split(".")[0] for name, _ in after}
    assert files == {f"test_fix_{defect.name}" for defect in DEFECTS}


def written(bundle: Path, patched: Path) -> list[Path]:
    """The files that the patches change or add."""
    texts = "".join(patch.read_text() for patch in patches(bundle))
    return [patched / path for path in re.findall(r"^\+\+\+ b/(.*)$", texts, re.M)]


def test_the_style_is_that_of_avalanche(bundle: Path, patched: Path) -> None:
    files = written(bundle, patched)
    for path in files:
        ast.parse(path.read_text(), feature_version=(3, 8))
    new = [
        path
        for path in files
        if not (installed_avalanche().parent / path.relative_to(patched)).exists()
    ]
    # Black lays out this module of Avalanche's otherwise, and a patch leaves it as it is.
    black = [path for path in files if path.name != "wandb_logger.py"]
    for check, checked in (
        (["black", "--check", "--target-version", "py38", "--line-length", "88"], black),
        (["ruff", "check", "--isolated", "--select", "E,F,W", "--line-length", "88"], new),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *check, *checked], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_folder_with_something_in_it_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("")
    assert main(["upstream", "--out", str(tmp_path)]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
