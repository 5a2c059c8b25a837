"""The bundle in a copy of the installed Avalanche: it applies, and its tests pass."""

import ast
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.runs.kept import RESULTS, read_measurements, study_path
from benchmarks.upstream import wrappers
from benchmarks.upstream.patches import FIXES, installed_avalanche
from tests.support.contributed import RUNS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
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


def run(
    folder: Path, *arguments: str, root: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Python with the Avalanche in a folder, and this package if its root is given."""
    paths = os.pathsep.join(map(str, [folder, *([root] if root else [])]))
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=root or folder,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def run_tests(folder: Path, pattern: str) -> dict[str, bool]:
    """Unittests and whether they pass, with the Avalanche in a folder."""
    done = run(folder, *UNITTEST, "-p", pattern)
    outcome = r"^(test_\w+) \((.*)\).*?\.\.\. (?:.*\n)*?.*?(ok|FAIL|ERROR)$"
    found = re.findall(outcome, done.stderr, re.MULTILINE)
    assert f"Ran {len(found)} tests" in done.stderr, done.stderr
    return {f"{where}.{name}": outcome == "ok" for name, where, outcome in found}


def test_every_pull_request_has_a_patch_and_a_text(bundle: Path) -> None:
    for name in ("dco", *(f"fixes/{name}" for name in FIXES)):
        assert (bundle / f"{name}.patch").exists()
        assert (bundle / f"{name}.md").read_text().startswith("# ")


def test_all_tests_pass_after_and_those_of_defects_fail_before(bundle: Path, patched: Path) -> None:
    plain = copy_of_avalanche(bundle.parent / "plain")
    shutil.copytree(patched / "tests", plain / "tests")
    with ThreadPoolExecutor() as pool:
        before, after = pool.map(run_tests, (plain, patched), ("test_fix_*.py", "test_*.py"))
    assert [name for name, passed in before.items() if passed] == []
    assert [name for name, passed in after.items() if not passed] == []
    assert before.keys() <= after.keys()
    files = {name.split(".")[0] for name in after}
    assert files == {"test_dco", *(f"test_fix_{name}" for name in FIXES)}


def test_results_on_digits_are_those_of_the_package_and_the_example_runs(patched: Path) -> None:
    example = str(patched / "examples" / "dco.py")
    done = run(patched, "-m", "tests.support.contributed", example, root=ROOT)
    assert done.returncode == 0, done.stderr
    *compared, naive, dco, comp, kron = done.stdout.splitlines()
    assert [line for line in compared if not line.endswith(": same")] == []
    assert len(compared) == 2 * len(RUNS)
    for line, name in zip((naive, dco, comp, kron), ("Naive", *wrappers.NAMES), strict=True):
        assert re.fullmatch(rf"{name}: \d+\.\d %", line)


def test_it_stands_alone_and_plugin_files_are_short(bundle: Path, patched: Path) -> None:
    patch = (bundle / "dco.patch").read_text()
    for only_ours in ("avalanche_dco", "*Settings*", "plot_free_directions", "Plugin.paper("):
        assert only_ours not in patch
    for name in ("dco.py", "dco_kron.py"):
        plugin = patched / "avalanche" / "training" / "plugins" / name
        assert len(plugin.read_text().splitlines()) < 700


def test_recorded_line_counts_are_about_right(bundle: Path) -> None:
    fresh, recorded = (
        read_measurements(study_path("upstream", results))[0].set_index("file")["lines"]
        for results in (bundle, RESULTS)
    )
    advice = "write: python -m benchmarks upstream --out DIR --record; python -m benchmarks tables"
    assert list(fresh.index) == list(recorded.index), advice
    assert ((fresh - recorded).abs() <= 0.1 * fresh).all(), advice
    for path, lines in fresh.items():
        assert f"| `{path}` | {lines:,} |" in (bundle / "dco.md").read_text()


def written(bundle: Path, patched: Path) -> list[Path]:
    """The files that the patches change or add."""
    texts = "".join(patch.read_text() for patch in patches(bundle))
    return [patched / path for path in re.findall(r"^\+\+\+ b/(.*\.py)$", texts, re.MULTILINE)]


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
