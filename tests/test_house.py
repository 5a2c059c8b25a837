"""The rules of the house: which folder may import which, and how long a module may be."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("avalanche_dco", "benchmarks")
LONGEST = 300


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
}


def imported(name: str) -> Iterator[str]:
    """What a module imports when it is imported, as absolute names."""
    for node in _outside_functions(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            assert node.module is not None
            for alias in node.names:
                longer = f"{node.module}.{alias.name}"
                yield longer if longer in MODULES else node.module


def _outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _outside_functions(node)


def everywhere(name: str) -> Iterator[str]:
    """What a module imports anywhere, for typing too."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def roots(names: Iterator[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize(
    "name", [name for name in MODULES if name.startswith("avalanche_dco.core")]
)
def test_the_core_imports_no_avalanche_and_nothing_above_it(name):
    assert "avalanche" not in roots(everywhere(name))
    own = {other for other in everywhere(name) if other.startswith("avalanche_dco")}
    assert all(o.startswith(("avalanche_dco.core", "avalanche_dco.errors")) for o in own)


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("avalanche_dco")])
def test_the_package_does_not_import_the_benchmarks(name):
    assert "benchmarks" not in roots(everywhere(name))


def test_no_import_cycles():
    own = {name: {other for other in imported(name) if other in MODULES} for name in MODULES}
    # A package is imported before its modules; what its __init__ offers is no cycle.
    graph = {
        name: {other for other in others if not name.startswith(f"{other}.")}
        for name, others in own.items()
    }
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_too_long(name):
    assert len(MODULES[name].read_text().splitlines()) <= LONGEST
