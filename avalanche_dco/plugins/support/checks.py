"""Checks of the data, the weights and the gradients of an experience."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from avalanche_dco.errors import DataError, GradientError
from avalanche_dco.plugins.support.gradients import trainable
from avalanche_dco.plugins.support.isolation import model_kept, random_state_kept
from avalanche_dco.plugins.support.reporting import experience_number


class InputChecks:
    """Avalanche callbacks that look at the data of each experience; for plugins to inherit from."""

    _seen = False
    """Whether the first mini-batch of the experience has been looked at."""

    def before_train_dataset_adaptation(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse an experience without data."""
        self._seen = False
        if len(strategy.experience.dataset) == 0:
            raise DataError(
                f"Experience {experience_number(strategy)} is empty: there is nothing to learn "
                "from it. Leave it out of the stream."
            )
        super().before_train_dataset_adaptation(  # type: ignore[misc]
            strategy, *args, **kwargs
        )

    def before_training_iteration(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse inputs in another precision than the weights'."""
        if not self._seen:
            _refuse_other_precision(strategy)
        super().before_training_iteration(strategy, *args, **kwargs)  # type: ignore[misc]

    def after_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Refuse labels that the model has no output for."""
        self._check_labels(strategy, strategy.mb_output)
        super().after_forward(strategy, *args, **kwargs)  # type: ignore[misc]

    def _check_labels(self, strategy: SupervisedTemplate, outputs: Any) -> None:
        """Once per experience; for plugins with a forward pass of their own before training's."""
        if not self._seen:
            self._seen = True
            _refuse_labels(strategy, outputs)

    def after_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Refuse to continue with broken weights."""
        with naming_experience(strategy):
            refuse_broken(trainable(strategy.model), "In training", strategy)
        super().after_training_epoch(strategy, *args, **kwargs)  # type: ignore[misc]


def refuse_broken(
    parameters: dict[str, nn.Parameter], when: str, strategy: SupervisedTemplate
) -> None:
    """Raise if a weight is infinite or not a number."""
    broken = [repr(name) for name, p in parameters.items() if not torch.isfinite(p).all()]
    if broken:
        raise GradientError(
            f"{when}, the weights of {', '.join(broken)} are infinite or not a number, because "
            f"a gradient was. {_cause(strategy)}"
        )


def warn_of_vanishing(strategy: SupervisedTemplate, share: float, remedy: str = "") -> None:
    """Warn if directions are learned from some of an experience's gradients only, or from none."""
    if share < 0.1:
        return
    which, consequence = (
        ("the", "there are no directions to remember and this experience will not be protected")
        if share == 1
        else (f"{share:.1%} of the", "only the others protect this experience")
    )
    warnings.warn(
        f"Experience {experience_number(strategy)}: {which} gradients are zero, or so small that "
        f"their squares are, so {consequence}. {remedy}".rstrip(),
        stacklevel=2,
    )


@contextmanager
def naming_experience(strategy: SupervisedTemplate) -> Iterator[None]:
    """Say in which experience a gradient was broken."""
    try:
        yield
    except GradientError as error:
        raise GradientError(f"Experience {experience_number(strategy)}: {error}") from error


def _cause(strategy: SupervisedTemplate) -> str:
    for index, sample in enumerate(strategy.experience.dataset):
        inputs = sample[0]
        if isinstance(inputs, Tensor) and not torch.isfinite(inputs).all():
            return (
                f"Sample {index} of its data has an input that is infinite or not a number: "
                "remove or correct it."
            )
    return "The inputs are all finite: lower the learning rate."


def _refuse_other_precision(strategy: SupervisedTemplate) -> None:
    model, inputs = strategy.model, strategy.mb_x
    weights = {p.dtype for p in model.parameters() if not is_lazy(p) and p.is_floating_point()}
    if not (isinstance(inputs, Tensor) and weights - {inputs.dtype}):
        return
    # Rare enough to try it: the model may convert what it is given (as an Embedding does with
    # integers), or autocast may.
    error = _failure(strategy, inputs)
    # What fails in the precision of the weights, too, has another cause; training raises it.
    if error and not all(_failure(strategy, inputs.to(dtype)) for dtype in weights):
        raise DataError(
            f"Experience {experience_number(strategy)}: the inputs are {inputs.dtype}, the weights "
            f"{', '.join(sorted(map(str, weights)))}, and torch does not mix them ({error}). "
            "Convert the inputs in the data set, for example with x.float(), or the model, with "
            "model.double()."
        ) from error


def _failure(strategy: SupervisedTemplate, inputs: Tensor) -> RuntimeError | None:
    """Why the model cannot take some inputs; nothing is changed by the attempt."""
    model, batch = strategy.model, strategy.mbatch
    try:
        with model_kept(model, weights=False), random_state_kept(), torch.no_grad():
            model.eval()
            strategy.mbatch = [inputs, *batch[1:]]
            strategy.forward()
    except RuntimeError as error:
        return error
    finally:
        strategy.mbatch = batch
    return None


def _refuse_labels(strategy: SupervisedTemplate, outputs: Any) -> None:
    """Raise where cross-entropy would, or would bring the GPU down."""
    criterion, labels = strategy._criterion, strategy.mb_y
    if not (
        isinstance(criterion, nn.CrossEntropyLoss)
        and isinstance(outputs, Tensor)
        and isinstance(labels, Tensor)
        and outputs.shape != labels.shape  # otherwise they are probabilities
    ):
        return
    where = f"Experience {experience_number(strategy)}"
    if labels.dtype not in (torch.int64, torch.uint8):
        raise DataError(
            f"{where}: the labels are {labels.dtype}, but cross-entropy takes class numbers as "
            "torch.int64. Convert them in the data set, for example with y.long()."
        )
    targets = torch.as_tensor(
        getattr(strategy.adapted_dataset, "targets", labels), dtype=torch.int64
    )
    known = targets[targets != criterion.ignore_index]
    classes = outputs.shape[1]
    wrong = known[(known < 0) | (known >= classes)].unique().tolist()
    if wrong:
        raise DataError(
            f"{where}: there are labels {wrong[:10]}, but the model has {classes} outputs, for the "
            f"labels 0 to {classes - 1}. Number the classes from 0, give the model more outputs, "
            "or let its head grow with avalanche.models.IncrementalClassifier."
        )
