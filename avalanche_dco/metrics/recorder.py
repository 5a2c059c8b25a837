"""What a strategy has trained, and the store of errors that all error metrics share."""

import warnings

import numpy as np
from avalanche.evaluation.metric_utils import stream_type
from avalanche.training.supervised import JointTraining
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor


class TrainingProgress:
    """Counts trainings; one training may cover several experiences, or several calls.

    Joint training covers all of its experiences at once. An online stream cuts an experience into
    small ones, which together are one training of the experience they come from.
    """

    def __init__(self) -> None:
        self.step = 0
        """Trainings begun so far; 0 before the first."""

        self.experiences: tuple[int, ...] = ()
        """The experiences of the training that began last."""

    def begin(self, strategy: SupervisedTemplate) -> None:
        """Take note that ``strategy`` starts to train ``strategy.experience``."""
        experience = strategy.experience
        if getattr(experience, "is_first_subexp", True):
            self.step += 1
        trained = strategy._experiences if isinstance(strategy, JointTraining) else [experience]
        originals = (getattr(one, "origin_experience", one) for one in trained)
        self.experiences = tuple(one.current_experience for one in originals)


class ErrorRecorder:
    """Errors by (stream, experience) and training, filled from Avalanche's callbacks.

    >>> from avalanche_dco.metrics import AverageError, BWTError, ErrorRecorder
    >>> recorder = ErrorRecorder()
    >>> metrics = [AverageError(recorder), BWTError(recorder)]
    >>> recorder.matrix("test").shape  # no training yet
    (0, 0)
    """

    def __init__(self) -> None:
        self.events = 0
        """Events recorded: every metric that shares this store reports every event, the first one
        to do so counts."""
        self.reset()

    def reset(self) -> None:
        """Forget the run."""
        self.errors: dict[tuple[str, int], dict[int, float]] = {}
        """(stream, experience) -> training -> error; the last evaluation wins."""
        self.learned_at: dict[int, int] = {}
        """Experience -> the matrix row of its latest training."""
        self.evaluated: list[str] = []
        """The streams of the latest call of eval."""
        self.progress = TrainingProgress()
        self._warned: set[str] = set()
        self._wrong: int | Tensor = 0
        self._total = 0

    def before_training_exp(self, strategy: SupervisedTemplate) -> None:
        self.progress.begin(strategy)
        for experience in self.progress.experiences:
            self.learned_at[experience] = self.progress.step - 1

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        self.evaluated = []

    def before_eval_exp(self, strategy: SupervisedTemplate) -> None:
        self._wrong, self._total = 0, 0

    def after_eval_iteration(self, strategy: SupervisedTemplate) -> None:
        predicted, truth = _labels(strategy.mb_output), _labels(strategy.mb_y)
        # Added up on the device: no synchronisation per mini-batch.
        self._wrong = self._wrong + (predicted != truth).sum()
        self._total += len(truth)

    def after_eval_exp(self, strategy: SupervisedTemplate) -> None:
        if self._total == 0:
            return
        stream = stream_type(strategy.experience)
        key = (stream, strategy.experience.current_experience)
        self.errors.setdefault(key, {})[self.progress.step] = int(self._wrong) / self._total
        if stream not in self.evaluated:
            self.evaluated.append(stream)
        self._wrong, self._total = 0, 0

    def error(self, stream: str, experience: int) -> float:
        """The latest error since the last training; NaN when there was no evaluation."""
        return self.errors.get((stream, experience), {}).get(self.progress.step, float("nan"))

    def matrix(self, stream: str) -> np.ndarray:
        """The error matrix of a stream: a row per training, a column per experience id."""
        recorded = {id_: cells for (name, id_), cells in self.errors.items() if name == stream}
        columns = 1 + max([*recorded, *self.learned_at], default=-1)
        matrix = np.full((self.progress.step, columns), np.nan)
        for experience, cells in recorded.items():
            for step, error in cells.items():
                if step > 0:
                    matrix[step - 1, experience] = error
        return matrix

    def warn_undefined(self, stream: str) -> None:
        """Say once per stream which evaluations are missing."""
        if stream in self._warned:
            return
        self._warned.add(stream)
        matrix = self.matrix(stream)
        now = [j for j in self.learned_at if np.isnan(matrix[-1, j])]
        own = [j for j, row in self.learned_at.items() if np.isnan(matrix[row, j])]
        warnings.warn(
            f"{stream} stream: the average, FWI and BWT errors that need an evaluation which did "
            f"not take place are not emitted. Not evaluated since the last training: experiences "
            f"{now or 'none'}; not evaluated right after their own training: {own or 'none'}. "
            f"Call strategy.eval on the whole {stream} stream after every strategy.train "
            f"of one experience.",
            stacklevel=2,
        )


def _labels(scores_or_labels: Tensor) -> Tensor:
    return scores_or_labels.argmax(dim=1) if scores_or_labels.ndim > 1 else scores_or_labels
