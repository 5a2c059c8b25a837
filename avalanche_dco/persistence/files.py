"""The one way to write a file, whole or not at all, the one checksum, and files sealed with it.

A sealed file starts with three lines of text: what it is and in which version of the format, the
SHA-256 of all that follows them, and a JSON object that says who wrote it. The rest is the payload.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from avalanche_dco.errors import CheckpointError

Content = str | bytes | memoryview

FORMAT = 2
"""Version of the file format; another one is refused."""

_MAGIC = b"avalanche_dco checkpoint "
_WHAT_TO_DO = (
    "put a copy of it back, or delete it to start from the first experience (where there is no "
    "file, maybe_load_checkpoint returns 0)."
)


def checksum(parts: Iterable[bytes | memoryview]) -> str:
    """The SHA-256 of all parts in sequence, in hexadecimal digits."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def write_atomically(path: Path, *content: Content) -> None:
    """Write a file that is there as a whole or not at all; raises an ``OSError`` if it cannot.

    It gets the permissions of the file it replaces. A symbolic link stays: its target is replaced.
    """
    replaces = _is_file(path)
    path = Path(os.path.realpath(path))
    mode = stat.S_IMODE(path.stat().st_mode) if replaces else 0o666
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(unfinished, "xb", opener=partial(os.open, mode=mode)) as file:
            if replaces:
                unfinished.chmod(mode)  # what the umask has taken away
            for part in content:
                file.write(part.encode() if isinstance(part, str) else part)
            file.flush()
            os.fsync(file.fileno())  # on the disk before it gets its name
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    _sync_folder(path.parent)


def write_alone(path: Path, *content: Content) -> None:
    """As :func:`write_atomically`, for a file that one process alone writes to.

    Removes what killed processes have left unfinished. Another process that writes to the file at
    the same time gets an error. Raises a :class:`.CheckpointError` if the file cannot be written.
    """
    try:
        write_atomically(path, *content)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} cannot be written: the unfinished file has vanished; another process seems "
            "to save to the same path, so give each run a path of its own."
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror}. A file at this path is "
            "still whole; make room, or choose a path that can be written."
        ) from error
    path = Path(os.path.realpath(path))
    with contextlib.suppress(PermissionError):  # a folder that may be written but not listed
        for left_over in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * 8}.part"):
            left_over.unlink(missing_ok=True)


def is_there(path: Path) -> bool:
    """Whether there is a file; raises a :class:`.CheckpointError` if there is something else."""
    try:
        return _is_file(path)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. Choose the path of a file in a folder that "
            "you may enter."
        ) from error


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


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except PermissionError:  # it may be written but not read; after a cut it is the old or the new
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        what = f"the new file is in place, but may not survive a power cut ({error.strerror})"
        raise OSError(error.errno, what, str(folder)) from error
    finally:
        os.close(descriptor)


def write_sealed(path: Path, about: dict[str, Any], payload: bytes | memoryview) -> None:
    """Write a file so that at any moment there is the old one or the new one, whole."""
    line = json.dumps(about).encode() + b"\n"
    write_alone(path, f"{_MAGIC.decode()}{FORMAT}\n{checksum([line, payload])}\n", line, payload)


def read_sealed(path: Path) -> tuple[dict[str, Any], memoryview]:
    """What :func:`write_sealed` wrote, after a check that no byte of it has changed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    if not content:
        raise CheckpointError(f"{path} is empty; {_WHAT_TO_DO}")
    first, _, rest = content.partition(b"\n")
    if not first.startswith(_MAGIC):
        raise CheckpointError(
            f"{path} is not a checkpoint of avalanche_dco, or its first bytes have changed: it "
            f"does not start with {_MAGIC.decode()!r}. A checkpoint that Avalanche wrote is read "
            f"with avalanche.checkpointing; otherwise {_WHAT_TO_DO}"
        )
    version = first[len(_MAGIC) :].decode(errors="replace")
    if version != str(FORMAT):
        raise CheckpointError(
            f"{path} has the file format {version[:20]!r}, and this version of avalanche_dco reads "
            f"{FORMAT}. Use the version that wrote it, or, if it was this one, {_WHAT_TO_DO}"
        )
    length = len(checksum([]))
    sealed = memoryview(rest)[length + 1 :]
    if rest[: length + 1] != checksum([sealed]).encode() + b"\n":
        raise CheckpointError(
            f"{path} is damaged: its content does not have the checksum that was written with "
            f"it, so it was cut off or some of its bytes have changed. Nothing of it was loaded; "
            f"{_WHAT_TO_DO}"
        )
    end = rest.index(b"\n", length + 1)
    return json.loads(rest[length + 1 : end]), memoryview(rest)[end + 1 :]
