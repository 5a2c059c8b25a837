"""What the commands that make runs have in common on the command line."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any

from avalanche_dco.errors import SettingError
from benchmarks.methods import METHODS
from benchmarks.presets import PRESETS
from benchmarks.runs.execution import RunOptions
from benchmarks.runs.planning import Assignment, Request
from benchmarks.runs.provenance import provenance
from benchmarks.runs.ray_runner import in_ray
from benchmarks.runs.runners import Runner, available_cores, in_processes, threads_per_job
from benchmarks.streams.catalogue import TASKS, Data

_SEEDS = 2**32  # numpy's limit


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to run, with which settings, and where."""
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--benchmark",
        required=True,
        choices=list(TASKS),
        metavar="NAME",
        help="one of: " + ", ".join(TASKS),
    )
    what.add_argument(
        "--methods",
        required=True,
        nargs="+",
        choices=list(METHODS),
        metavar="NAME",
        help="some of: " + ", ".join(METHODS),
    )
    what.add_argument(
        "--seeds",
        type=seed_number,
        nargs="+",
        default=[1],
        metavar="N",
        help="default: 1. Methods with the same seed start from the same weights and "
        "see the same batches",
    )
    what.add_argument(
        "--data-root",
        type=Path,
        metavar="DIR",
        help="folder with the data sets (MNIST/raw/..., cifar-100-python/...); what is "
        "missing is downloaded to it",
    )
    what.add_argument(
        "--npz",
        type=Path,
        metavar="FILE",
        help="x_train, y_train, x_test, y_test in place of a CIFAR; results carry the "
        "file's name and hash",
    )
    how = parser.add_argument_group("settings")
    how.add_argument(
        "--preset",
        choices=list(PRESETS),
        default="paper",
        help="paper (the default): the settings of the paper and its authors' code; fast: 16 "
        "instead of 128 gradients per autoencoder update, and 20 epochs on the CIFARs; default: "
        "the plugins' own defaults in the paper's training",
    )
    how.add_argument(
        "--training",
        metavar="[METHOD.]NAME=VALUE",
        action="append",
        default=[],
        type=_assignment,
        help="epochs, batch_size, lr, weight_decay, precision, "
        "later_lr_factor or experiences, instead of the preset's (repeatable)",
    )
    how.add_argument(
        "--set",
        dest="settings",
        metavar="[METHOD.]NAME=VALUE",
        action="append",
        default=[],
        type=_assignment,
        help="a setting of the methods, instead of the preset's (repeatable)",
    )
    how.add_argument(
        "--grid",
        dest="grids",
        metavar="[METHOD.]NAME=V1,V2,...",
        action="append",
        default=[],
        type=_grid,
        help="values to try, of a method's setting or of the training (repeatable)",
    )
    how.add_argument(
        "--match-compute",
        action="store_true",
        help="train every baseline until it has evaluated as many gradients as DCO "
        "does in the same experience, instead of for the preset's epochs",
    )
    where = parser.add_argument_group("where to run")
    where.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of the runs, one below it for each; default: runs",
    )
    where.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="runs at a time; default: one per core. The cores are shared out among "
        "them, so that --jobs 1 gives a run all cores",
    )
    where.add_argument(
        "--runner",
        choices=["processes", "ray"],
        default="processes",
        help="processes of this machine (the default), or a Ray cluster",
    )
    where.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="the cluster, such as auto or ray://HOST:10001; without it Ray is "
        "started on this machine",
    )
    where.add_argument(
        "--json",
        action="store_true",
        help="one line of JSON per finished run and one at the end on standard "
        "output, nothing else",
    )


def request(args: argparse.Namespace) -> Request:
    """What is asked for."""
    data_root = None if args.data_root is None else args.data_root.expanduser().resolve()
    npz = None if args.npz is None else args.npz.expanduser().resolve()
    return Request(
        benchmark=args.benchmark,
        methods=list(dict.fromkeys(args.methods)),
        preset=args.preset,
        data=Data(data_root, npz),
        training=args.training,
        settings=args.settings,
        grids=args.grids,
        match_compute=args.match_compute,
    )


def runner_and_options(args: argparse.Namespace) -> tuple[Runner, RunOptions]:
    """Where runs are made."""
    if args.ray_address is not None and args.runner != "ray":
        raise SettingError("--ray-address goes with --runner ray.")
    jobs = args.jobs or available_cores()
    threads = threads_per_job(jobs)
    options = RunOptions(args.out.resolve(), threads, provenance(threads))
    runner = in_processes(jobs) if args.runner == "processes" else in_ray(jobs, args.ray_address)
    return runner, options


def seed_number(text: str) -> int:
    """A seed from the command line: what all generators of random numbers take."""
    if not text.isdecimal() or int(text) >= _SEEDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no seed; it has to be a whole number from 0 to {_SEEDS - 1}"
        )
    return int(text)


def positive(text: str) -> int:
    """A number of things from the command line, at least one."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _assignment(text: str) -> Assignment:
    method, name, value = _divided(text, "VALUE")
    return Assignment(method, name, _literal(value))


def _grid(text: str) -> Assignment:
    method, name, values = _divided(text, "V1,V2,...")
    parsed = _literal(f"[{values}]")
    if isinstance(parsed, str):  # words, such as gradient_source=logits,criterion
        parsed = [_literal(word) for word in values.split(",")]
    if not parsed or "" in parsed:
        raise argparse.ArgumentTypeError(f"{text!r} has an empty value")
    return Assignment(method, name, parsed)


def _divided(text: str, form: str) -> tuple[str | None, str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form [METHOD.]NAME={form}")
    method, dot, own_name = name.partition(".")
    if dot and method not in METHODS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: there is no method {method!r}; there are {', '.join(METHODS)}"
        )
    return (method, own_name, value) if dot else (None, name, value)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a word, such as gradient_source=logits
