"""Steps 1 to 3 of Algorithm 1, which DCO and DCO-COMP share."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import Any

from avalanche.benchmarks import OnlineCLExperience
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Weights, bytes_of_directions
from avalanche_dco.core.span import DirectionSpan
from avalanche_dco.errors import ModelError
from avalanche_dco.plugins.support.checks import InputChecks, naming_experience
from avalanche_dco.plugins.support.compatibility import (
    DefaultStrength,
    constrained_parameters,
    refuse_other_plugins,
    refuse_sparse_optimizer,
)
from avalanche_dco.plugins.support.direction_learning import (
    decreasing_weights,
    learn_directions,
    sample_directions,
)
from avalanche_dco.plugins.support.gradients import (
    GradientSampler,
    LogitSampler,
    TrajectorySampler,
    assign,
    require_one_tensor,
    trainable,
    undone_on_error,
)
from avalanche_dco.plugins.support.isolation import isolated
from avalanche_dco.plugins.support.penalised_training import PenalisedTraining
from avalanche_dco.plugins.support.push import can_travel, push_into_cone, training_batches
from avalanche_dco.plugins.support.reporting import Wait, experience_number
from avalanche_dco.plugins.support.state import PluginState


class DirectionConstrainedPlugin(
    DefaultStrength, InputChecks, PluginState, PenalisedTraining, SupervisedPlugin, ABC
):
    """What DCO and DCO-COMP have in common; they differ in how directions are stored (step 4)."""

    _COMPRESSES = False
    """Whether step 4 compresses directions."""
    _THRIFTIER = ""
    """What to use instead if memory is short, besides a smaller k."""
    _ON_MODEL_DEVICE = False  # see _adapt_to
    _warned_of_early_evaluation = False

    def __post_init__(self) -> None:
        """No long wait has been warned of yet."""
        super().__post_init__()
        self._wait = Wait()

    def _default_strengths(self) -> tuple[float, float]:
        return (3.0, 0.01) if self.directions == "eigen" else (100.0, 0.1)

    @property
    def _k_to_learn(self) -> int:
        """Number of directions to learn for a new experience."""
        return self.k

    @property
    def _pushes(self) -> bool:
        """Whether step 2 moves the weights; a push of length 0 needs no trajectory."""
        return self.push_epochs > 0 and self.theta > 0

    def prohibited(self) -> DirectionSpan | None:
        """The span of all directions so far, for the capacity meter; None if there are none."""
        if self.penalty is None:
            return None
        return DirectionSpan(self.penalty.directions, couple_layers=self.penalty.couple_layers)

    # ---------------------------------------------------------------- step 1: train the model

    def before_training(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Refuse, or warn of, what would quietly give other numbers than the user expects."""
        super().before_training(strategy, **kwargs)
        refuse_other_plugins(strategy, DirectionConstrainedPlugin)
        if strategy.eval_every >= 1 and self._pushes and not self._warned_of_early_evaluation:
            self._warned_of_early_evaluation = True
            warnings.warn(
                f"eval_every={strategy.eval_every} evaluates during an experience, before DCO has "
                "pushed the weights into the cone: these errors are not those of the model you "
                "get. Use eval_every=0 (evaluates before training and after the push) or call "
                "strategy.eval() after each experience.",
                stacklevel=2,
            )

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Follow parameters that have grown; x_0 <- x."""
        if isinstance(strategy.experience, OnlineCLExperience):
            raise ModelError(
                "Experiences of an online stream are slices of a task, and DCO would learn "
                "directions after each slice. Train on the stream that it was made from."
            )
        if not any(is_lazy(parameter) for parameter in strategy.model.parameters()):
            constrained = self._constrained(strategy)  # refuses now rather than after training
            if self.max_bytes is not None:
                self._warn_of_memory(strategy, constrained, self.max_bytes)
        if self.penalty is not None:
            self._adapt_to(dict(strategy.model.named_parameters()))
        self._start_training(strategy)

    def after_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Refuse outputs of which no directions can be sampled, now rather than after training."""
        if self.directions != "trained" and self.autoencoder_updates:
            require_one_tensor(strategy.mb_output)
        super().after_forward(strategy, *args, **kwargs)

    # ------------------------------------------------------- steps 2 to 4, after an experience

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Push into the cone, learn the task's directions, store them."""
        self._end_training()
        active = self._pushes or self.autoencoder_updates
        self._finished(strategy, **(self._push_and_learn(strategy, **kwargs) if active else {}))

    def _push_and_learn(self, strategy: SupervisedTemplate, **kwargs: Any) -> dict[str, Any]:
        parameters = trainable(strategy.model)
        self._wait.begin()
        with undone_on_error(parameters):
            with naming_experience(strategy), isolated(strategy):
                batches = training_batches(
                    strategy,
                    kwargs.get("num_workers", 0),
                    read=self._pushes or self.directions == "trained",
                )
                epochs = self.push_epochs if self._pushes and can_travel(strategy) else 0
                x_star = self._push_into_cone(
                    strategy, batches.of_training, epochs * batches.per_epoch
                )
                learned = self._learn_directions(strategy, batches.of_task, x_star)
            # Frozen parameters are where they are, but may have a part in older directions.
            x = dict(strategy.model.named_parameters()) | x_star
            kept = {} if learned is None else self._stored(strategy, *learned, x)
        assign(parameters, x_star)
        return kept

    def _push_into_cone(
        self, strategy: SupervisedTemplate, stream: Iterator[Any], length: int
    ) -> dict[str, Tensor]:
        """Step 2: x_i* = x_1 - theta (x_1 - x_2) / ||x_1 - x_2||; the model travels on."""
        return push_into_cone(
            strategy,
            stream,
            length,
            averaged_points=self.averaged_points,
            theta=self.theta,
            wait=self._wait,
        )

    def _learn_directions(
        self, strategy: SupervisedTemplate, stream: Iterator[Any], x_star: dict[str, Tensor]
    ) -> tuple[Directions, Tensor] | None:
        """Step 3: k directions along which the gradients of this task lie.

        :return: the directions and the shares of the gradients along them; None where there is
            nothing to learn.
        """
        if self.autoencoder_updates == 0:
            return None
        constrained = self._constrained(strategy)
        if self.directions != "trained":
            return sample_directions(
                strategy,
                constrained,
                self._k_to_learn,
                x_star,
                self._wait,
                like_trained=self._COMPRESSES and self.directions == "sampled",
                eigen=self.directions == "eigen" and not self._COMPRESSES,
            )
        return learn_directions(
            strategy,
            self._sampler(strategy, stream, constrained, x_star),
            Directions.random(constrained, self._k_to_learn),
            self._wait,
            updates=self.autoencoder_updates,
            lr=self.autoencoder_lr,
            lr_decay=self.autoencoder_lr_decay,
            rho=self.rho,
            layer_weights=decreasing_weights(constrained)
            if self.layer_weights == "decreasing"
            else None,
            tolerance=self.autoencoder_tolerance,
        )

    def _sampler(
        self,
        strategy: SupervisedTemplate,
        stream: Iterator[Any],
        constrained: dict[str, Parameter],
        x_star: Weights,
    ) -> GradientSampler:
        common = (strategy, stream, constrained, self.gradients_per_update)
        if self.gradient_source == "logits":
            return LogitSampler(*common, x_star=x_star)
        return TrajectorySampler(
            *common, x_star=x_star, tau=self.tau, lr=self.trajectory_lr, gamma_2=self.gamma_2
        )

    @abstractmethod
    def _stored(
        self, strategy: SupervisedTemplate, directions: Directions, shares: Tensor, x_star: Weights
    ) -> dict[str, Any]:
        """Step 4: what the penalty of later experiences needs, by attribute."""

    @abstractmethod
    def _adapt_to(self, parameters: Weights) -> None:
        """Fit what is kept to parameters that may have grown."""

    def _constrained(self, strategy: SupervisedTemplate) -> dict[str, Parameter]:
        """The parameters that directions are learned for."""
        chosen = constrained_parameters(strategy.model, self.parameter_filter)
        if self.dco_lambda:
            refuse_sparse_optimizer(strategy.optimizer, chosen)
        return chosen

    # ------------------------------------------------------------------ the memory, max_bytes

    @abstractmethod
    def _bytes_expected(self, constrained: Weights) -> int:
        """What ``memory_bytes`` will be at most once this experience has been learned."""

    def _targets_each(self, parameters: Collection[str]) -> int:
        """Number of targets of a direction in which these parameters have a part."""
        return 1 if self.couple_layers else len(parameters)

    def _warn_of_memory(
        self, strategy: SupervisedTemplate, constrained: Weights, max_bytes: float
    ) -> None:
        expected = self._bytes_expected(constrained)
        if expected <= max_bytes:
            return
        each = bytes_of_directions(constrained, 1, self._targets_each(constrained) + 1)
        affordable = int(self.k - (expected - max_bytes) / each)
        smaller = (
            f"a k of at most {affordable} instead of {self.k}"
            if affordable > 0
            else "a smaller k from the first experience on"
        )
        warnings.warn(
            f"Experience {experience_number(strategy)}: {type(self).__name__} may keep "
            f"{expected:,} bytes once it has learned this experience, more than "
            f"max_bytes={max_bytes:,.0f}, and {self.memory_bytes:,} now. Use {self._THRIFTIER}"
            f"{smaller}.",
            stacklevel=2,
        )
