"""Every metric of a run as a tidy pandas frame, on disk as it goes."""

from .frames import COLUMNS, read_log
from .pandas_logger import PandasLogger
from .wandb_logger import WandBLogger

__all__ = ["COLUMNS", "PandasLogger", "WandBLogger", "read_log"]
