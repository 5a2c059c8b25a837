r"""Compare methods on one benchmark: tune what is open, run all seeds, write a report.

Examples:
  python -m benchmarks compare --benchmark split-digits \
      --methods naive ewc si rwalk gpm dco dco-comp --seeds 1 2 3
  python -m benchmarks compare --benchmark split-mnist --methods naive ewc si dco joint \
      --seeds 1 2 3 --preset fast --tune --data-root ~/data
  python -m benchmarks compare --benchmark split-cifar100 --npz my_arrays.npz --methods naive dco
  python -m benchmarks compare --benchmark split-digits --methods naive ewc dco --match-compute
  python -m benchmarks compare --benchmark split-digits --methods naive dco --runner ray

Settings are those of the preset. What it leaves open, and with --tune everything that has a grid,
is chosen on a part of the training data that is held out (see `sweep`), never on test data; what
was chosen is written to chosen.json in --out, and --chosen takes such a file instead.

All methods start from the same weights for the same seed. The table has the mean and standard
deviation over the seeds, and the difference to DCO seed by seed. Beside the errors it tells what
they cost: gradient evaluations, time, bytes kept between experiences, peak memory.

Kill it and start the same command again: finished runs are kept, an interrupted one goes on from
its last finished experience, and the results are those of an undisturbed comparison.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from avalanche_dco.errors import SettingError
from benchmarks.commands.arguments import add_shared_arguments, request, seed_number
from benchmarks.commands.session import Session
from benchmarks.commands.summary import means, table_of_choices, table_of_means, wide_console
from benchmarks.commands.sweep import choose
from benchmarks.presets import Grid
from benchmarks.runs.choices import CHOSEN, read_choices, write_choices
from benchmarks.runs.planning import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared_arguments(parser)
    tuning = parser.add_argument_group("tuning")
    tuning.add_argument(
        "--tune", action="store_true", help="choose the settings of every method that has a grid"
    )
    tuning.add_argument(
        "--tune-seeds",
        type=seed_number,
        nargs="+",
        metavar="N",
        help="seeds of the tuning; default: the first of --seeds",
    )
    tuning.add_argument(
        "--chosen", type=Path, metavar="FILE", help="settings that `sweep` has chosen"
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="where the report goes; default: the folder report in --out",
    )


def run(args: argparse.Namespace) -> int:
    """Tune, run, and report."""
    plan = Plan(request(args))
    if args.chosen is not None:
        if args.tune:
            raise SettingError("--tune chooses settings, --chosen has them already; drop one.")
        plan = plan.with_chosen(read_choices(args.chosen, plan.benchmark))
    grids = _grids(plan, args.tune)
    for method in plan.request.methods:
        if method not in grids:
            plan.job(method, args.seeds[0])  # complains now rather than after the tuning
    session = Session(args)
    console = wide_console()
    if grids:
        seeds = args.tune_seeds or args.seeds[:1]
        choices = choose(plan, grids, seeds, session)
        write_choices(args.out / CHOSEN, plan, seeds, choices)
        plan = plan.with_chosen({name: one["settings"] for name, one in choices.items()})
        if not args.json:
            console.print(table_of_choices(choices))
    results = session.make(
        [plan.job(method, seed) for seed in args.seeds for method in plan.request.methods]
    )
    report = _write_report(args.out, args.report or args.out / "report")
    if not args.json:
        console.print(table_of_means(results))
        for path in report:
            console.print(f"written: {path}", soft_wrap=True)
    return session.end(methods=means(results), report=[str(path) for path in report])


def _grids(plan: Plan, tune: bool) -> dict[str, Grid]:
    """What has to be chosen: with --tune all grids, else what is open and what --grid asks for."""
    grids = {
        method: plan.grid(method) if tune or plan.open_names(method) else plan.given_grid(method)
        for method in plan.request.methods
    }
    return {method: grid for method, grid in grids.items() if grid}


def _write_report(runs: Path, out: Path) -> list[Path]:
    from benchmarks.commands.report import write_report  # noqa: PLC0415 (draws, which takes seconds to load)

    return write_report([runs], out)
