"""Files that show when a byte has changed.

A file starts with three lines of text: what it is and in which version of the format, the SHA-256
of all that follows them, and a JSON object that says who wrote it. The rest is the payload.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from avalanche_dco.errors import CheckpointError
from avalanche_dco.persistence.files import SealingWriter, checksum, replacing

FORMAT = 2
"""Version of the file format; another one is refused."""

_MAGIC = b"avalanche_dco checkpoint "
_DIGEST_LENGTH = len(checksum([]))


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
    if unsealed or checksum([sealed]).encode() != digest:
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
