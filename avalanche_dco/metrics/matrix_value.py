"""An error matrix in the forms that Avalanche's loggers take."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from avalanche.evaluation.metric_results import AlternativeValues
from PIL import Image


class ErrorMatrixValue(AlternativeValues):
    """A picture for loggers that show images, a tensor for those that take one, a table as text.

    The picture is drawn only when a logger asks for it, because drawing is slow.

    >>> import numpy as np
    >>> from avalanche_dco.metrics import ErrorMatrixValue
    >>> value = ErrorMatrixValue(np.array([[0.1, 0.9], [0.3, 0.2]]), learned_at={0: 0, 1: 1})
    >>> print(value)
    <BLANKLINE>
      training    exp 0    exp 1
             1   0.1000   0.9000
             2   0.3000   0.2000
    """

    def __init__(self, matrix: np.ndarray, learned_at: Mapping[int, int]) -> None:
        """
        :param matrix: errors as fractions, one row per training, one column per experience; NaN
            where nothing was evaluated.
        :param learned_at: for each experience trained so far, the row right after its training.
        """
        super().__init__()
        self.matrix = matrix
        self.learned_at = dict(learned_at)

    def best_supported_value(self, *supported_types: type) -> Any:
        """An image if the logger takes one, otherwise a tensor, otherwise None."""
        if Image.Image in supported_types:
            return self.image()
        if torch.Tensor in supported_types:
            return torch.from_numpy(self.matrix.copy())
        return None

    def image(self) -> Image.Image:
        """The matrix as a heat map."""
        # Imported here: a run that logs only numbers does not load the drawing code.
        from avalanche_dco.plots import draw_error_matrix  # noqa: PLC0415

        buffer = BytesIO()
        draw_error_matrix(self.matrix, self.learned_at).savefig(buffer, format="png", dpi=100)
        return Image.open(buffer).convert("RGB")

    def __str__(self) -> str:
        head = "".join(f"{f'exp {j}':>9}" for j in range(self.matrix.shape[1]))
        lines = [f"\n{'training':>10}{head}"]
        for row, errors in enumerate(self.matrix, start=1):
            cells = "".join(f"{'-' if np.isnan(e) else f'{e:.4f}':>9}" for e in errors)
            lines.append(f"{row:>10}{cells}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"ErrorMatrixValue({self.matrix.tolist()})"
