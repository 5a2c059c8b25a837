"""One command that makes runs: where, shown how, and how it ended."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.commands.arguments import runner_and_options
from benchmarks.runs.jobs import Job
from benchmarks.runs.progress import Result, print_json, run_jobs


class Session:
    """Makes runs as the command line says."""

    def __init__(self, args: argparse.Namespace):
        self._json: bool = args.json
        self._runner, self._options = runner_and_options(args)
        self._start = time.monotonic()
        self._runs = 0
        self._failures: list[Result] = []

    def make(self, jobs: Sequence[Job], *, failures_count: bool = True) -> list[Result]:
        """Make runs.

        :param jobs: what to run; a job that occurs twice is run once.
        """
        unique = list({job.folder_name: job for job in jobs}.values())
        results = run_jobs(unique, self._runner, self._options, as_json=self._json)
        self._runs += len(results)
        if failures_count:
            self._failures += [result for result in results if result.failure is not None]
        return results

    def end(self, **shown: Any) -> int:
        """Say how it ended."""
        for result in self._failures:
            folder = self._options.out / result.job.folder_name
            print(f"error: {result.job.title} ({folder}): {result.failure}", file=sys.stderr)
        if self._json:
            end = {
                "event": "end",
                "runs": self._runs,
                "failed": len(self._failures),
                "seconds": round(time.monotonic() - self._start, 1),
            }
            print_json(end | shown)
        elif self._failures:
            print(
                f"{len(self._failures)} of {self._runs} runs failed. The others are kept: the same "
                "command makes only those that failed.",
                file=sys.stderr,
            )
        return 1 if self._failures else 0
