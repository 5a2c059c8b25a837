"""Processes to be killed.

They are forked from one that has imported everything, because importing takes seconds and there
are hundreds of them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable

import torch
from tqdm import tqdm

from avalanche_dco.errors import DCOError

Report = Callable[[str], None]
"""Tells the parent process of an event, in one line."""


class Child:
    """A forked process that calls a function and reports events, one line each, to its parent."""

    def __init__(self, function: Callable[[Report], None]):
        """Start it.

        :param function: what the process does; it gets the function to report with.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            _live(function, writing)
        os.close(writing)
        self._events = os.fdopen(reading)

    def until(self, wanted: Callable[[str], bool]) -> list[str]:
        """Events up to the one that is wanted, or all there are."""
        events = []
        for line in self._events:
            events.append(line.strip())
            if wanted(events[-1]):
                break
        return events

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; a process that has ended by itself is left alone."""
        os.kill(self.pid, number)  # not waited for yet, so the number is still its own

    def ended(self) -> tuple[int, list[str]]:
        """Wait for the end: exit status (negative for a signal), and all further events."""
        events = self.until(lambda event: False)
        self._events.close()
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status), events


REFUSED, DISK, INTERRUPTED, CRASHED = 3, 4, 130, 1
"""Exit statuses: an error of this package, an OSError that says what to do, Ctrl-C, anything."""


def _live(function: Callable[[Report], None], writing: int) -> None:
    """The life of a child."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python has it: an OSError instead
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # forked processes share tqdm's: one that is killed keeps it
    warnings.simplefilter("ignore")

    def report(event: str) -> None:
        os.write(writing, f"{event}\n".encode())

    status = 0
    try:
        function(report)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except DCOError as error:
        report(f"refused {type(error).__name__} {error}")
        status = REFUSED
    except OSError as error:
        report(f"disk {error}")
        status = DISK if "metrics log cannot be written" in str(error) else CRASHED
    except BaseException:
        report(f"crashed {traceback.format_exc()!r}")
        status = CRASHED
    os._exit(status)
