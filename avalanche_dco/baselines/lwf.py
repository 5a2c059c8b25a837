"""Learning without Forgetting with a steady teacher of all old classes."""

import copy
from collections import defaultdict
from typing import Any

import torch
from avalanche.models.utils import is_multi_task_module
from avalanche.training import plugins
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from avalanche_dco.baselines.shared import labelled
from avalanche_dco.core.checked import is_count, require
from avalanche_dco.errors import ModelError, StateError
from avalanche_dco.plugins.support.checks import InputChecks
from avalanche_dco.plugins.support.kept import Form, Kept, Plain, Shapes, Tensors
from avalanche_dco.plugins.support.state import PluginState


class _Count(Form):
    def read(self, plain: Any, what: str, shapes: Shapes) -> int:
        require(is_count(plain), f"{what} must be a whole number of at least 0")
        return plain


class _ClassesByTask(Form):
    def plain(self, value: dict[int, set[int]]) -> dict[int, list[int]]:
        return {task: sorted(known) for task, known in value.items()}

    def read(self, plain: Any, what: str, shapes: Shapes) -> dict[int, set[int]]:
        require(
            isinstance(plain, dict)
            and all(is_count(task) and isinstance(plain[task], list) for task in plain)
            and all(is_count(label) for known in plain.values() for label in known),
            f"{what} must map each task to a list of its classes",
        )
        return defaultdict(set, {task: set(known) for task, known in plain.items()})


def _fits_teacher(value: Tensor, name: str, shapes: Shapes) -> bool:
    # Buffers are not among the parameters; the model compares their shapes when it gets them.
    return not value.is_complex() and shapes.get(name) in (None, list(value.shape))


class LwFPlugin(InputChecks, PluginState, plugins.LwFPlugin):
    """Avalanche's LwF with three corrections.

    * The teacher of Avalanche 0.6.0 is a copy of a model in train mode: its dropout stays on, so
      the student learns from noise, and its batch normalisation follows the new data. Here the
      teacher is in eval mode.
    * A model without task labels on a benchmark with task labels is distilled on the classes of
      task 0 only, although all tasks share its outputs. Here on all classes seen.
    * It needs datasets with a ``task_set``, which those of ``benchmark_from_datasets`` lack; here
      the classes are read from the targets.

    >>> from avalanche_dco.baselines import LwFPlugin
    >>> plugin = LwFPlugin(alpha=1, temperature=2)
    """

    _KEEPS = (
        Kept("teacher", Tensors(_fits_teacher), "_teacher"),
        Kept("classes_by_task", _ClassesByTask(), "lwf.prev_classes_by_task"),
        Kept("experiences", _Count(), "lwf.expcount"),
    )
    _FOR_ALL_PARAMETERS = True

    _loaded_teacher: dict[str, Tensor] | None = None
    """A teacher that was loaded, until there is a model to put it into."""

    @property
    def _teacher(self) -> dict[str, Tensor] | None:
        if self._loaded_teacher is not None or self.lwf.prev_model is None:
            return self._loaded_teacher
        return dict(self.lwf.prev_model.state_dict())

    @_teacher.setter
    def _teacher(self, state: dict[str, Tensor]) -> None:
        self._loaded_teacher = state

    def before_training(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Give a teacher that was loaded its model."""
        super().before_training(strategy, *args, **kwargs)
        if self._loaded_teacher is not None:
            teacher = _copy(strategy.model).eval()
            try:
                teacher.load_state_dict(self._loaded_teacher)
            except RuntimeError as error:
                raise StateError(
                    "The teacher in the state of LwFPlugin is another model than the one to be "
                    f"trained: {error}. Build the model as it was when the state was saved."
                ) from error
            self.lwf.prev_model, self._loaded_teacher = teacher, None

    def _check_labels(self, strategy: SupervisedTemplate, outputs: Any) -> None:
        if not isinstance(outputs, Tensor):
            raise ModelError(
                "LwFPlugin distils the outputs for each class, which have to be one tensor, but "
                f"this model returns {type(outputs).__name__}. Let it return the outputs only."
            )
        super()._check_labels(strategy, outputs)

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Make the teacher, and note the classes it knows."""
        teacher = _copy(strategy.model).eval()
        dataset = strategy.experience.dataset
        # Outputs that all tasks share go by the name of task 0.
        multi_task = is_multi_task_module(strategy.model)
        targets = torch.as_tensor(list(dataset.targets))
        tasks = getattr(dataset, "targets_task_labels", [0] * len(targets))
        known = labelled(targets, getattr(strategy, "_criterion", None))
        classes = copy.deepcopy(self.lwf.prev_classes_by_task)
        for target, task, is_known in zip(targets.tolist(), tasks, known.tolist(), strict=True):
            if is_known and target >= 0:
                classes[int(task) if multi_task else 0].add(target)
        self.lwf.prev_model, self.lwf.prev_classes_by_task = teacher, classes
        self.lwf.expcount += 1
        self._finished(strategy)

    def _settings(self) -> Plain:
        return {"alpha": self.lwf.alpha, "temperature": self.lwf.temperature}


def _copy(model: nn.Module) -> nn.Module:
    """A deep copy; tensors with a graph, as old-style ``weight_norm`` leaves them, lose it."""
    computed = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and value.grad_fn is not None
    }
    return copy.deepcopy(model, computed)
