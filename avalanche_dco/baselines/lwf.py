"""Learning without Forgetting with a steady teacher of all old classes."""

import copy
from typing import Any

from avalanche.models.utils import is_multi_task_module
from avalanche.training import plugins


class LwFPlugin(plugins.LwFPlugin):
    """Avalanche's LwF with three corrections.

    * The teacher of Avalanche 0.6.0 is a copy of a model in train mode: its dropout stays on, so
      the student learns from noise, and its batch normalisation follows the new data. Here the
      teacher is in eval mode.
    * A model without task labels on a benchmark with task labels is distilled on the classes of
      task 0 only, although all tasks share its outputs. Here on all classes seen.
    * It needs datasets with a ``task_set``, which those of ``benchmark_from_datasets`` lack; here
      the classes are read from the targets.
    """

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Make the teacher, and note the classes it knows."""
        self.lwf.expcount += 1
        self.lwf.prev_model = copy.deepcopy(strategy.model).eval()
        dataset = strategy.experience.dataset
        # Outputs that all tasks share go by the name of task 0.
        multi_task = is_multi_task_module(strategy.model)
        for target, task in zip(dataset.targets, dataset.targets_task_labels, strict=True):
            self.lwf.prev_classes_by_task[int(task) if multi_task else 0].add(int(target))
