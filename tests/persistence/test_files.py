"""The one way to write a file: what it leaves alone, what it keeps, what it refuses."""

import os
import re
import signal
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch import nn

from avalanche_dco import maybe_load_checkpoint, save_checkpoint
from avalanche_dco.baselines.ewc import EWCPlugin
from avalanche_dco.errors import CheckpointError, SettingError
from avalanche_dco.logging import PandasLogger, read_log
from avalanche_dco.persistence import files, load_plugin_state, save_plugin_state
from tests.support.learning import naive


def write(path: Path, payload: bytes = b"new") -> None:
    files.write_sealed(path, {}, payload)


@contextmanager
def as_nobody() -> Iterator[None]:
    user = os.geteuid()
    try:
        if user == 0:  # root may do anything
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(user)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Raise where the block would otherwise wait forever."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits for another process")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_folder_that_may_be_written_but_not_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.ckpt"
        os.chmod(folder, 0o333)
        try:
            with as_nobody():
                write(path, b"first")
                write(path, b"second")
                assert files.read_sealed(path)[1] == b"second"
        finally:
            os.chmod(folder, 0o755)
        assert os.listdir(folder) == ["run.ckpt"]


def test_a_folder_that_cannot_be_synced_is_told_with_the_new_file_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fsync = tmp_path / "run.ckpt", os.fsync
    write(path, b"old")

    def fail_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    with pytest.raises(CheckpointError, match=r"the new file is in place, .*Input/output error"):
        write(path, b"new")
    assert files.read_sealed(path)[1] == b"new"


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_one(tmp_path: Path, exists: bool) -> None:
    target, link = tmp_path / "disk" / "run.ckpt", tmp_path / "run.ckpt"
    link.symlink_to("disk/run.ckpt")
    if exists:
        write(target, b"old")
    (tmp_path / "disk").mkdir(exist_ok=True)
    left_over = tmp_path / "disk" / "run.ckpt.0123abcd.part"
    left_over.touch()
    write(link)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert files.read_sealed(target)[1] == b"new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["disk", "run.ckpt", "run.ckpt"]


def test_a_link_to_itself_is_refused_before_training(tmp_path: Path) -> None:
    link = tmp_path / "run.ckpt"
    link.symlink_to("run.ckpt")
    strategy = naive(nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="cannot be read: Too many levels of symbolic links"):
        maybe_load_checkpoint(strategy, link)
    with pytest.raises(CheckpointError, match="cannot be written: Too many levels"):
        save_checkpoint(strategy, link)
    assert link.is_symlink()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_permissions_are_kept(tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.ckpt"
    write(path, b"old")
    path.chmod(mode)
    seen, replace = [], os.replace

    def look_and_replace(part: Path, target: Path) -> None:
        seen.append(part.stat().st_mode)
        replace(part, target)

    monkeypatch.setattr(os, "replace", look_and_replace)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [stat.S_IMODE(part) for part in seen] == [mode]  # nobody else reads it meanwhile


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write(tmp_path / "run.ckpt")
    (tmp_path / "usual").touch()
    assert (tmp_path / "run.ckpt").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_fifo_is_neither_waited_for_nor_replaced(tmp_path: Path) -> None:
    path, strategy = tmp_path / "fifo", naive(nn.Linear(2, 2))
    os.mkfifo(path)
    with without_waiting():
        with pytest.raises(CheckpointError, match="cannot be written: it is a FIFO"):
            save_checkpoint(strategy, path)
        with pytest.raises(CheckpointError, match="cannot be read: it is a FIFO"):
            maybe_load_checkpoint(strategy, path)
        with pytest.raises(CheckpointError, match="cannot be read: it is a FIFO"):
            load_plugin_state(EWCPlugin(1.0), path)
        with pytest.raises(SettingError, match="is not a file; give PandasLogger"):
            PandasLogger(path)
        with pytest.raises(SettingError, match="is not a file"):
            read_log(path)
    assert path.is_fifo()


@pytest.mark.parametrize(
    ("path", "reason"), [("", "names no file"), (".", "names no file"), ("a\0b", "null")]
)
def test_a_path_that_names_no_file(path: str, reason: str) -> None:
    strategy, plugin = naive(nn.Linear(2, 2)), EWCPlugin(1.0)
    with pytest.raises(CheckpointError, match=f"cannot be written: .*{reason}"):
        save_checkpoint(strategy, path)
    with pytest.raises(CheckpointError, match=f"cannot be read: .*{reason}"):
        maybe_load_checkpoint(strategy, path)
    with pytest.raises(CheckpointError, match=f"cannot be written: .*{reason}"):
        save_plugin_state(plugin, path)
    with pytest.raises(CheckpointError, match=f"cannot be read: .*{reason}"):
        load_plugin_state(plugin, path)


def test_a_checksum_does_not_depend_on_the_parts() -> None:
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of FIPS 180-2
    assert files.checksum([b"abc"]) == files.checksum([b"a", memoryview(b"bc")]) == known


def test_nothing_else_writes_or_checks_files_in_its_own_way() -> None:
    root = Path(__file__).resolve().parent.parent.parent
    own = re.compile(r"\b(hashlib|crc32|fcntl|mkstemp|NamedTemporaryFile)\b|\bos\.replace\(")
    found = {
        str(path.relative_to(root))
        for folder in ("avalanche_dco", "benchmarks")
        for path in (root / folder).rglob("*.py")
        if own.search(path.read_text())
    }
    assert found == {"avalanche_dco/persistence/files.py"}
