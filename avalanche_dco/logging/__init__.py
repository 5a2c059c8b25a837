"""Every metric of a run as a tidy pandas frame, on disk as it goes."""

from .frames import COLUMNS, read_log
from .pandas_logger import PandasLogger

__all__ = ["COLUMNS", "PandasLogger", "read_log"]
