"""Every metric of a run as a tidy pandas frame, on disk as it goes."""

from avalanche_dco.logging.frames import COLUMNS, read_log
from avalanche_dco.logging.pandas_logger import PandasLogger
from avalanche_dco.logging.wandb_logger import WandBLogger

__all__ = ["COLUMNS", "PandasLogger", "WandBLogger", "read_log"]
