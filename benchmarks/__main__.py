"""``python -m benchmarks <command>``: one module per command.

A command's module offers ``add_arguments(parser)`` and ``run(args) -> int`` (the exit status);
the first line of its docstring is the help text.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from avalanche_dco.errors import DCOError

COMMANDS = {
    "list": "benchmarks.commands.list",
    "run": "benchmarks.commands.run",
    "compare": "benchmarks.commands.compare",
    "sweep": "benchmarks.commands.sweep",
    "keep": "benchmarks.commands.keep",
    "restore": "benchmarks.commands.restore",
    "report": "benchmarks.commands.report",
    "tables": "benchmarks.commands.tables",
    "speed": "benchmarks.studies.speed.study",
    "upstream": "benchmarks.commands.upstream",
    "newcomer": "benchmarks.studies.newcomer",
    "cost-of-dco": "benchmarks.studies.cost_of_dco",
    "capacity": "benchmarks.studies.capacity",
    "landscape": "benchmarks.studies.landscape.study",
    "fisher-example": "benchmarks.studies.fisher_example",
    "faults": "benchmarks.studies.faults.study",
    "long-stream": "benchmarks.studies.long_stream",
    "kron-speed": "benchmarks.studies.kron_speed",
    "kron-drift": "benchmarks.studies.kron_drift",
    "resnet": "benchmarks.studies.resnet",
    "task-sums": "benchmarks.studies.task_sums",
}


def _parser(asked: str | None) -> argparse.ArgumentParser:
    """The parser; if a command is asked for, without the others, which take seconds to load."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Benchmarks of avalanche_dco."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = {asked: COMMANDS[asked]} if asked in COMMANDS else COMMANDS
    for name, path in chosen.items():
        module = importlib.import_module(path)
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    :param arguments: the command line without the program; ``sys.argv`` if None.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    args = _parser(given[0] if given else None).parse_args(given)
    try:
        return args.run(args)
    except DCOError as error:
        return _refused(str(error))
    except OSError as error:
        return _refused(f"{error}. Give a path that can be used, or make room on the disk.")
    except KeyboardInterrupt:
        print("interrupted; what is finished is kept, so start the same again", file=sys.stderr)
        return 130


def _refused(reason: str) -> int:
    print(f"error: {' '.join(reason.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
