"""Average, FWI and BWT error, the error matrix, and the capacity meter, in every logger."""

from avalanche_dco.metrics.capacity_metrics import Capacity, DirectionMemory, capacity_metrics
from avalanche_dco.metrics.error_metrics import (
    AverageError,
    BWTError,
    ErrorMatrix,
    ErrorMatrixValue,
    FWIError,
    error_metrics,
)
from avalanche_dco.metrics.functional import average_error, bwt_error, fwi_error
from avalanche_dco.metrics.recorder import ErrorRecorder

__all__ = [
    "AverageError",
    "BWTError",
    "Capacity",
    "DirectionMemory",
    "ErrorMatrix",
    "ErrorMatrixValue",
    "ErrorRecorder",
    "FWIError",
    "average_error",
    "bwt_error",
    "capacity_metrics",
    "error_metrics",
    "fwi_error",
]
