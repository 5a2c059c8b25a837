"""Modules are composed of what is needed, in Python 3.8, and in an order that can be executed."""

import ast
from pathlib import Path

import pytest

from avalanche_dco.errors import DCOError
from benchmarks.upstream.constructors import with_constructors
from benchmarks.upstream.modules import Target, composed
from benchmarks.upstream.needed import Needed
from benchmarks.upstream.sources import Library, Name

SHAPES = '''r"""Shapes, \\alpha."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Number: TypeAlias = int | float
Table = dict[str, Number]


class Shape:
    """A shape."""

    def area(self) -> Number:
        return _helper(2)

    def unused(self) -> None:
        never_needed()


def _helper(x: Number) -> Number:
    return x * x


def never_needed() -> None: ...


def warn(text: str) -> None: ...
'''
PLUGIN = '''"""A plugin."""

from __future__ import annotations

import random
from contextlib import nullcontext

from pack.shapes import Number, Shape, Table, warn


def _joined(first: Table, second: Table) -> Table:
    """A line of documentation that goes beyond eighty-eight columns and has to be wrapped."""
    names = set(first) | set(second)
    return {name: first | second for name in names}


class Checks:
    def before_training(self) -> None: ...


class Plugin(Checks, Shape):
    """A plugin; see :class:`avalanche_dco.core.Shape`."""

    def learn(self, tables: list[Table]) -> float | None:
        with (
            nullcontext() as nothing,
            nullcontext(),
        ):
            for one, other in zip(tables, tables[1:], strict=False):
                warn("not in the bundle")
                if isinstance(one, dict | list):
                    return _joined(one, other)
        return random.random() + self.area()
'''


def library(folder: Path, **arguments: object) -> Library:
    (folder / "pack").mkdir(exist_ok=True)
    (folder / "pack" / "shapes.py").write_text(SHAPES)
    (folder / "pack" / "plugin.py").write_text(PLUGIN)
    return Library(folder, ("pack",), **arguments)  # type: ignore[arg-type]


ENTRY = Name("pack.plugin", "Plugin")
IMPORT = "from pack.numbers import _helper\n"


def test_one_module_of_two(tmp_path: Path) -> None:
    left_out = frozenset({Name("pack.shapes", "warn"), Name("pack.plugin", "Checks")})
    needed = Needed(library(tmp_path, left_out=left_out), [ENTRY])
    sources = ("pack.", "pack.shapes")
    target = Target("there/new.py", sources, "New.", ("Plugin",), explained=True)
    text = composed(needed, [target])["there/new.py"]
    ast.parse(text, feature_version=(3, 8))
    assert all(len(line) <= 88 for line in text.splitlines())
    namespace: dict = {}
    exec(compile(text, "new", "exec"), namespace)
    assert namespace["Plugin"]().learn([{"a": 1}, {"b": 2}]) == {
        "a": {"a": 1, "b": 2},
        "b": {"a": 1, "b": 2},
    }
    for gone in ("never_needed", "unused", "warn", "Checks", "strict", "collections.abc", "pack"):
        assert gone not in text
    for there in (
        "Union[int, float]",
        "Dict[str, Number]",
        "from typing_extensions import TypeAlias",
        "{**first, **second}",
        "set(first) | set(second)",
        "(dict, list)",
        'r"""New.\n\nshapes\n------\n\nShapes, \\alpha.\n"""',
        "see ``Shape``",
        '__all__ = ["Plugin"]',
    ):
        assert there in text


def test_two_modules_import_from_each_other(tmp_path: Path) -> None:
    needed = Needed(library(tmp_path), [ENTRY])
    targets = [Target("new/a.py", ("pack.plugin",), "A."), Target("new/b.py", ("pack.",), "B.")]
    texts = composed(needed, targets)
    assert "from new.b import Shape, Table, warn" in texts["new/a.py"]
    assert "class Shape" in texts["new/b.py"]
    assert "def before_training" in texts["new/a.py"]


def test_what_is_left_out_may_not_be_used(tmp_path: Path) -> None:
    needed = Needed(
        library(tmp_path, left_out=frozenset({Name("pack.shapes", "_helper")})), [ENTRY]
    )
    with pytest.raises(DCOError, match=r"line 16: _helper is left out, and Shape uses it"):
        composed(needed, [Target("new.py", ("pack.",), "New.")])


def test_modules_that_would_import_each_other_are_refused(tmp_path: Path) -> None:
    made = library(tmp_path)
    helper = "def _helper(x: Number) -> Number:\n    return x * x\n"
    own = SHAPES.replace(helper, "").replace("import TypeAlias\n", f"import TypeAlias\n{IMPORT}")
    (tmp_path / "pack" / "shapes.py").write_text(own)
    (tmp_path / "pack" / "numbers.py").write_text("def _helper(x):\n    return x * x\n")
    sources = ("pack.plugin", "pack.numbers")
    targets = [Target("new/a.py", sources, "A."), Target("new/b.py", ("pack.shapes",), "B.")]
    with pytest.raises(DCOError, match=r"new/[ab]\.py -> new/[ab]\.py -> new/[ab]\.py"):
        composed(Needed(made, [ENTRY]), targets)


def test_two_definitions_of_the_same_name_are_refused(tmp_path: Path) -> None:
    made = library(tmp_path)
    (tmp_path / "pack" / "plugin.py").write_text(PLUGIN.replace("_joined", "_helper"))
    with pytest.raises(DCOError, match=r"_helper of pack.* would both go to new\.py"):
        composed(Needed(made, [ENTRY]), [Target("new.py", ("pack.",), "New.")])


def test_settings_become_a_constructor() -> None:
    module = "avalanche_dco.plugins.dco_kron"
    source = Path(module.replace(".", "/") + ".py").read_text()
    text = with_constructors(module, source, frozenset({"DCOKronPlugin.samples"}))
    (plugin,) = (n for n in ast.parse(text).body if getattr(n, "name", "") == "DCOKronPlugin")
    (init,) = (n for n in plugin.body if getattr(n, "name", "") == "__init__")  # type: ignore[attr-defined]
    assert [a.arg for a in init.args.args] == ["self", "dco_lambda"]
    assert "samples" not in [a.arg for a in init.args.kwonlyargs]
    assert 'assert 1 <= damp_every, "`damp_every` must be at least 1."' in text
    assert "self.damp_every = damp_every" in text
    assert "__post_init__" not in text
    assert "setting(" not in text
