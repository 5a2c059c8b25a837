"""Patches for Avalanche: the changes of its own files as they are stored, and new files."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

from avalanche_dco.errors import DCOError
from benchmarks.upstream.modules import Target, composed
from benchmarks.upstream.needed import Needed
from benchmarks.upstream.sources import Library, Name

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TEMPLATES = "benchmarks.upstream.templates"
FIXES = {
    "si": "SynapticIntelligenceTest",
    "rwalk": "RWalkTest",
    "ewc": "EWCTest",
    "mas": "MASTest",
    "lwf": "LwFTest",
    "agem": "AGEMTest",
    "checkpointing": "CheckpointingTest",
    "wandb": "WandBTest",
}
"""The defects of Avalanche 0.6.0 that are mended, and the class with the unittest of each.

A page in ``docs/upstream`` is the text of each pull request.
"""


def installed_avalanche() -> Path:
    """The folder of the package that is installed; it is not imported."""
    found = importlib.util.find_spec("avalanche")
    if found is None or not found.submodule_search_locations:
        raise DCOError("Avalanche is not installed; write: pip install avalanche-lib.")
    return Path(found.submodule_search_locations[0])


def fix(name: str, avalanche: Path) -> str:
    """The patch that mends a defect and adds its unittest."""
    test = f"tests/training/test_fix_{name}.py"
    added = new_file(test, test_module(test, "test_defects", FIXES[name]))
    return stored_patch(name, avalanche) + added


def new_file(path: str, text: str) -> str:
    """A patch that ``git apply`` takes."""
    lines = text.splitlines()
    count = f"1,{len(lines)}" if len(lines) > 1 else "1"
    head = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +{count} @@\n"
    return head + "".join(f"+{line}\n" for line in lines)


def stored_patch(name: str, avalanche: Path) -> str:
    """Changes of Avalanche's own files; raises unless the installed one has what they change."""
    patch = (Path(__file__).parent / "diffs" / f"{name}.patch").read_text()
    for part in re.split(r"^(?=--- a/)", patch, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^@@ .*\n", part, flags=re.MULTILINE)
        path = head.split("\n")[0].removeprefix("--- a/avalanche/")
        source = (avalanche / path).read_text()
        for hunk in hunks:
            before = re.sub(r"^(\+|\\ ).*\n", "", hunk, flags=re.MULTILINE)
            if re.sub(r"^[ -]", "", before, flags=re.MULTILINE) not in source + "\n":
                raise DCOError(
                    f"avalanche/{path} is not the version that {name}.patch was written for: it "
                    f"does not have these lines:\n{before}Compare that place by hand; it may be "
                    "mended by now."
                )
    return patch


def test_module(path: str, template: str, *classes: str) -> str:
    """Unittests, with what they need of the templates."""
    library = Library(REPOSITORY, ("benchmarks",))
    names = [Name(f"{TEMPLATES}.{template}", name) for name in classes]
    doc = ast.get_docstring(library.part(names[0]).node)  # type: ignore[arg-type]
    target = Target(path, (f"{TEMPLATES}.",), doc or "", main="unittest.main()")
    return composed(Needed(library, names), [target])[path]
