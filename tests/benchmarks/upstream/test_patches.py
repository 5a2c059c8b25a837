"""Stored patches fit the installed Avalanche, and lines that are not there are named."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from avalanche_dco.errors import DCOError
from benchmarks.upstream import contribution
from benchmarks.upstream.patches import FIXES, installed_avalanche, new_file, stored_patch


@pytest.mark.parametrize("name", ["exports", *FIXES])
def test_git_applies_what_fits_the_installed_avalanche(name: str, tmp_path: Path) -> None:
    patch = stored_patch(name, installed_avalanche())
    (tmp_path / "mine.patch").write_text(patch + new_file("tests/new.py", "x = 1\n\ny = 2\n"))
    for path in re.findall(r"^--- a/avalanche/(.*)$", patch, re.MULTILINE):
        there = tmp_path / "avalanche" / path
        there.parent.mkdir(parents=True)
        there.write_text((installed_avalanche() / path).read_text())  # Windows line ends
    subprocess.run(["git", "apply", "mine.patch"], cwd=tmp_path, check=True)
    assert (tmp_path / "tests" / "new.py").read_text() == "x = 1\n\ny = 2\n"
    with pytest.raises(DCOError):  # it is mended now
        stored_patch(name, tmp_path / "avalanche")


def test_lines_that_are_not_there_are_named(tmp_path: Path) -> None:
    path = "training/plugins/agem.py"
    (tmp_path / path).parent.mkdir(parents=True)
    shutil.copy(installed_avalanche() / path, tmp_path / path)
    assert stored_patch("agem", tmp_path)
    text = (tmp_path / path).read_text()
    (tmp_path / path).write_text(text.replace("p.grad.view(-1)", "p.grad.ravel()"))
    with pytest.raises(DCOError, match=r"agem\.py is not the version .*\n(.*\n)*-.*view\(-1\)"):
        stored_patch("agem", tmp_path)


def test_replaced_code_has_to_be_there_once() -> None:
    module, texts = next(iter(contribution.REPLACED.items()))
    (ours,) = texts
    assert contribution._prepared("another.module", ours) == ours
    with pytest.raises(DCOError, match=rf"{module} has this text 2 times"):
        contribution._prepared(module, ours + ours)
