"""The recipes of docs/architecture.md, done block by block in a copy of the repository."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(
    r"```python\n# (\S+?)(?:: (\w+))?\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.S
)
TRIED = """
import torch
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from avalanche_dco.logging import PandasLogger
from benchmarks.__main__ import main
from benchmarks.streams.digits import split_digits
from weight_norm import WeightNorm

if __name__ == "__main__":
    assert main(["hello", "you"]) == 0
    command = ["compare", "--benchmark", "two-digits", "--methods", "naive", "shrink"]
    assert main([*command, "--out", "runs", "--jobs", "1"]) == 0
    logger, model = PandasLogger(), torch.nn.Linear(64, 10)
    evaluator = EvaluationPlugin(WeightNorm(), loggers=[logger])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Naive(model=model, optimizer=optimizer, evaluator=evaluator).train(split_digits().train_stream)
    values = logger.to_frame().query("metric == 'WeightNorm'")["value"]
    print("norms", len(values), bool((values > 0).all()))
"""


def add(repository: Path, file: str, name: str, code: str) -> None:
    """Do what a block says: write a new file, or add to a collection and to the imports."""
    path = repository / file
    if not name:
        assert not path.exists()
        path.write_text(code)
        return
    imports = "".join(re.findall(r"^(?:from|import) .*\n", code, re.M))
    entries = code.replace(imports, "", 1).strip()
    text, before = path.read_text(), r"(?m)^(?=from avalanche|from benchmarks|import argparse)"
    text = re.sub(before, lambda _: imports, text, count=1)
    opening = re.search(rf"(?m)^{name}(?:: [^=]+)? = [({{]", text)
    assert opening, f"{file} has no {name}"
    path.write_text(
        f"{text[: opening.end()]}\n    {entries},\n    {text[opening.end() :].lstrip()}"
    )


def test_the_page_has_the_four_recipes():
    assert [(file, name) for file, name, _ in BLOCKS] == [
        ("benchmarks/shrink.py", ""),
        ("benchmarks/methods.py", "_ALL"),
        ("weight_norm.py", ""),
        ("benchmarks/streams/catalogue.py", "TASKS"),
        ("benchmarks/presets.py", "_OF_THE_DIGITS"),
        ("benchmarks/commands/hello.py", ""),
        ("benchmarks/__main__.py", "COMMANDS"),
    ]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    without = shutil.ignore_patterns("results", "__pycache__")
    for package in ("avalanche_dco", "benchmarks"):
        shutil.copytree(ROOT / package, repository / package, ignore=without)
    for file, name, code in BLOCKS:
        add(repository, file, name, code)
    (repository / "tried.py").write_text(TRIED)
    done = subprocess.run(
        [sys.executable, "tried.py"], cwd=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_command_is_added(printed):
    assert "hello you" in printed


def test_a_method_is_tuned_and_compared_on_a_stream_that_was_added(printed):
    assert re.search(r"share=0\.01\s+\d+\.\d+", printed)
    assert re.search(r"shrink +1 +\d+\.\d+", printed)


def test_a_metric_reaches_the_logger(printed):
    assert "norms 5 True" in printed
