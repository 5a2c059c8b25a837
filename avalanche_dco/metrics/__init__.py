"""Average, FWI and BWT error, the error matrix, and the capacity meter, in every logger."""

from .capacity_metrics import Capacity, DirectionMemory, capacity_metrics
from .error_metrics import AverageError, BWTError, ErrorMatrix, FWIError, error_metrics
from .functional import average_error, bwt_error, fwi_error
from .matrix_value import ErrorMatrixValue
from .recorder import ErrorRecorder

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
