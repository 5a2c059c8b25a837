"""Steps 1 to 3 of Algorithm 1, which DCO and DCO-COMP share."""

from __future__ import annotations

import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from avalanche.core import SupervisedPlugin
from torch import Tensor
from torch.nn import Parameter

from avalanche_dco.autoencoder import fit_directions
from avalanche_dco.cone import TrajectoryEnds, push
from avalanche_dco.directions import Directions, Weights
from avalanche_dco.errors import GradientError, ModelError, SettingError
from avalanche_dco.penalty import Penalty
from avalanche_dco.plugins.gradients import criterion_gradients, logit_gradients, trainable
from avalanche_dco.plugins.isolation import isolated
from avalanche_dco.plugins.reporting import progress_bar, publish
from avalanche_dco.plugins.sampling import BatchStream
from avalanche_dco.plugins.settings import check_count, check_number

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

ParameterFilter = Callable[[str, Parameter], bool]
GradientSource = Literal["criterion", "logits"]


class DirectionConstrainedPlugin(SupervisedPlugin, ABC):
    """What DCO and DCO-COMP have in common; they differ in how directions are stored (step 4).

    For the arguments, see :class:`avalanche_dco.DCOPlugin`.
    """

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
        gradient_source: GradientSource = "criterion",
        parameter_filter: ParameterFilter | None = None,
    ):
        super().__init__()
        check_count("k", k, at_least=1, meaning="the number of prohibited directions")
        check_number("dco_lambda", dco_lambda, meaning="the strength of the penalty")
        check_number("gamma_1", gamma_1, high=1, meaning="the pull towards x_0 in step 1")
        check_number("gamma_2", gamma_2, high=1, meaning="the pull towards x* in step 3")
        check_count("push_epochs", push_epochs, at_least=0, meaning="the epochs N of step 2")
        check_count(
            "averaged_points", averaged_points, at_least=1, meaning="the C points of each mean"
        )
        check_number("theta", theta, meaning="the length of the push into the cone")
        check_count(
            "gradients_per_update",
            gradients_per_update,
            at_least=1,
            meaning="the m gradients per autoencoder update",
        )
        check_count("tau", tau, at_least=1, meaning="the gradients per move of the model in step 3")
        check_number("rho", rho, above_low=True, meaning="the factor on the autoencoder's loss")
        check_number(
            "autoencoder_lr", autoencoder_lr, above_low=True, meaning="Adam's learning rate"
        )
        check_count(
            "autoencoder_updates",
            autoencoder_updates,
            at_least=0,
            meaning="the number of autoencoder updates (0 for no directions at all)",
        )
        if autoencoder_tolerance is not None:
            check_number(
                "autoencoder_tolerance",
                autoencoder_tolerance,
                high=1,
                meaning="the relative improvement below which training stops (None for never)",
            )
        check_number("trajectory_lr", trajectory_lr, meaning="the model's learning rate in step 3")
        if max_penalty_grad_norm is not None:
            check_number(
                "max_penalty_grad_norm",
                max_penalty_grad_norm,
                above_low=True,
                meaning="the longest gradient the penalty may have (None for any)",
            )
        if gradient_source not in ("criterion", "logits"):
            raise SettingError(
                f"gradient_source={gradient_source!r} must be 'criterion' (the paper's: gradients "
                "of the loss along the optimizer's trajectory) or 'logits' (gradients of randomly "
                "weighted outputs at x*)."
            )
        if parameter_filter is not None and not callable(parameter_filter):
            raise SettingError(
                f"parameter_filter={parameter_filter!r} must be a function of a parameter's name "
                "and the parameter that tells whether to constrain it, for example "
                "lambda name, parameter: not name.startswith('head')."
            )

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
        self.gradient_source = gradient_source
        self.parameter_filter = parameter_filter

        # Kept between experiences.
        self.penalty: Penalty | None = None
        """The penalty of all past experiences; None before the first has been learned."""
        # Lives for one experience.
        self._x_0: dict[str, Tensor] = {}
        # Lives for one epoch.
        self._penalties: list[Tensor] = []
        self._warned_of_early_evaluation = False

    @property
    def memory_bytes(self) -> int:
        """Bytes kept between experiences: directions, their targets and weights."""
        return 0 if self.penalty is None else self.penalty.nbytes

    @property
    def _k_to_learn(self) -> int:
        """Number of directions to learn for a new experience."""
        return self.k

    # ---------------------------------------------------------------- step 1: train the model

    def before_training(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Warn of evaluations that see the model before it is pushed into the cone."""
        if strategy.eval_every >= 1 and self.push_epochs and not self._warned_of_early_evaluation:
            self._warned_of_early_evaluation = True
            warnings.warn(
                f"eval_every={strategy.eval_every} evaluates during an experience, before DCO has "
                "pushed the weights into the cone: these errors are not those of the model you "
                "get. Use eval_every=0 (evaluates once, after the push) or call strategy.eval() "
                "after each experience.",
                stacklevel=2,
            )

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Follow parameters that have grown; x_0 <- x."""
        self._constrained(strategy)
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
        """X <- x - gamma_1 (x - x_0)."""
        if self.gamma_1:
            for name, parameter in trainable(strategy.model).items():
                if name in self._x_0:
                    parameter.lerp_(self._x_0[name], self.gamma_1)

    def after_training_epoch(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Report the penalty, averaged over the epoch."""
        if self._penalties:
            mean = torch.stack(self._penalties).mean().item()
            publish(strategy, "DCO_Penalty", mean, strategy.clock.train_iterations)
            self._penalties = []

    # ------------------------------------------------------- steps 2 to 4, after an experience

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Push into the cone, learn the task's directions, store them."""
        self._x_0 = {}
        if self.push_epochs == 0 and self.autoencoder_updates == 0:
            return
        parameters = trainable(strategy.model)
        before = _snapshot(parameters)
        try:
            self._refuse_broken(parameters, "After training")
            with isolated(strategy):
                batches = BatchStream(
                    strategy.experience.dataset,
                    strategy.train_mb_size,
                    num_workers=kwargs.get("num_workers", 0),
                )
                stream = iter(batches)
                x_star = self._push_into_cone(
                    strategy, stream, self.push_epochs * batches.batches_per_epoch
                )
                directions = self._learn_directions(strategy, stream, x_star)
            _assign(parameters, x_star)
        except BaseException as error:
            # Interrupted or refused: the weights are again those that step 1 ended with.
            _assign(parameters, before)
            if isinstance(error, GradientError):
                number = strategy.clock.train_exp_counter
                raise GradientError(f"Experience {number}: {error}") from error
            raise
        if directions is not None:
            self._store(strategy, directions, x_star)

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
            strategy.optimizer.step()
            ends.add(list(parameters.values()))
        self._refuse_broken(parameters, "In step 2 (push_epochs)")
        return dict(zip(parameters, push(ends.first, ends.last, self.theta), strict=True))

    def _learn_directions(
        self, strategy: SupervisedTemplate, stream: Iterator[Any], x_star: dict[str, Tensor]
    ) -> Directions | None:
        """Step 3: fit k directions to gradients of this task.

        :return: the directions; None where there is nothing to learn.
        """
        if self.autoencoder_updates == 0:
            return None
        constrained = self._constrained(strategy)
        reached: set[str] = set()
        bar = progress_bar(strategy, None, self.autoencoder_updates, "DCO: learn directions")

        def report(error: float) -> None:
            bar.update()
            bar.set_postfix(error=f"{error:.3f}")

        directions = Directions.random(constrained, self._k_to_learn)
        errors = fit_directions(
            directions,
            self._gradients(strategy, stream, x_star, constrained, reached),
            updates=self.autoencoder_updates,
            gradients_per_update=self.gradients_per_update,
            lr=self.autoencoder_lr,
            rho=self.rho,
            tolerance=self.autoencoder_tolerance,
            on_update=report,
        )
        bar.close()
        for update, error in enumerate(errors):
            publish(strategy, "DCO_AutoencoderError", error, update)
        if not any(errors):
            warnings.warn(
                f"Experience {strategy.clock.train_exp_counter}: the gradients of the criterion "
                "are zero everywhere, so there are no directions to remember and this experience "
                "will not be protected. If training had simply converged, use "
                "gradient_source='logits'.",
                stacklevel=2,
            )
            return None
        # A head that this task does not use has no gradient, hence no part in its directions.
        return Directions(
            directions.k,
            {name: f for name, f in directions.factors.items() if name in reached},
        )

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
            found = {name: g for name in constrained if (g := by_name[name]) is not None}
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
            pending: list[list[Tensor | None]] = []
            for batch in itertools.islice(stream, self.gradients_per_update):
                pending.append(criterion_gradients(strategy, batch, parameters))
                yield pending[-1]
                if len(pending) == self.tau:
                    _descend(parameters, pending, self.trajectory_lr)
                    pending = []
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.lerp_(x_star[name], self.gamma_2)

    @abstractmethod
    def _store(self, strategy: SupervisedTemplate, directions: Directions, x_star: Weights) -> None:
        """Step 4: keep what the penalty of later experiences needs."""

    @abstractmethod
    def _follow(self, parameters: Weights) -> None:
        """Fit what is kept to parameters that may have grown."""

    # ------------------------------------------------------------------------------- checks

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

    @staticmethod
    def _refuse_broken(parameters: dict[str, Parameter], when: str) -> None:
        broken = [repr(name) for name, p in parameters.items() if not torch.isfinite(p).all()]
        if broken:
            raise GradientError(
                f"{when}, the weights of {', '.join(broken)} are infinite or not a number: a "
                "gradient was. Look for invalid inputs or lower the learning rate."
            )


def _snapshot(parameters: dict[str, Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@torch.no_grad()
def _assign(parameters: dict[str, Parameter], values: Weights) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(values[name])


@torch.no_grad()
def _descend(
    parameters: dict[str, Parameter], gradients: list[list[Tensor | None]], lr: float
) -> None:
    for gradient in gradients:
        for parameter, part in zip(parameters.values(), gradient, strict=True):
            if part is not None:
                parameter.sub_(part, alpha=lr)
