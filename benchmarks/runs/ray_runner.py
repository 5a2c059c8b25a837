"""Where runs are made: a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from avalanche_dco.errors import SettingError
from benchmarks.runs.execution import RunOptions
from benchmarks.runs.jobs import Job
from benchmarks.runs.records import read_files, read_outcome, write_files
from benchmarks.runs.runners import ENDS, Event, Runner, report_run

_POLL = 0.2  # seconds
_REPOSITORY = Path(__file__).resolve().parent.parent.parent


def in_ray(count: int, address: str | None) -> Runner:
    """Runs as tasks of a Ray cluster, to which the source of this package is sent.

    The folders of runs are written where the task runs, and copied to this machine if they are not
    here then. Only a file system that all machines share lets an interrupted run resume on another.

    :param count: how many at a time on this machine, if Ray has to be started here.
    :param address: the cluster; None to start Ray on this machine.
    """
    if find_spec("ray") is None:
        raise SettingError("--runner ray needs Ray; run: pip install '.[ray]'")

    def run(jobs: Sequence[Job], options: RunOptions) -> Iterator[Event]:
        import ray  # noqa: PLC0415 (an extra)
        from ray.util.queue import Queue  # noqa: PLC0415

        started_here = not ray.is_initialized()
        if started_here:
            ray.init(
                address=address,
                num_cpus=None if address else count * options.threads,
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={
                    "py_modules": [
                        str(_REPOSITORY / name) for name in ("avalanche_dco", "benchmarks")
                    ],
                    "excludes": ["results"],
                },
            )
        try:
            queue = Queue(actor_options={"num_cpus": 0})
            work = ray.remote(num_cpus=options.threads, max_calls=1, max_retries=0)(_work)
            running = {
                work.remote(number, job, options, queue): number for number, job in enumerate(jobs)
            }
            while running:
                ready, _ = ray.wait(list(running), timeout=_POLL)
                yield from _queued_events(queue)
                for task in ready:
                    yield _ended(ray, task, running.pop(task), jobs, options)
        finally:
            if started_here:
                ray.shutdown()

    return run


def _work(number: int, job: Job, options: RunOptions, queue: Any) -> Any:
    """What a task does; it returns the last event and the files of the run."""
    last: tuple[str, Any] = ("failed", "the run has not said anything")
    queue.put((number, "started", None))

    def report(kind: str, content: Any) -> None:
        nonlocal last
        last = (kind, content)
        if kind not in ENDS:
            queue.put((number, kind, content))

    report_run(job, options, report)
    done = last[0] == "done"
    return last, read_files(options.out / job.folder_name) if done else {}


def _queued_events(queue: Any) -> Iterator[Event]:
    for number, kind, content in queue.get_nowait_batch(queue.qsize()):
        yield Event(number, kind, content)


def _ended(ray: Any, task: Any, number: int, jobs: Sequence[Job], options: RunOptions) -> Event:
    try:
        (kind, content), files = ray.get(task)
    except ray.exceptions.RayError as error:
        return Event(number, "lost", f"the task has been lost: {error}")
    folder = options.out / jobs[number].folder_name
    if kind == "done" and read_outcome(folder) is None:
        write_files(folder, files)
    return Event(number, kind, content)
