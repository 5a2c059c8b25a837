"""The logger itself: Avalanche's callbacks on top of a store of lines."""

import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from avalanche.logging import BaseLogger
from avalanche.training.templates import SupervisedTemplate

from avalanche_dco.errors import SettingError
from avalanche_dco.logging.frames import write_parquet
from avalanche_dco.logging.stores import LineStore
from avalanche_dco.logging.values import describe, parse_name, position
from avalanche_dco.metrics.recorder import TrainingProgress


class PandasLogger(BaseLogger):
    """Records all metrics, including custom ones, one line per value.

    With a path, each value is appended to a CSV file the moment it is logged: a crash loses at
    most the line being written. A file that exists is continued, never overwritten.

    >>> from avalanche.training.plugins import EvaluationPlugin
    >>> from avalanche_dco.logging import PandasLogger
    >>> from avalanche_dco.metrics import error_metrics
    >>> logger = PandasLogger("run.csv")
    >>> evaluator = EvaluationPlugin(error_metrics(), loggers=[logger])
    >>> frame = logger.to_frame()  # after training; no rows yet
    >>> len(frame)
    0

    The columns are those of :func:`.read_log`, which also reads the file without a logger.
    """

    def __init__(self, path: str | Path | None = None, *, parquet: bool = False) -> None:
        """
        :param path: the CSV file, one for each run; None keeps the values in memory only.
        :param parquet: also write a Parquet file next to the CSV file, replaced as a whole at the
            end of every training and evaluation. Needs pyarrow.
        """
        super().__init__()
        if parquet and path is None:
            raise SettingError(
                "PandasLogger(parquet=True) has nowhere to put the Parquet file, which goes beside "
                'the CSV file. Write PandasLogger("run.csv", parquet=True).'
            )
        if parquet and find_spec("pyarrow") is None:
            raise SettingError(
                "PandasLogger(parquet=True) needs pyarrow, which is not installed. Run "
                "'pip install pyarrow', or leave parquet=True out and keep the CSV file."
            )
        self.parquet = parquet
        self._progress = TrainingProgress()
        self._store = LineStore(None if path is None else Path(path).absolute())

    @property
    def path(self) -> Path | None:
        """The CSV file; None for a log in memory."""
        return self._store.path

    def log_single_metric(self, name: str, value: Any, x_plot: Any) -> None:
        """Keep one value."""
        x = position(x_plot)
        if x is None and x_plot is not None:
            warnings.warn(
                f"'{name}' has an x position of type {type(x_plot).__name__} that is not a number, "
                "or larger than any float: its x stays empty in the log.",
                stacklevel=2,
            )
        experiences = self._progress.experiences
        self._store.append(
            (
                name,
                *parse_name(name),
                *describe(value),
                x,
                self._progress.step,
                experiences[0] if len(experiences) == 1 else None,
                time.time(),
            )
        )

    def to_frame(self) -> pd.DataFrame:
        """All values so far, those of the runs that this one continues included."""
        return self._store.to_frame()

    def restart(self) -> None:
        """Let what follows replace what earlier starts of this run have logged.

        Called by :func:`.maybe_load_checkpoint` where there is no checkpoint to resume from.
        """
        self._store.restart()

    def resume_in(self, built: "PandasLogger") -> None:
        """Write to the file of another logger; called after a checkpoint was loaded."""
        if self.path is not None and built.path is not None:
            self._store.resume_in(built._store)

    # Unlike before_training_exp it comes before the first metric of a training can be emitted.
    def before_train_dataset_adaptation(
        self, strategy: SupervisedTemplate, *_: Any, **__: Any
    ) -> None:
        self._progress.begin(strategy)

    def after_training_exp(self, strategy: SupervisedTemplate, *_: Any, **__: Any) -> None:
        self._settle()

    def after_eval(self, strategy: SupervisedTemplate, *_: Any, **__: Any) -> None:
        self._settle()

    def _settle(self) -> None:
        self._store.sync()
        if self.parquet and self.path is not None:
            write_parquet(self.to_frame(), self.path.with_suffix(".parquet"))
