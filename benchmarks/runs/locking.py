"""One process at a time in a run's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def exclusively(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a folder; wait while another process does.

    The lock belongs to the process and ends with it, also when it is killed.

    :param folder: the folder; made if it does not exist.
    :param on_wait: called once if there is something to wait for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        path.unlink()  # while it is held: filelock takes no lock on a file without a name
        lock.release()
