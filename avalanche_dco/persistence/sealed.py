"""Files that show when a byte has changed.

A file starts with three lines of text: what it is and in which version of the format, the SHA-256
of all that follows them, and a JSON object that says who wrote it. The rest is the payload.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from avalanche_dco.errors import CheckpointError
from avalanche_dco.persistence.files import checksum, write_alone

FORMAT = 2
"""Version of the file format; another one is refused."""

_MAGIC = b"avalanche_dco checkpoint "


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


_WHAT_TO_DO = (
    "put a copy of it back, or delete it to start from the first experience (where there is no "
    "file, maybe_load_checkpoint returns 0)."
)
