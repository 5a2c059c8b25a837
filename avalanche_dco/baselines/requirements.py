"""What methods that compute with weights and gradients require, checked before training."""

from typing import Any

from avalanche.training.templates import SupervisedTemplate
from torch.nn.parameter import is_lazy
from torch.optim import SparseAdam

from avalanche_dco.errors import ModelError, SettingError


class RealDenseGradients:
    """Refuses models and optimizers that the method is not defined for; to inherit from."""

    _NEEDS_SHAPES = False
    """Whether the method looks at the parameters before the first forward pass."""

    def before_training(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Refuse complex parameters, optimizers for sparse gradients and, for some, lazy layers."""
        mine = type(self).__name__
        for name, parameter in strategy.model.named_parameters():
            if self._NEEDS_SHAPES and is_lazy(parameter):
                raise ModelError(
                    f"Parameter '{name}' has no shape yet, because its layer is lazy, and {mine} "
                    "needs all shapes before the first step. Call the model once with a batch of "
                    "inputs before you train it."
                )
            if parameter.is_complex():
                raise ModelError(
                    f"Parameter '{name}' is complex, and {mine} is defined for real parameters. "
                    "Hold the real and the imaginary part in one real parameter, and combine them "
                    "in forward with torch.view_as_complex."
                )
        if isinstance(strategy.optimizer, SparseAdam):
            raise SettingError(
                f"{mine} makes the gradients dense, and SparseAdam takes sparse ones only. Use "
                "another optimizer, such as torch.optim.Adam with nn.Embedding(..., sparse=False)."
            )
        super().before_training(strategy, *args, **kwargs)  # type: ignore[misc]
