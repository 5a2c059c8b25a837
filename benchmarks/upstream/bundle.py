"""Everything that is offered to Avalanche, written into one folder."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from avalanche_dco.errors import SettingError
from benchmarks.upstream.contribution import contribution
from benchmarks.upstream.fixes import REPOSITORY, fixes, installed_avalanche


def write_bundle(out: Path) -> tuple[list[Path], pd.DataFrame]:
    """Write the patches, each beside the text of its pull request.

    :param out: the folder; made if need be, and empty otherwise.
    :return: the files that were written, and how many lines the methods add to each file.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingError(f"--out {out} is not an empty folder; give another one, or empty it.")
    avalanche, pages = installed_avalanche(), REPOSITORY / "docs" / "upstream"
    patches = {"dco": contribution(avalanche)}
    patches |= {f"fixes/{fix.name}": fix.patch for fix in fixes(avalanche)}
    texts = {"README.md": (pages / "index.md").read_text()}
    for name, patch in patches.items():
        texts[f"{name}.patch"] = patch
        texts[f"{name}.md"] = (pages / f"{Path(name).name}.md").read_text()
    for path, text in texts.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text)
    return sorted(out / path for path in texts), added_lines(patches["dco"])


def added_lines(patch: str) -> pd.DataFrame:
    """How many lines a patch adds to each file."""
    lines: dict[str, int] = {}
    for line in patch.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
            lines[path] = 0
        elif line.startswith("+"):
            lines[path] += 1
    return pd.DataFrame(lines.items(), columns=["file", "lines"])
