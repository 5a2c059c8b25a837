"""Which experiences a strategy has trained, and how many trainings that took."""

from typing import Any

from avalanche.training.supervised import JointTraining
from avalanche.training.templates import SupervisedTemplate


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
        self.experiences = tuple(_original(one).current_experience for one in trained)


def _original(experience: Any) -> Any:
    return getattr(experience, "origin_experience", experience)
