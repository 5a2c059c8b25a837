"""Everything that is offered to Avalanche, written into one folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from avalanche_dco.errors import SettingError
from benchmarks.upstream.fixes import REPOSITORY, fixes, installed_avalanche


def write_bundle(out: Path) -> list[Path]:
    """Write the patches of the defects with the texts of their pull requests.

    :param out: the folder; made if need be, and empty otherwise.
    :return: the files that were written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingError(f"--out {out} is not an empty folder; give another one, or empty it.")
    folder = out / "fixes"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(REPOSITORY / "docs" / "upstream" / "index.md", out / "README.md")
    for fix in fixes(installed_avalanche()):
        (folder / f"{fix.name}.md").write_text(fix.text)
        (folder / f"{fix.name}.patch").write_text(fix.patch)
    return sorted(path for path in out.rglob("*") if path.is_file())
