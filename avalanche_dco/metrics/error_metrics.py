"""Average, FWI and BWT error and the error matrix, as Avalanche metrics."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from avalanche.evaluation.metric_definitions import PluginMetric
from avalanche.evaluation.metric_results import AlternativeValues, MetricValue
from avalanche.training.templates import SupervisedTemplate
from PIL import Image

from avalanche_dco.metrics.functional import LearnedAt, average_error, bwt_error, fwi_error
from avalanche_dco.metrics.names import MetricName, NameParts
from avalanche_dco.metrics.recorder import ErrorRecorder


class _RecordedMetric(PluginMetric):
    """Passes Avalanche's callbacks on to the recorder, which metrics may share."""

    def __init__(self, recorder: ErrorRecorder | None = None) -> None:
        """:param recorder: the store of errors to share with other metrics; None for a new one."""
        super().__init__()
        self.recorder = ErrorRecorder() if recorder is None else recorder
        self._events = self.recorder.events

    def __str__(self) -> str:
        return type(self).__name__

    def reset(self) -> None:
        """Forget the whole run, also for the metrics that share the recorder."""
        self.recorder.reset()

    def _pass_on(self, callback: Callable[[Any], None], strategy: SupervisedTemplate) -> None:
        """Call the recorder, unless another metric that shares it has done so already."""
        self._events += 1
        if self._events > self.recorder.events:
            self.recorder.events = self._events
            callback(strategy)

    def before_training_exp(self, strategy: SupervisedTemplate) -> None:
        self._pass_on(self.recorder.before_training_exp, strategy)

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        self._pass_on(self.recorder.before_eval, strategy)

    def before_eval_exp(self, strategy: SupervisedTemplate) -> None:
        self._pass_on(self.recorder.before_eval_exp, strategy)

    def after_eval_iteration(self, strategy: SupervisedTemplate) -> None:
        self._pass_on(self.recorder.after_eval_iteration, strategy)

    def after_eval_exp(self, strategy: SupervisedTemplate) -> list[MetricValue] | None:
        self._pass_on(self.recorder.after_eval_exp, strategy)
        return None

    def _stream_value(self, strategy: SupervisedTemplate, stream: str, value: Any) -> MetricValue:
        name = MetricName(NameParts(str(self), "eval", stream))
        return MetricValue(self, name, value, strategy.clock.train_iterations)


class _StreamErrorMetric(_RecordedMetric):
    """One number per evaluated stream, emitted when an evaluation ends and it is defined."""

    @staticmethod
    @abstractmethod
    def _compute(matrix: np.ndarray, learned_at: LearnedAt) -> float: ...

    def result(self) -> dict[str, float]:
        """The error of every stream evaluated last, by its name, where it is defined."""
        if not self.recorder.learned_at:
            return {}
        values = {
            stream: self._compute(self.recorder.matrix(stream), self.recorder.learned_at)
            for stream in self.recorder.evaluated
        }
        return {stream: value for stream, value in values.items() if not np.isnan(value)}

    def after_eval(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        values = self.result()
        if self.recorder.learned_at:
            for stream in self.recorder.evaluated:
                if stream not in values:
                    self.recorder.warn_undefined(stream)
        return [self._stream_value(strategy, stream, value) for stream, value in values.items()]


class AverageError(_StreamErrorMetric):
    """Mean error over the experiences trained so far; see :func:`.average_error`.

    >>> from avalanche.training.plugins import EvaluationPlugin
    >>> from avalanche_dco.metrics import AverageError
    >>> evaluator = EvaluationPlugin(AverageError(), strict_checks=False)
    """

    _compute = staticmethod(average_error)


class FWIError(_StreamErrorMetric):
    """Mean error right after each experience's own training; see :func:`.fwi_error`.

    Together with others it shares an :class:`ErrorRecorder`, as in :func:`error_metrics`:

    >>> from avalanche_dco.metrics import AverageError, ErrorRecorder, FWIError
    >>> recorder = ErrorRecorder()
    >>> metrics = [AverageError(recorder), FWIError(recorder)]
    """

    _compute = staticmethod(fwi_error)


class BWTError(_StreamErrorMetric):
    """Mean rise of the error since each experience's own training; see :func:`.bwt_error`.

    >>> from avalanche_dco.metrics import BWTError
    >>> metric = BWTError()
    >>> str(metric), metric.result()  # nothing is evaluated yet
    ('BWTError', {})
    """

    _compute = staticmethod(bwt_error)


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


class ErrorMatrix(_RecordedMetric):
    """The error matrix: a number for each evaluated experience, and all of it for the stream.

    The numbers (``ErrorMatrix/eval_phase/test_stream/Task000/Exp003``) are curves in every
    logger; the matrix (``ErrorMatrix/eval_phase/test_stream``) is an image where a logger shows
    images and a table where it prints text.

    >>> from avalanche_dco.metrics import ErrorMatrix
    >>> metric = ErrorMatrix()
    >>> str(metric), metric.result()  # nothing is evaluated yet
    ('ErrorMatrix', {})
    """

    def result(self) -> dict[str, ErrorMatrixValue]:
        """The matrix of every stream evaluated last, by its name; empty before any training."""
        if not self.recorder.learned_at:
            return {}
        return {
            stream: ErrorMatrixValue(self.recorder.matrix(stream), self.recorder.learned_at)
            for stream in self.recorder.evaluated
        }

    def after_eval_exp(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        super().after_eval_exp(strategy)
        stream = strategy.experience.origin_stream.name
        error = self.recorder.error(stream, strategy.experience.current_experience)
        if np.isnan(error):
            return []
        name = MetricName.of_experience(str(self), strategy)
        return [MetricValue(self, name, error, strategy.clock.train_iterations)]

    def after_eval(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        return [
            self._stream_value(strategy, stream, value) for stream, value in self.result().items()
        ]


def error_metrics(
    *, average: bool = True, fwi: bool = True, bwt: bool = True, matrix: bool = False
) -> list[PluginMetric]:
    """The paper's errors for an evaluator: ``EvaluationPlugin(error_metrics(), loggers=...)``.

    The metrics share one store of errors, so each mini-batch is evaluated once.

    >>> from avalanche.training.plugins import EvaluationPlugin
    >>> from avalanche_dco.logging import PandasLogger
    >>> from avalanche_dco.metrics import error_metrics
    >>> evaluator = EvaluationPlugin(error_metrics(matrix=True), loggers=[PandasLogger()])
    >>> print(*error_metrics())
    AverageError FWIError BWTError

    :param average: emit the average error over the experiences trained so far.
    :param fwi: emit the forward interference error.
    :param bwt: emit the backward transfer error.
    :param matrix: emit the error matrix.
    :return: the metrics, in this order.
    """
    recorder = ErrorRecorder()
    chosen = [(average, AverageError), (fwi, FWIError), (bwt, BWTError), (matrix, ErrorMatrix)]
    return [metric(recorder) for wanted, metric in chosen if wanted]
