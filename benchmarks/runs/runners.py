"""Where runs are made: processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, Literal

from avalanche_dco.errors import DataError, DCOError
from benchmarks.runs.execution import RunOptions, execute
from benchmarks.runs.jobs import Job


@dataclass(frozen=True)
class Event:
    """Something a run has to say.

    :param job: its number among the jobs.
    :param content: experiences done and number of all; a text; what the run has shown; what went
        wrong: in this run if it has "failed", in its data or its process if it is "lost", for all
        runs if it has "stopped".
    """

    job: int
    kind: Literal["started", "progress", "note", "done", "failed", "lost", "stopped"]
    content: Any = None


ENDS = ("done", "failed", "lost", "stopped")
"""What the last event of a run may be."""
Runner = Callable[[Sequence[Job], RunOptions], Iterator[Event]]
Report = Callable[[str, Any], None]


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_per_job(jobs: int, cores: int | None = None) -> int:
    """Threads for each of several jobs at a time, so that they do not fight for the cores.

    :param cores: cores; those of this machine if None. OMP_NUM_THREADS is respected.
    """
    share = max(1, (available_cores() if cores is None else cores) // jobs)
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(limit)) if limit.isdigit() and int(limit) > 0 else share


def report_run(job: Job, options: RunOptions, report: Report) -> None:
    """Make a run and report its events; an error is an event, not raised.

    :param report: called with the kind and content of an :class:`Event`.
    """
    with warnings.catch_warnings():
        # Avalanche's notices about its older interfaces say nothing about a run.
        warnings.filterwarnings("ignore", module="avalanche")
        warnings.showwarning = lambda message, *_, **__: report("note", str(message))
        try:
            shown = execute(
                job,
                options,
                lambda done, total: report("progress", (done, total)),
                lambda: report("note", "another process is making this run; waiting for it"),
            )
        except (DCOError, OSError) as error:
            # A folder that cannot be written, or a full disk, is no matter of a single run; data
            # that cannot be read are none of its settings.
            by_disk = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
            kind = "lost" if isinstance(error, DataError) else "failed"
            report("stopped" if by_disk else kind, f"{type(error).__name__}: {error}")
        except Exception:
            report("failed", traceback.format_exc())
        else:
            report("done", shown)


def in_processes(count: int) -> Runner:
    """Runs in processes of this machine, a fresh one for each.

    A process of its own has a peak memory of its own, and takes no other run with it if it dies,
    as a worker of a ProcessPoolExecutor does.
    """

    def run(jobs: Sequence[Job], options: RunOptions) -> Iterator[Event]:
        context, events, processes = _context(), SimpleQueue[Event](), list[BaseProcess]()
        interrupted = threading.Event()

        def make(number: int, job: Job) -> None:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(  # type: ignore[attr-defined]
                target=_work, args=(job, options, sender), daemon=True
            )
            process.start()
            processes.append(process)
            if interrupted.is_set():  # too late for the one who ends all processes
                process.terminate()
            sender.close()
            event = Event(number, "started")
            try:
                while event.kind not in ENDS:
                    events.put(event)
                    event = Event(number, *receiver.recv())
            except EOFError:
                process.join()
                event = Event(
                    number,
                    "lost",
                    f"the process has ended with exit code {process.exitcode} before the run had; "
                    "a negative one is the signal that ended it (-9: out of memory, perhaps).",
                )
            process.join()
            events.put(event)

        pool = ThreadPoolExecutor(count)
        try:
            futures = [pool.submit(make, number, job) for number, job in enumerate(jobs)]
            left = len(futures)
            while left:
                event = events.get()
                left -= event.kind in ENDS
                yield event
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            interrupted.set()
            for process in processes:
                process.terminate()
            pool.shutdown()

    return run


def _context() -> BaseContext:
    """Processes that have torch and Avalanche imported already, where the system can fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.runs.execution"])
    return context


def _work(job: Job, options: RunOptions, sender: Connection) -> None:
    """What a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides
    os.dup2(2, 1)  # what a library prints is not a result
    _end_with_main_process()
    report_run(job, options, lambda kind, content: sender.send((kind, content)))


def _end_with_main_process() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
