"""The one way to write a file, whole or not at all, and the one checksum."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

from avalanche_dco.errors import CheckpointError


def checksum(parts: Iterable[bytes | memoryview]) -> str:
    """The SHA-256 of all parts in a row, in hexadecimal digits.

    :param parts: what to check, in pieces of any size.
    """
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def is_there(path: Path) -> bool:
    """Whether there is a file; an error if something else is, or if that cannot be found out.

    :param path: the file.
    """
    try:
        return _is_file(path)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. Choose the path of a file in a folder that "
            "you may enter."
        ) from error


class SealingWriter:
    """Passes on what is written, keeps count of its hash, and remembers why writing failed.

    ``torch.save`` answers a failed write with an error of its own that says nothing of the disk.
    """

    def __init__(self, file: IO[bytes]):
        """Write to ``file``."""
        self._file = file
        self.hash = hashlib.sha256()
        self.failure: OSError | None = None
        self.in_place = False

    def start_hash(self) -> None:
        """Take the hash of what comes from now on."""
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Write all of ``data``."""
        self.hash.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def seek(self, position: int) -> int:
        """Go back, to write something anew."""
        return self._file.seek(position)

    def tell(self) -> int:
        """Where the next byte goes."""
        return self._file.tell()

    def flush(self) -> None:
        """Hand everything to the system."""
        try:
            self._file.flush()
        except OSError as error:
            self.failure = error
            raise


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[SealingWriter]:
    """A file to write; it takes the place of ``path`` once the block has ended well.

    It gets the permissions of the file it replaces. A symbolic link stays: what it leads to is
    replaced. Raises an ``OSError`` if that is impossible.

    :param path: where it goes; the folder is made if need be.
    """
    replaces = _is_file(path)
    path = Path(os.path.realpath(path))
    mode = stat.S_IMODE(path.stat().st_mode) if replaces else 0o666
    unfinished = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(unfinished, "xb", opener=partial(os.open, mode=mode)) as file:
            if replaces:
                unfinished.chmod(mode)  # what the umask has taken away
            writer = SealingWriter(file)
            try:
                yield writer
            except Exception as error:
                if writer.failure is None or writer.failure is error:
                    raise
                raise writer.failure from error
            file.flush()
            os.fsync(file.fileno())  # on the disk before it gets its name
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    writer.in_place = True
    _sync_folder(path.parent)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is there as a whole or not at all; raises an ``OSError`` if it cannot.

    :param path: the file.
    :param content: what it shall hold.
    """
    with atomic(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[SealingWriter]:
    """As :func:`atomic`, for a file that one process alone writes to.

    Another process that writes to it at the same time gets an error. Raises a
    :class:`.CheckpointError` that says what is left if the file cannot be written.

    :param path: where it goes; the folder is made if need be.
    """
    writer = None
    try:
        with atomic(path) as writer:
            yield writer
    except OSError as error:
        if writer is not None and writer.in_place:
            raise CheckpointError(
                f"{path} is the new file, but the system does not confirm that it would survive a "
                f"power cut: {error.strerror}. Check the disk, and save again."
            ) from error
        raise CheckpointError(
            f"{path} cannot be written: {_reason(error)}. {_what_is_left(path)}"
        ) from error
    _remove_left_over(Path(os.path.realpath(path)))


def _remove_left_over(path: Path) -> None:
    """Remove what killed processes left behind of the file.

    Had another process been writing just now, it would be told so when it wants to rename its
    file, and this one would still be whole.
    """
    # The whole name counts: "lr1.5" is another run than "lr1".
    ours = re.compile(re.escape(path.name) + r"\.\d+-[0-9a-f]{8}\.part")
    with contextlib.suppress(PermissionError):  # a folder that may be written but not listed
        for left_over in path.parent.iterdir():
            if ours.fullmatch(left_over.name):
                with contextlib.suppress(OSError):
                    left_over.unlink()


def _is_file(path: Path) -> bool:
    """Whether there is a regular file; an ``OSError`` if there is anything else.

    Asked before a file is opened: a FIFO would be waited for, and a device replaced.
    """
    if not path.name:
        raise OSError(errno.EINVAL, "the path is empty or a folder and names no file")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except ValueError as error:  # a null character
        raise OSError(errno.EINVAL, str(error)) from error
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a FIFO, a socket or a device, not a file")
    return True


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return (
            "the unfinished file was taken away; another process seems to save to the same path, "
            "so give each run a path of its own"
        )
    return f"{error.strerror} (make room, or choose a path that can be written)"


def _what_is_left(path: Path) -> str:
    try:
        before = path.exists()
    except OSError:  # a folder that may not be entered does not tell
        before = True
    return "What was there before is untouched." if before else "There was none before."


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut; not all systems open folders."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # it may be written but not read; after a cut it is the old or the new
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
