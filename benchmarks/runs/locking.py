"""One process at a time in a run's folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = ".lock"


@contextmanager
def exclusively(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a folder; wait while another process does.

    The lock belongs to the process and ends with it, also when it is killed.

    :param folder: the folder; made if it does not exist.
    :param on_wait: called once if there is something to wait for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _NAME
    handle = _acquire(path, on_wait)
    try:
        yield
    finally:
        path.unlink()
        os.close(handle)


def _acquire(path: Path, on_wait: Callable[[], None]) -> int:
    told = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                told = True
                on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        # Whoever held it has removed the file at the end: then it is another file that counts now.
        if _is_file_of(handle, path):
            return handle
        os.close(handle)


def _is_file_of(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
