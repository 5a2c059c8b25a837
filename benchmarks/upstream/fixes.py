"""The patches against the installed Avalanche, each with its unittest as a new file."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from avalanche_dco.errors import DCOError
from benchmarks.upstream.defects import DEFECTS
from benchmarks.upstream.edits import Defect, edited, unified_diff
from benchmarks.upstream.layout import blackened
from benchmarks.upstream.modules import Target, composed
from benchmarks.upstream.needed import Needed
from benchmarks.upstream.sources import Library, Name

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TEMPLATES = "benchmarks.upstream.templates"


@dataclass(frozen=True)
class Fix:
    """One pull request.

    :param test: the path of its unittest.
    """

    name: str
    patch: str
    test: str


def installed_avalanche() -> Path:
    """The folder of the package that is installed; it is not imported."""
    found = importlib.util.find_spec("avalanche")
    if found is None or not found.submodule_search_locations:
        raise DCOError("Avalanche is not installed; write: pip install avalanche-lib.")
    return Path(found.submodule_search_locations[0])


def fixes(avalanche: Path) -> list[Fix]:
    """All pull requests that mend a defect."""
    return [_fix(defect, avalanche) for defect in DEFECTS]


def _fix(defect: Defect, avalanche: Path) -> Fix:
    path = f"avalanche/{defect.path}"
    before = (avalanche / defect.path).read_text()
    after = edited(before, defect.edits, path)
    if blackened(before) == before:  # otherwise Black would change more than the defect
        after = blackened(after)
    test = f"tests/training/test_fix_{defect.name}.py"
    added = test_module(test, "test_defects", defect.test)
    patch = unified_diff(before, after, path) + unified_diff("", added, test)
    return Fix(defect.name, patch, test)


def test_module(path: str, template: str, *classes: str) -> str:
    """Unittests, with what they need of the templates."""
    library = Library(REPOSITORY, ("benchmarks",))
    names = [Name(f"{TEMPLATES}.{template}", name) for name in classes]
    doc = ast.get_docstring(library.part(names[0]).node)  # type: ignore[arg-type]
    target = Target(path, (f"{TEMPLATES}.",), doc or "", main="unittest.main()")
    return composed(Needed(library, names), [target])[path]
