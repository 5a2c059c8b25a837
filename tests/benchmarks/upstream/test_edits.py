"""Places in code are found by their syntax, and a place that is not there is named."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.upstream.edits import Edit, PlaceError, edited, unified_diff

SOURCE = '''class Plugin:
    def learn(self, x, size=3):
        """Learn.

        :param x: the data.
        """
        # once
        for part in x:
            self.sum = self.sum + part.mean()
        if self.sum:
            return keep(self.sum, size=size)

    def forget(self):
        self.sum = 0
'''


def test_code_around_within_and_instead() -> None:
    after = edited(
        SOURCE,
        [
            Edit("Plugin.learn", "Call", "<found>.clone()", ("mean",)),
            Edit("Plugin.learn", "Assign", "part = part.double()\n<found>", ("sum",)),
            Edit("Plugin.learn", "For", "<found>\nself.done = True", ("part",)),
            Edit("Plugin.learn", "keyword", "strict=True, <found>", ("size",)),
            Edit("Plugin.learn", "docstring", ":param size: the size."),
            Edit("Plugin.forget", "name", "drop"),
            Edit("Plugin.forget", "Constant", "0.5", ("0",)),
        ],
        "plugin.py",
    )
    assert (
        after
        == '''class Plugin:
    def learn(self, x, size=3):
        """Learn.

        :param x: the data.
        :param size: the size.
        """
        # once
        for part in x:
            part = part.double()
            self.sum = self.sum + part.mean().clone()
        self.done = True
        if self.sum:
            return keep(self.sum, strict=True, size=size)

    def drop(self):
        self.sum = 0.5
'''
    )


def test_lines_are_removed_with_their_comment() -> None:
    after = edited(SOURCE, [Edit("Plugin.learn", "For", "", ("part",), comment=True)], "plugin.py")
    assert "for part" not in after
    assert "# once" not in after
    assert len(after.splitlines()) == len(SOURCE.splitlines()) - 3


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (Edit("Plugin.gone", "Call", ""), r"plugin\.py .* in Plugin\.gone there are 0 places"),
        (Edit("Plugin.learn", "Call", "", ("median",)), "Call with median, and there should be 1"),
        (Edit("", "FunctionDef", ""), "in the module there are 2 places"),
    ],
)
def test_a_place_that_is_not_there_or_not_alone_is_named(edit: Edit, named: str) -> None:
    with pytest.raises(PlaceError, match=named):
        edited(SOURCE, [edit], "plugin.py")


@pytest.mark.parametrize("end", ["\n", ""])
def test_git_applies_a_diff(end: str, tmp_path: Path) -> None:
    before = SOURCE.rstrip("\n") + end
    after = before.replace("keep", "store")
    (tmp_path / "plugin.py").write_text(before)
    patch = unified_diff(before, after, "plugin.py") + unified_diff("", "x = 1\n", "tests/new.py")
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "plugin.py").read_text() == after
    assert (tmp_path / "tests" / "new.py").read_text() == "x = 1\n"
