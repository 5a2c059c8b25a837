"""Broken files, full disks and odd names: one line, exit code 2, no traceback."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.runs.records import read_run, seal
from tests.benchmarks.streams.test_data import arrays, write_idx
from tests.support.benchmark_runs import _in_this_process  # noqa: F401
from tests.support.run_folders import change_run, write_run

pytestmark = pytest.mark.usefixtures("_in_this_process")

HUGE = 10**400
QUICK = ["run", "--benchmark", "split-digits", "--methods", "naive", "--training", "epochs=1"]


def refused(capsys, *arguments: object) -> str:
    """The one line that a command ends with."""
    assert main([str(argument) for argument in arguments]) == 2
    *_, line = lines = capsys.readouterr().err.splitlines()
    assert [one for one in lines if one.startswith(("error", "Traceback"))] == [line]
    return line


def rewritten(path: Path, name: str, content: bytes) -> None:
    """Replace a file of an archive."""
    with zipfile.ZipFile(path) as archive:
        kept = {entry: archive.read(entry) for entry in archive.namelist() if entry[:-4] != name}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, held in (kept | {name: content}).items():
            archive.writestr(entry, held)


def npy(header: str) -> bytes:
    """An array's file with any header."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


PETABYTES = "{'descr': '|u1', 'fortran_order': False, 'shape': (3000000000000, 32, 32, 1), }"
NPZ = {
    "untested": ({"y_test": np.zeros(20, int)}, None, r"test labels have none .* [1, 2, 3, 4]"),
    "words": ({"y_test": np.array(["a"] * 20)}, None, "y_test must hold one integer"),
    "objects": ({"x_test": np.array([{}] * 20)}, None, "cannot be read"),
    "text": ({}, ("y_train", b"Hello"), "y_train is no array"),
    "3 PB": ({}, ("x_train.npy", npy(PETABYTES)), "cannot be read"),
    "header": ({}, ("x_train.npy", npy("{'descr': [[, 'shape'")), "cannot be read"),
    "header's type": ({}, ("x_train.npy", npy("{'descr': 7, 'shape': 'x'}")), "cannot be read"),
}


@pytest.mark.parametrize("case", NPZ)
def test_an_npz_of_no_use(tmp_path, capsys, case):
    change, replaced, message = NPZ[case]
    path = tmp_path / "bad.npz"
    np.savez(path, **(arrays() | change))
    if replaced is not None:
        rewritten(path, *replaced)
    run = ["run", "--benchmark", "split-cifar10", "--methods", "naive", "--npz", path]
    line = refused(capsys, *run, "--out", tmp_path / "runs")
    assert "bad.npz" in line
    assert message.split(" .* ")[0] in line
    assert message.split(" .* ")[-1] in line
    assert not (tmp_path / "runs").exists()
    if case not in ("untested", "words", "objects"):  # there it is the test data
        landscape = ["landscape", "--data", "cifar10", "--npz", path]
        assert "bad.npz" in refused(capsys, *landscape, "--out", tmp_path / "landscape")


@pytest.mark.parametrize("name", ["train-images-idx3", "t10k-labels-idx1"])
@pytest.mark.parametrize("content", [b"", b"garbage, not images", bytes([0, 0, 8, 3, 255] * 9)])
def test_garbage_in_mnist_s_files(tmp_path, capsys, name, content):
    raw = tmp_path / "MNIST" / "raw"
    for part in ("train", "t10k"):
        write_idx(raw / f"{part}-images-idx3-ubyte", np.zeros((10, 28, 28)))
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(10))
    (raw / f"{name}-ubyte").write_bytes(content)
    run = ["run", "--benchmark", "split-mnist", "--methods", "naive", "--data-root", tmp_path]
    line = refused(capsys, *run, "--out", tmp_path / "runs")
    assert f"the files in {raw} cannot be read" in line
    if name.startswith("train"):
        landscape = ["landscape", "--data", "mnist", "--data-root", tmp_path]
        refused(capsys, *landscape, "--out", tmp_path / "landscape")


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk(tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "made", "naive", 1)
    monkeypatch.setattr(os, "fsync", _no_room)
    line = refused(capsys, *QUICK, "--out", tmp_path / "runs")
    assert "No space left on device" in line
    line = refused(capsys, "report", "--runs", tmp_path / "made", "--out", tmp_path / "report")
    assert "No space left on device" in line


def test_a_disk_that_is_full_once_a_checkpoint_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("avalanche_dco.persistence.files.os.replace", _no_room)
    assert "No space left on device" in refused(capsys, *QUICK, "--out", tmp_path / "runs")


@pytest.mark.parametrize("out", ["file", "file/below", "x" * 3000])
def test_an_out_that_cannot_be_written(tmp_path, capsys, out):
    (tmp_path / "file").write_text("a file, no folder")
    refused(capsys, *QUICK, "--out", tmp_path / out)
    write_run(tmp_path / "made", "naive", 1)
    refused(capsys, "report", "--runs", tmp_path / "made", "--out", tmp_path / out)
    sweep = ["sweep", "--benchmark", "split-digits", "--methods", "naive", "--grid", "lr=1,2"]
    refused(capsys, *sweep, "--out", tmp_path / out)


def test_names_of_3000_characters(tmp_path, capsys):
    long = tmp_path / ("x" * 3000)
    run = ["run", "--benchmark", "split-cifar10", "--methods", "naive"]
    refused(capsys, *run, "--npz", long)
    refused(capsys, *run, "--data-root", long)
    refused(capsys, "report", "--runs", long)
    compare = ["compare", "--benchmark", "split-digits", "--methods", "naive", "--out", tmp_path]
    refused(capsys, *compare, "--chosen", long)
    refused(capsys, *QUICK, "--set", f"{'x' * 3000}=1")
    refused(capsys, "landscape", "--data", "cifar10", "--npz", long, "--out", tmp_path)
    write_run(tmp_path / "made", "naive", 1)
    folder = write_run(tmp_path / "made", "naive", 2)
    config = json.loads((folder / "config.json").read_text()) | {"benchmark": "y" * 3000}
    change_run(folder, "config.json", json.dumps(config).encode())
    refused(capsys, "report", "--runs", tmp_path / "made", "--out", tmp_path / "report")


def test_a_number_that_no_float_can_hold(tmp_path, capsys):
    chosen = {"benchmark": "split-digits", "methods": {"dco": {"settings": {"k": HUGE}}}}
    (tmp_path / "chosen.json").write_text(json.dumps(chosen))
    compare = ["compare", "--benchmark", "split-digits", "--methods", "dco", "--out", tmp_path]
    refused(capsys, *compare, "--chosen", tmp_path / "chosen.json")
    refused(capsys, "run", "--benchmark", "split-digits", "--methods", "dco", "--set", f"k={HUGE}")


@pytest.mark.parametrize(
    "changed",
    [
        {"outcome": {"memory_bytes": HUGE}},
        {"outcome": {"seconds": -HUGE}},
        {"training": {"epochs": HUGE, "batch_size": 8, "lr": 0.1, "weight_decay": 0.0}},
        {"settings": {"k": [HUGE]}},
    ],
)
def test_a_result_with_such_a_number_is_named_and_not_counted(tmp_path, capsys, changed):
    write_run(tmp_path / "made", "naive", 1)
    write_run(tmp_path / "made", "ewc", 2, **changed)
    assert main(["report", "--runs", str(tmp_path / "made"), "--out", str(tmp_path / "r")]) == 0
    assert "digits) is too large a number" in (tmp_path / "r" / "report.md").read_text()


@pytest.mark.parametrize("number", [HUGE, "text", [1]])
def test_a_finished_run_with_such_a_number_is_made_again(tmp_path, number):
    arguments = [*QUICK, "--out", str(tmp_path)]
    assert main(arguments) == 0
    (folder,) = tmp_path.iterdir()
    made = read_run(folder).outcome
    seal(folder, made | {"memory_bytes": number})
    assert main(arguments) == 0
    assert read_run(folder).outcome["average"] == made["average"]
