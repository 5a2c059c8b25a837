"""Files that are whole or not there, and that tell when a byte has changed.

A file starts with three lines of text: what it is and in which version of the format, the SHA-256
of all that follows them, and a JSON object that says who wrote it. The rest is the payload.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from avalanche_dco.errors import CheckpointError

FORMAT = 1
"""Version of the file format; another one is refused."""

_MAGIC = b"avalanche_dco checkpoint "
_DIGEST_LENGTH = hashlib.sha256().digest_size * 2


def write_sealed(path: Path, about: dict[str, Any], write: Callable[[SealingWriter], None]) -> None:
    """Write a file so that at any moment there is the old one or the new one, whole.

    :param path: where it goes.
    :param about: what the third line says.
    :param write: writes the payload to the file it is given, from front to back.
    """
    with replacing(path) as file:
        file.write(_first_line(FORMAT))
        place = file.tell()
        file.write(b"0" * _DIGEST_LENGTH + b"\n")
        file.start_hash()
        file.write(json.dumps(about).encode() + b"\n")
        write(file)
        digest = file.hash.hexdigest().encode()
        file.seek(place)
        file.write(digest)


def is_there(path: Path) -> bool:
    """Whether there is a file; an error if that cannot be found out.

    :param path: the file.
    """
    try:
        return path.exists()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. Get the right to enter its folder, or "
            "choose another path."
        ) from error


def read_sealed(path: Path) -> tuple[dict[str, Any], memoryview]:
    """What :func:`write_sealed` wrote, once it is sure that no byte of it has changed.

    :param path: the file.
    :return: the third line and the payload.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    if not content:
        raise CheckpointError(f"{path} is empty; {_WHAT_TO_DO}")
    if not content.startswith(_MAGIC):
        raise CheckpointError(
            f"{path} is not a checkpoint of avalanche_dco, or its first bytes have changed: it "
            f"does not start with {_MAGIC.decode()!r}. A checkpoint that Avalanche wrote is read "
            f"with avalanche.checkpointing; otherwise {_WHAT_TO_DO}"
        )
    first, _, rest = content.partition(b"\n")
    if first + b"\n" != _first_line(FORMAT):
        raise CheckpointError(
            f"{path} has the file format {first[len(_MAGIC) :][:20].decode(errors='replace')!r}, "
            f"and this version of avalanche_dco reads {FORMAT}. Use the version that wrote it, "
            f"or, if it was this one, {_WHAT_TO_DO}"
        )
    digest, sealed = rest[:_DIGEST_LENGTH], memoryview(rest)[_DIGEST_LENGTH + 1 :]
    unsealed = rest[_DIGEST_LENGTH : _DIGEST_LENGTH + 1] != b"\n"
    if unsealed or hashlib.sha256(sealed).hexdigest().encode() != digest:
        raise CheckpointError(
            f"{path} is damaged: its content does not have the checksum that was written with "
            f"it, so it was cut off or some of its bytes have changed. Nothing of it was loaded; "
            f"{_WHAT_TO_DO}"
        )
    line, _, _ = bytes(sealed[:65536]).partition(b"\n")
    return json.loads(line), sealed[len(line) + 1 :]


_WHAT_TO_DO = (
    "put a copy of it back, or delete it to start from the first experience (where there is no "
    "file, maybe_load_checkpoint returns 0)."
)


def _first_line(version: int) -> bytes:
    return _MAGIC + str(version).encode() + b"\n"


class SealingWriter:
    """Passes on what is written, keeps count of its hash, and remembers why writing failed.

    ``torch.save`` answers a failed write with an error of its own that says nothing of the disk.
    """

    def __init__(self, file: IO[bytes]):
        """Write to ``file``."""
        self._file = file
        self.hash = hashlib.sha256()
        self.failure: OSError | None = None

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
def replacing(path: Path) -> Iterator[SealingWriter]:
    """A file to write; it takes the place of ``path`` once the block has ended well.

    :param path: where it goes; the folder is made if need be.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(unfinished, "xb") as file:
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
        _sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {_reason(error)}. {_what_is_left(path)}"
        ) from error
    # What killed processes left behind. Had another process been writing just now, it would be
    # told so when it wants to rename its file, and this one would still be whole.
    # The whole name counts: "lr1.5" is another run than "lr1".
    ours = re.compile(re.escape(path.name) + r"\.\d+-[0-9a-f]{8}\.part")
    for left_over in path.parent.iterdir():
        if ours.fullmatch(left_over.name):
            with contextlib.suppress(OSError):
                left_over.unlink()


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
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
