r"""Choose the settings of methods on a validation split of the training data.

Examples:
  python -m benchmarks sweep --benchmark split-digits --methods ewc si rwalk gpm
  python -m benchmarks sweep --benchmark split-digits --methods ewc --grid ewc_lambda=10,100,1000
  python -m benchmarks sweep --benchmark split-mnist --methods gpm --grid lr=0.001,0.01 \
      --grid weight_decay=0,0.001 --data-root ~/data
  python -m benchmarks sweep --benchmark split-mnist --preset default --methods naive ewc gpm dco \
      --tries 15 --data-root ~/data
  python -m benchmarks compare --benchmark split-digits --methods naive ewc dco \
      --chosen runs/chosen.json

A tenth of every class of every experience is held out of the training data. Every combination of
a method's grid is trained on the rest; the one with the lowest average error on what was held out,
at the end of the stream and on average over the seeds, is chosen. Test data are not looked at.

Grids are the paper's where it has one for the benchmark, else the method's own (`list` shows them);
--grid replaces the values of one name, or adds a name, of the method or of the training. A setting
whose training diverges is not chosen. A try that is lost because its data cannot be read or its
process is killed ends the command; the same command goes on from there.

--tries N searches instead of trying all combinations, with at most N of them for each method: the
method's strength on its ladder (`list` shows it), the learning rate from 0.01 on the ladder 0.001,
0.003, 0.01, ..., later_lr_factor (1 or 0.1) and weight_decay (0 or 0.001). It walks along one
ladder after the other while the error falls and ends when no neighbour of what was chosen is
better. What --set or --training sets stays as it is. A larger N later continues the search. --start
begins at what another search has chosen, such as a cheaper one with fewer epochs, or one on another
benchmark. --give-up F ends a try once its average error on the tasks learned so far, two at least,
is more than F times the final one of the method's best try.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

from avalanche_dco.errors import DCOError, SettingError
from benchmarks.commands.arguments import add_shared_arguments, positive, request
from benchmarks.commands.session import Session
from benchmarks.commands.summary import table_of_choices, table_of_searches, wide_console
from benchmarks.presets import Grid
from benchmarks.runs.choices import CHOSEN, Choices, choices_in, write_choices
from benchmarks.runs.jobs import ENDED_AFTER
from benchmarks.runs.planning import Plan
from benchmarks.runs.search import Search
from benchmarks.runs.training import Settings

Candidate = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared_arguments(parser)
    parser.add_argument(
        "--tries",
        type=positive,
        metavar="N",
        help="search with at most N combinations for each method, instead of trying a grid",
    )
    parser.add_argument(
        "--start",
        type=Path,
        metavar="FILE",
        help="with --tries: what another search has chosen, to begin there",
    )
    parser.add_argument(
        "--give-up",
        type=_factor,
        metavar="F",
        help="with --tries: end a try once its average error so far is more than F times the final "
        "one of the method's best try",
    )
    parser.add_argument(
        "--chosen",
        type=Path,
        metavar="FILE",
        help="where to write what was chosen; default: chosen.json in --out",
    )


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return factor


def run(args: argparse.Namespace) -> int:
    """Choose, and write down what was chosen."""
    plan = Plan(request(args))
    for option, value in (("--start", args.start), ("--give-up", args.give_up)):
        if value is not None and args.tries is None:
            raise SettingError(f"{option} is for a search; give it with --tries N.")
    if args.give_up is not None and len(args.seeds) > 1:
        raise SettingError(
            f"--give-up compares a try with the best one by one seed; give one, not {args.seeds}."
        )
    if args.tries is None:
        choices, session = _by_grid(plan, args)
    else:
        choices, session = _by_search(plan, args)
    path = args.chosen or args.out / CHOSEN
    write_choices(path, plan, args.seeds, choices)
    if not args.json:
        console = wide_console()
        console.print(table_of_choices(choices))
        if args.tries is not None:
            console.print(table_of_searches(choices))
        console.print(f"written to {path}")
    return session.end(chosen=str(path), methods=choices)


def _by_grid(plan: Plan, args: argparse.Namespace) -> tuple[Choices, Session]:
    grids = {method: plan.grid(method) for method in plan.request.methods}
    if not any(grids.values()):
        raise SettingError(
            f"there is nothing to choose: {', '.join(grids)} has no grid; give --grid NAME=V1,V2."
        )
    session = Session(args)
    return choose(plan, grids, args.seeds, session), session


def _by_search(plan: Plan, args: argparse.Namespace) -> tuple[Choices, Session]:
    if plan.request.grids:
        raise SettingError(
            "--grid names all values to try, --tries walks along ladders; drop one of them. What "
            "the search should leave alone is written --set NAME=VALUE or --training NAME=VALUE."
        )
    starts = {} if args.start is None else choices_in(args.start, None, "--start")
    missing = set(plan.request.methods) - starts.keys()
    if args.start is not None and missing:
        raise SettingError(
            f"--start {args.start} has nothing for {', '.join(sorted(missing))}; search for them "
            "in a command of their own, without --start."
        )
    searches = {
        method: Search(plan.coordinates(method, starts.get(method, {}).get("settings")), args.tries)
        for method in plan.request.methods
    }
    for method, search in searches.items():
        plan.job(method, args.seeds[0], search.asked, "validation")  # complains before any runs
    session = Session(args)
    choices = search_for(plan, searches, args.seeds, session, args.give_up)
    for method, start in starts.items():
        if method in choices and start["tries"] is not None:  # None: a grid
            choices[method]["tries_before"] = start["tries"]
    return choices, session


def choose(
    plan: Plan, grids: Mapping[str, Grid], seeds: Sequence[int], session: Session
) -> Choices:
    """Try every combination of the methods' grids on a validation split.

    :param grids: values to try, by method; methods without any are left out.
    :param seeds: seeds of runs and divisions; errors are averaged over them.
    :return: by method: what was chosen, its error, and the error of every combination.
    """
    tried = {method: plan.combinations(grid) for method, grid in grids.items() if grid}
    candidates = _try(plan, tried, seeds, session)
    return {method: _best(method, mine) for method, mine in candidates.items()}


def search_for(
    plan: Plan,
    searches: Mapping[str, Search],
    seeds: Sequence[int],
    session: Session,
    give_up: float | None = None,
) -> Choices:
    """Search for the best settings of each method on a validation split.

    The searches go on together, one combination of each at a time.

    :param searches: where to search, by method.
    :param give_up: how many times the least error so far ends a try; None for no limit.
    :return: as :func:`choose`, and with how many tries, and how sure each value is.
    """
    candidates: dict[str, list[Candidate]] = {method: [] for method in searches}
    while asked := {m: [s.asked] for m, s in searches.items() if s.asked is not None}:
        limits = {
            method: round(give_up * least, 4)
            for method in asked
            if give_up is not None and (least := searches[method].least_error) is not None
        }
        for method, [candidate] in _try(plan, asked, seeds, session, limits).items():
            searches[method].answer(candidate["validation_error"])
            candidates[method].append(candidate)
    return {
        method: _best(method, candidates[method])
        | {
            "tries": len(candidates[method]),
            "tries_allowed": search.tries,
            "statuses": search.statuses(),
        }
        | ({} if give_up is None else {"give_up": give_up})
        for method, search in searches.items()
    }


def _try(
    plan: Plan,
    combinations: Mapping[str, Sequence[Settings]],
    seeds: Sequence[int],
    session: Session,
    limits: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, list[Candidate]]:
    """Train with combinations of settings, and say how good each is.

    :param limits: the average error, in %, above which a try ends early, by method.
    """
    jobs = {
        (method, number, seed): plan.job(
            method, seed, combination, "validation", limits.get(method)
        )
        for method, mine in combinations.items()
        for number, combination in enumerate(mine)
        for seed in seeds
    }
    results = {
        result.job.folder_name: result
        for result in session.make(list(jobs.values()), failures_count=False)
    }
    for result in results.values():
        if result.lost:
            raise DCOError(
                f"{result.job.title}: {result.failure} This says nothing about the settings that "
                "were tried, so nothing is chosen. What is finished is kept; start the same "
                "command again."
            )

    def candidate(method: str, number: int, combination: Settings) -> Candidate:
        mine = [results[jobs[method, number, seed].folder_name] for seed in seeds]
        summaries = [one.summary for one in mine if one.summary is not None]
        errors = [summary["average"] for summary in summaries]
        early = any(ENDED_AFTER in summary for summary in summaries)
        return {
            "settings": dict(combination),
            "validation_error": fmean(errors) if len(errors) == len(seeds) else None,
            "failures": [one.failure for one in mine if one.failure is not None],
            "runs": [one.job.folder_name for one in mine],
        } | ({"ended_early": True} if early else {})

    return {
        method: [candidate(method, number, one) for number, one in enumerate(mine)]
        for method, mine in combinations.items()
    }


def _best(method: str, candidates: list[Candidate]) -> dict[str, Any]:
    able = [one for one in candidates if one["validation_error"] is not None]
    if not able:
        raise DCOError(
            f"{method}: no combination that was tried could be trained, so there is nothing to "
            f"choose. The first one failed with: {candidates[0]['failures'][0]}"
        )
    best = min(able, key=lambda one: one["validation_error"])
    return {
        "settings": best["settings"],
        "validation_error": best["validation_error"],
        "candidates": candidates,
    }
