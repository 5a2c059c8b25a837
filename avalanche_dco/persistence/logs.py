"""Where loggers write: to the files of the strategy that is built, wherever they were before.

A checkpoint names each file that a logger has open. When it is loaded into a strategy whose logger
of the same class and position has opened another file, that one is written to from then on.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, runtime_checkable

from avalanche.logging import TensorboardLogger
from avalanche.training.templates import SupervisedTemplate

from avalanche_dco.errors import CheckpointError


@runtime_checkable
class ResumableLogger(Protocol):
    """A logger that opens its files by itself."""

    def restart(self) -> None:
        """There is no checkpoint: the run starts with the first experience."""

    def resume_in(self, built: Any) -> None:
        """It comes from a checkpoint; ``built`` takes its place in the strategy that is built."""


@dataclass
class Outputs:
    """Files and TensorBoard loggers of a strategy, by the paths they had when it was saved."""

    by_path: Mapping[str, Any] = field(default_factory=dict)
    contents: list[tuple[IO[str], str]] = field(default_factory=list)

    def restore_contents(self) -> None:
        """Give files that are emptied when they are opened the content they had."""
        for file, content in self.contents:
            file.seek(0)
            file.truncate()
            file.write(content)
            file.flush()


_outputs = Outputs()


def output_paths(strategy: SupervisedTemplate) -> dict[str, str]:
    """The path of each file that the loggers and plugins of a strategy write to, by its place."""
    return {name: _path(output) for name, output in _outputs_of(strategy).items()}


@contextmanager
def outputs_of(strategy: SupervisedTemplate, saved: Mapping[str, str]) -> Iterator[Outputs]:
    """Let what is unpickled in this context write to the outputs of a strategy."""
    global _outputs  # noqa: PLW0603
    before = _outputs
    built = _outputs_of(strategy)
    _outputs = Outputs({saved[name]: output for name, output in built.items() if name in saved})
    try:
        yield _outputs
    finally:
        _outputs = before


# The next three functions are called by unpickling.


def reopened_file(path: str, mode: str, encoding: str, content: str | None) -> IO[str]:
    """A file that a logger or plugin had open for writing."""
    file = _outputs.by_path.get(path)
    if file is None:
        try:
            file = open(path, mode, encoding=encoding)  # noqa: SIM115 - the logger's from now on
        except OSError as error:
            raise CheckpointError(
                f"The strategy had {path} open for writing, which is not possible now: "
                f"{error.strerror}. Build the strategy with the same loggers, to say where they "
                "write to, or make that file's folder."
            ) from error
    if content is not None:
        _outputs.contents.append((file, content))
    return file


def rebuilt_text_logger(cls: type[Any], state: dict[str, Any]) -> Any:
    """A text logger whose file may have another path; Avalanche's own way opens the old one."""
    logger = object.__new__(cls)
    logger.__dict__.update(state)
    logger.on_checkpoint_resume()
    return logger


def rebuilt_tensorboard_logger(cls: type[Any], state: tuple[Any, str]) -> Any:
    """A TensorBoard logger, which is nothing but its writer."""
    logger = _outputs.by_path.get(str(state[0]))
    if logger is None:
        logger = object.__new__(cls)
        logger.__setstate__(state)
    return logger


def is_open_for_writing(value: Any) -> bool:
    """Whether it is a text file with a name that is written to."""
    return (
        isinstance(value, io.TextIOWrapper)
        and not value.closed
        and getattr(value, "mode", "")[:1] in ("w", "a")
        and isinstance(value.name, str | os.PathLike)
        and os.path.isfile(value.name)
    )


def _outputs_of(strategy: SupervisedTemplate) -> dict[str, Any]:
    found = {}
    named = [(f"loggers[{i}]", one) for i, one in enumerate(strategy.evaluator.loggers)]
    named += [(f"plugins[{i}]", one) for i, one in enumerate(strategy.plugins)]
    for position, holder in named:
        name = f"{position}: {type(holder).__name__}"
        if isinstance(holder, TensorboardLogger):
            found[name] = holder
            continue
        for attribute, value in getattr(holder, "__dict__", {}).items():
            if is_open_for_writing(value):
                found[f"{name}.{attribute}"] = value
    return found


def _path(output: Any) -> str:
    return str(output.writer.log_dir if isinstance(output, TensorboardLogger) else output.name)
