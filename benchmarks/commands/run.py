"""Make runs of some methods on one benchmark and print their errors.

Examples:
  python -m benchmarks run --benchmark split-digits --methods naive ewc dco
  python -m benchmarks run --benchmark split-mnist --methods naive dco --seeds 1 --data-root ~/data
  python -m benchmarks run --benchmark permuted-digits --methods dco --set k=200 --set theta=0.5
  python -m benchmarks run --benchmark split-digits --methods gpm naive --training gpm.lr=0.01
  python -m benchmarks run --benchmark split-digits --methods dco --grid theta=0,0.2,0.5,2

Every run gets a folder below --out. One that is finished is not repeated, an interrupted one goes
on from its last finished experience and ends with the same numbers: start the same command again.

With --grid every combination of the values is run and evaluated on the test data, to show how
errors depend on a setting. To choose a setting, use `sweep`, which does not look at the test data;
to compare methods, use `compare`.
"""

from __future__ import annotations

import argparse

from benchmarks.commands.arguments import add_shared_arguments, request
from benchmarks.commands.session import Session
from benchmarks.commands.summary import table_of_runs, wide_console
from benchmarks.runs.planning import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run what was asked for."""
    plan = Plan(request(args))
    jobs = [
        plan.job(method, seed, tried)
        for seed in args.seeds
        for method in plan.request.methods
        for tried in plan.combinations(plan.given_grid(method))
    ]
    session = Session(args)
    results = session.make(jobs)
    if not args.json:
        wide_console().print(table_of_runs(results))
    return session.end()
