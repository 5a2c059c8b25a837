"""Average, FWI and BWT error, and the error matrix, in every Avalanche logger."""

from .error_metrics import AverageError, BWTError, ErrorMatrix, FWIError, error_metrics
from .functional import average_error, bwt_error, fwi_error
from .matrix_value import ErrorMatrixValue
from .recorder import ErrorRecorder

__all__ = [
    "AverageError",
    "BWTError",
    "ErrorMatrix",
    "ErrorMatrixValue",
    "ErrorRecorder",
    "FWIError",
    "average_error",
    "bwt_error",
    "error_metrics",
    "fwi_error",
]
