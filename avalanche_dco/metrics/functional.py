r"""The paper's three errors as functions of an error matrix: NumPy in, floats out.

Index legend: row :math:`i` is the state of the model after its :math:`i`-th training, column
:math:`j` the experience :math:`j` of the evaluated stream, so :math:`e_{ij}` is the test error on
experience :math:`j` after the :math:`i`-th training. A cell that was not evaluated is NaN, and a
result that needs such a cell is NaN.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from avalanche_dco.errors import SettingError

LearnedAt = Mapping[int, int]


def average_error(matrix: ArrayLike, learned_at: LearnedAt | None = None) -> float:
    r"""Mean error on the experiences seen so far, as the model is now.

    .. math:: E_n^A = \frac{1}{n} \sum_{j=1}^{n} e_{nj}

    >>> from avalanche_dco.metrics import average_error
    >>> average_error([[0.1, 0.9], [0.3, 0.2]])
    0.25

    :param matrix: the errors, one row per training, one column per experience.
    :param learned_at: for each experience seen so far, the row right after its training. By
        default row j is the training of experience j. Columns that are not in it are unseen
        experiences, and do not count.
    :return: the average error; NaN when it is not defined.
    """
    now, _ = _now_and_own(matrix, learned_at)
    return _mean(now)


def fwi_error(matrix: ArrayLike, learned_at: LearnedAt | None = None) -> float:
    r"""Forward interference: mean error on every experience right after its own training.

    .. math:: E_n^{FWI} = \frac{1}{n} \sum_{j=1}^{n} e_{jj}

    >>> from avalanche_dco.metrics import fwi_error
    >>> round(fwi_error([[0.1, 0.9], [0.3, 0.2]]), 12)
    0.15

    :param matrix: as in :func:`average_error`.
    :param learned_at: as in :func:`average_error`.
    :return: the FWI error; NaN when it is not defined.
    """
    _, own = _now_and_own(matrix, learned_at)
    return _mean(own)


def bwt_error(matrix: ArrayLike, learned_at: LearnedAt | None = None) -> float:
    r"""Backward transfer: mean rise of the error since every experience's own training.

    .. math:: E_n^{BWT} = \frac{1}{n} \sum_{j=1}^{n} (e_{nj} - e_{jj})

    Positive when the model forgot, negative when later experiences helped earlier ones. The sum
    of FWI and BWT error is the average error.

    >>> from avalanche_dco.metrics import bwt_error
    >>> round(bwt_error([[0.1, 0.9], [0.3, 0.2]]), 12)
    0.1

    :param matrix: as in :func:`average_error`.
    :param learned_at: as in :func:`average_error`.
    :return: the BWT error; NaN when it is not defined.
    """
    now, own = _now_and_own(matrix, learned_at)
    return _mean(now - own)


def _now_and_own(matrix: ArrayLike, learned_at: LearnedAt | None) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the seen experiences: in the last row, and in the row of their own training."""
    errors = np.asarray(matrix, dtype=np.float64)
    if errors.ndim != 2:
        raise SettingError(
            f"An error matrix has two dimensions (trainings x experiences), but this one has "
            f"{errors.ndim}; pass a list of rows."
        )
    rows, columns = errors.shape
    if learned_at is None:
        if columns < rows:
            raise SettingError(
                f"{rows} trainings of {columns} experiences: say which row belongs to which "
                f"experience, for example learned_at={{0: 0, 1: 2}}."
            )
        learned_at = {j: j for j in range(rows)}
    for experience, row in learned_at.items():
        if not (0 <= experience < columns and 0 <= row < rows):
            raise SettingError(
                f"learned_at names row {row} and column {experience}; the matrix is "
                f"{rows} x {columns}, counted from 0."
            )
    seen = list(learned_at)
    if not seen:
        return np.empty(0), np.empty(0)
    return errors[-1, seen], errors[[learned_at[j] for j in seen], seen]


def _mean(errors: np.ndarray) -> float:
    return float(errors.mean()) if errors.size else float("nan")
