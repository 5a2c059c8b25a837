"""Steps 1 to 3 of Algorithm 1, which DCO and DCO-COMP share."""

from __future__ import annotations

import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from avalanche.benchmarks import OnlineCLExperience
from avalanche.core import SupervisedPlugin
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from avalanche_dco.core.autoencoder import fit_directions
from avalanche_dco.core.cone import TrajectoryEnds, has_direction, push
from avalanche_dco.core.directions import Directions, Weights, bytes_of_directions
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.errors import ModelError
from avalanche_dco.plugins.support.checks import InputChecks, naming_experience, refuse_broken
from avalanche_dco.plugins.support.gradients import criterion_gradients, logit_gradients, trainable
from avalanche_dco.plugins.support.isolation import isolated
from avalanche_dco.plugins.support.reporting import experience_number, progress_bar, publish
from avalanche_dco.plugins.support.sampling import BatchStream
from avalanche_dco.plugins.support.settings import check_direction_settings
from avalanche_dco.plugins.support.state import PluginState

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

ParameterFilter = Callable[[str, Parameter], bool]
GradientSource = Literal["criterion", "logits"]


class DirectionConstrainedPlugin(InputChecks, PluginState, SupervisedPlugin, ABC):
    """What DCO and DCO-COMP have in common; they differ in how directions are stored (step 4).

    For the arguments, see :class:`avalanche_dco.DCOPlugin`.
    """

    _SETTINGS: tuple[str, ...] = ("k", "dco_lambda", "couple_layers", "gradient_source")
    _BINDING: tuple[str, ...] = ("couple_layers",)
    _ON_MODEL_DEVICE = False  # see _follow
    couple_layers: bool = True  # for states and checkpoints that are older than this setting
    _THRIFTIER = ""
    """What to use instead if memory is short, besides a smaller k."""

    def __init__(
        self,
        k: int = 1000,
        *,
        dco_lambda: float = 100.0,
        gamma_1: float = 0.0,
        gamma_2: float = 0.1,
        push_epochs: int = 10,
        averaged_points: int = 16,
        theta: float = 0.2,
        gradients_per_update: int = 128,
        tau: int = 2,
        rho: float = 100.0,
        autoencoder_lr: float = 1e-2,
        autoencoder_updates: int = 200,
        autoencoder_tolerance: float | None = None,
        trajectory_lr: float = 1e-3,
        max_penalty_grad_norm: float | None = 20.0,
        couple_layers: bool = True,
        gradient_source: GradientSource = "criterion",
        parameter_filter: ParameterFilter | None = None,
        max_bytes: float | None = None,
    ):
        super().__init__()
        self.k = k
        self.dco_lambda = dco_lambda
        self.gamma_1 = gamma_1
        self.gamma_2 = gamma_2
        self.push_epochs = push_epochs
        self.averaged_points = averaged_points
        self.theta = theta
        self.gradients_per_update = gradients_per_update
        self.tau = tau
        self.rho = rho
        self.autoencoder_lr = autoencoder_lr
        self.autoencoder_updates = autoencoder_updates
        self.autoencoder_tolerance = autoencoder_tolerance
        self.trajectory_lr = trajectory_lr
        self.max_penalty_grad_norm = max_penalty_grad_norm
        self.couple_layers = couple_layers
        self.gradient_source = gradient_source
        self.parameter_filter = parameter_filter
        self.max_bytes = max_bytes

        check_direction_settings(vars(self))

        # Kept between experiences.
        self.penalty: Penalty | None = None
        """The penalty of all past experiences; None before the first has been learned."""
        # Lives for one experience.
        self._x_0: dict[str, Tensor] = {}
        # Lives for one epoch.
        self._penalties: list[Tensor] = []
        self._warned_of_early_evaluation = False

    @property
    def _k_to_learn(self) -> int:
        """Number of directions to learn for a new experience."""
        return self.k

    # ---------------------------------------------------------------- step 1: train the model

    def before_training(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Warn of what would quietly give other numbers than the user expects."""
        super().before_training(strategy, **kwargs)
        if self.penalty is not None and strategy.clock.train_exp_counter == 0:
            warnings.warn(
                f"This {type(self).__name__} has learned directions already, but the strategy has "
                "not trained yet: its model will be held to the weights of another run. Make a "
                "new plugin for every run.",
                stacklevel=2,
            )
        if strategy.eval_every >= 1 and self.push_epochs and not self._warned_of_early_evaluation:
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
            self._follow(dict(strategy.model.named_parameters()))
        if self.gamma_1:
            self._x_0 = _snapshot(trainable(strategy.model))

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """L_i = L_ce + lambda sum_j ||ENC^j(x - x_j*)||^2, Eq. (main_obj)."""
        if self.penalty is None or self.dco_lambda == 0:
            return
        value = self.penalty(
            dict(strategy.model.named_parameters()), self.dco_lambda, self.max_penalty_grad_norm
        )
        strategy.loss += value
        self._penalties.append(value.detach())

    @torch.no_grad()
    def after_update(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """The pull, x <- x - gamma_1 (x - x_0)."""
        if self.gamma_1:
            for name, parameter in trainable(strategy.model).items():
                if name in self._x_0:
                    parameter.lerp_(self._x_0[name], self.gamma_1)

    def after_training_epoch(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Report the penalty, averaged over the epoch; refuse to go on with broken weights."""
        super().after_training_epoch(strategy, **kwargs)
        if self._penalties:
            mean = torch.stack(self._penalties).mean().item()
            publish(strategy, "DCO_Penalty", mean, strategy.clock.train_iterations)
            self._penalties = []

    # ------------------------------------------------------- steps 2 to 4, after an experience

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Push into the cone, learn the task's directions, store them."""
        self._x_0 = {}
        if self.push_epochs or self.autoencoder_updates:
            self._push_and_learn(strategy, **kwargs)
        self._finished(strategy)

    def _push_and_learn(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        parameters = trainable(strategy.model)
        before = _snapshot(parameters)
        try:
            with naming_experience(strategy), isolated(strategy):
                batches = BatchStream(
                    strategy.adapted_dataset,
                    strategy.train_mb_size,
                    num_workers=kwargs.get("num_workers", 0),
                )
                stream = iter(batches)
                x_star = self._push_into_cone(
                    strategy, stream, self.push_epochs * batches.batches_per_epoch
                )
                learned = self._learn_directions(strategy, stream, x_star)
        except BaseException:
            # Interrupted or refused: the weights are again those that step 1 ended with.
            _assign(parameters, before)
            raise
        _assign(parameters, x_star)
        if learned is not None:
            # Frozen parameters are where they are, but may have a part in older directions.
            x = dict(strategy.model.named_parameters()) | x_star
            self._store(strategy, *learned, x)

    def _push_into_cone(
        self, strategy: SupervisedTemplate, stream: Iterator[Any], length: int
    ) -> dict[str, Tensor]:
        """Step 2: x_i* = x_1 - theta (x_1 - x_2) / ||x_1 - x_2||.

        :return: x_i*; the model is left where the trajectory ended.
        """
        parameters = trainable(strategy.model)
        if length == 0:
            return _snapshot(parameters)
        ends = TrajectoryEnds(length, self.averaged_points)
        for batch in progress_bar(
            strategy, itertools.islice(stream, length), length, "DCO: push into the cone"
        ):
            gradients = criterion_gradients(strategy, batch, parameters)
            for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                parameter.grad = gradient
            strategy.optimizer_step()
            ends.add(list(parameters.values()))
        refuse_broken(parameters, "In step 2 (push_epochs)", strategy)
        if length > 1 and not has_direction(ends.first, ends.last):
            warnings.warn(
                "The weights do not move in step 2, so there is no direction to push them in and "
                "they are left where training ended. The learning rate is next to nothing: if a "
                "scheduler brings it there, put LRSchedulerPlugin before DCO in the list of "
                "plugins, with reset_lr=True.",
                stacklevel=2,
            )
        return dict(zip(parameters, push(ends.first, ends.last, self.theta), strict=True))

    def _learn_directions(
        self, strategy: SupervisedTemplate, stream: Iterator[Any], x_star: dict[str, Tensor]
    ) -> tuple[Directions, Tensor] | None:
        """Step 3: fit k directions to gradients of this task.

        :return: the directions and the shares of the gradients along them; None where there is
            nothing to learn.
        """
        if self.autoencoder_updates == 0:
            return None
        constrained = self._constrained(strategy)
        reached: set[str] = set()
        directions = Directions.random(constrained, self._k_to_learn)
        with progress_bar(strategy, None, self.autoencoder_updates, "DCO: learn directions") as bar:

            def report(error: float) -> None:
                bar.update()
                bar.set_postfix(error=f"{error:.3f}")

            fit = fit_directions(
                directions,
                self._gradients(strategy, stream, x_star, constrained, reached),
                updates=self.autoencoder_updates,
                gradients_per_update=self.gradients_per_update,
                lr=self.autoencoder_lr,
                rho=self.rho,
                tolerance=self.autoencoder_tolerance,
                on_update=report,
            )
        for update, error in enumerate(fit.errors):
            publish(strategy, "DCO_AutoencoderError", error, update)
        if not any(fit.errors):
            warnings.warn(
                f"Experience {experience_number(strategy)}: the gradients are zero everywhere, so "
                "there are no directions to remember and this experience will not be protected. "
                "If training has converged until the criterion's gradients vanish, use "
                "gradient_source='logits'.",
                stacklevel=2,
            )
            return None
        # A head that this task does not use has no gradient, hence no part in its directions.
        used = {name: f for name, f in directions.factors.items() if name in reached}
        return Directions(directions.k, used), fit.shares

    def _gradients(
        self,
        strategy: SupervisedTemplate,
        stream: Iterator[Any],
        x_star: dict[str, Tensor],
        constrained: dict[str, Parameter],
        reached: set[str],
    ) -> Iterator[Weights]:
        """Gradients of the task, without end.

        :param constrained: the parameters whose gradients are yielded.
        :param reached: receives the names of parameters that had a gradient at least once.
        """
        parameters = trainable(strategy.model)
        samples: Iterator[list[Tensor | None]]
        none = {name: torch.zeros_like(parameter) for name, parameter in constrained.items()}
        if self.gradient_source == "logits":
            _assign(parameters, x_star)
            samples = (logit_gradients(strategy, batch, parameters) for batch in stream)
        else:
            samples = self._trajectory(strategy, stream, parameters, x_star)
        for gradients in samples:
            by_name = dict(zip(parameters, gradients, strict=True))
            found = {
                name: g.to_dense() if g.is_sparse else g
                for name in constrained
                if (g := by_name[name]) is not None
            }
            reached.update(found)
            yield none | found

    def _trajectory(
        self,
        strategy: SupervisedTemplate,
        stream: Iterator[Any],
        parameters: dict[str, Parameter],
        x_star: dict[str, Tensor],
    ) -> Iterator[list[Tensor | None]]:
        """Gradients while the model moves on by plain SGD and is pulled back to x_i*."""
        while True:
            total: dict[str, Tensor] = {}  # the paper's g
            for j, batch in enumerate(itertools.islice(stream, self.gradients_per_update), 1):
                gradients = criterion_gradients(strategy, batch, parameters)
                yield gradients
                for name, gradient in zip(parameters, gradients, strict=True):
                    if gradient is not None:
                        total[name] = gradient if name not in total else total[name] + gradient
                if j % self.tau == 0:
                    _descend(parameters, total, self.trajectory_lr)
                    total = {}
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.lerp_(x_star[name], self.gamma_2)

    @abstractmethod
    def _store(
        self, strategy: SupervisedTemplate, directions: Directions, shares: Tensor, x_star: Weights
    ) -> None:
        """Step 4: keep what the penalty of later experiences needs.

        :param shares: the shares of the task's gradients along each of the directions.
        """

    @abstractmethod
    def _follow(self, parameters: Weights) -> None:
        """Fit what is kept to parameters that may have grown."""

    # ------------------------------------------------------------------------------- checks

    @abstractmethod
    def _bytes_expected(self, constrained: Weights) -> int:
        """What ``memory_bytes`` will be once this experience has been learned."""

    def _targets_each(self, parameters: Collection[str]) -> int:
        """Number of targets of a direction in which these parameters have a part."""
        return 1 if self.couple_layers else len(parameters)

    def _warn_of_memory(
        self, strategy: SupervisedTemplate, constrained: Weights, max_bytes: float
    ) -> None:
        expected = self._bytes_expected(constrained)
        if expected <= max_bytes:
            return
        each = bytes_of_directions(constrained, 1, self._targets_each(constrained))
        affordable = int(self.k - (expected - max_bytes) / each)
        smaller = (
            f"a k of at most {affordable} instead of {self.k}"
            if affordable > 0
            else "a smaller k from the first experience on"
        )
        warnings.warn(
            f"Experience {experience_number(strategy)}: {type(self).__name__} will keep "
            f"{expected:,} bytes once it has learned this experience, more than "
            f"max_bytes={max_bytes:,.0f}, and {self.memory_bytes:,} now. Use {self._THRIFTIER}"
            f"{smaller}.",
            stacklevel=2,
        )

    def _constrained(self, strategy: SupervisedTemplate) -> dict[str, Parameter]:
        """The parameters that directions are learned for."""
        candidates = trainable(strategy.model)
        if not candidates:
            raise ModelError(
                "The model has no trainable parameters (requires_grad is False for all of them, or "
                "there are none), so there is nothing to constrain. Unfreeze some, or train "
                "without this plugin."
            )
        chosen = {
            name: parameter
            for name, parameter in candidates.items()
            if self.parameter_filter is None or self.parameter_filter(name, parameter)
        }
        if not chosen:
            raise ModelError(
                "parameter_filter accepts none of the model's trainable parameters "
                f"({', '.join(candidates)}), so there is nothing to constrain. Let it return True "
                "for those that are to be constrained."
            )
        return chosen


def _snapshot(parameters: dict[str, Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@torch.no_grad()
def _assign(parameters: dict[str, Parameter], values: Weights) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(values[name])


@torch.no_grad()
def _descend(parameters: dict[str, Parameter], gradient: Weights, lr: float) -> None:
    for name, part in gradient.items():
        parameters[name].sub_(part, alpha=lr)
