"""The code in the documentation of metrics, logs and plots runs as it is printed."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "metrics.md"


def test_the_examples_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 4
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out.splitlines()[-1]
    assert 0 < float(printed) < 1
    assert {path.name for path in tmp_path.iterdir()} == {
        "run.csv",
        "average.png",
        "fwi_bwt.png",
        "matrix.png",
        "compared.png",
    }
