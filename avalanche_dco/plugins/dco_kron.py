"""DCO-KRON: the directions of past experiences in closed form."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from avalanche.core import SupervisedPlugin
from torch import Tensor

from avalanche_dco.core.curvature import CurvatureEstimator
from avalanche_dco.core.damping import DampedShare, DampedUpdate
from avalanche_dco.core.kronecker import Curvature
from avalanche_dco.plugins.base import DirectionConstrainedPlugin
from avalanche_dco.plugins.support.checks import InputChecks, naming_experience
from avalanche_dco.plugins.support.compatibility import (
    DefaultStrength,
    ParameterFilter,
    constrained_parameters,
    refuse_other_plugins,
)
from avalanche_dco.plugins.support.direction_settings import (
    AVERAGED_POINTS,
    PARAMETER_FILTER,
    THETA,
)
from avalanche_dco.plugins.support.gradients import assign, outputs_of, trainable, undone_on_error
from avalanche_dco.plugins.support.isolation import isolated
from avalanche_dco.plugins.support.kept import Kept, Stated
from avalanche_dco.plugins.support.push import can_travel, push_into_cone, training_batches
from avalanche_dco.plugins.support.reporting import progress_bar, publish
from avalanche_dco.plugins.support.sampling import BatchStream
from avalanche_dco.plugins.support.settings import DeclaredSettings, setting
from avalanche_dco.plugins.support.state import PluginState

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

_BATCH = 32
"""Samples per pass of the estimate: many small batches measure the layers' scales better."""


class DCOKronPlugin(DefaultStrength, InputChecks, PluginState, DeclaredSettings, SupervisedPlugin):
    r"""Direction-Constrained Optimization with directions in closed form (DCO-KRON).

    The penalty that DCO starts from, Eq. (general_obj) of Teng et al., is on the movement along
    the gradients of past tasks. With gradients of the network's outputs its matrix is, layer by
    layer, nearly a Kronecker product, whose eigenvectors are all of DCO's directions and whose
    eigenvalues are their weights. One pass over ``samples`` samples of each experience computes
    them, without training. The optimizer's update is then shortened along each direction by
    :math:`1 / (1 + \lambda w)`, the implicit step on the penalty: no strength and no learning
    rate can make it diverge, whatever the optimizer. Memory and time do not grow with the number
    of experiences.

    Works with any model and optimizer and on any benchmark; task labels are not used:

    >>> import torch
    >>> from avalanche.training.supervised import Naive
    >>> from avalanche_dco import DCOKronPlugin
    >>> from avalanche_dco.models import MLP
    >>> model = MLP(64, hidden_size=50)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    >>> strategy = Naive(model=model, optimizer=optimizer, plugins=[DCOKronPlugin()])

    ``Linear`` and convolution layers have Kronecker factors; every other trainable parameter has
    the diagonal of the same matrix. Through the strategy's evaluator it reports
    ``DCO_FreeDirections/LAYER``, the share of each layer's directions that is still free;
    :func:`.plot_free_directions` draws it, and :func:`.capacity_metrics` adds how much of a new
    task's gradients is damped.
    """

    _KEEPS = (Kept("curvature", Stated(Curvature)),)

    dco_lambda: float = setting(
        default=None,
        none="100, or 3 beside replay, which has to move what the penalty holds",
        kw_only=False,
        symbol="lambda",
        meaning="strength of the penalty; 0 switches it off. Its unit is the squared change of the "
        "outputs, so that one value serves for most networks.",
    )
    growth: float = setting(
        default=0.25,
        at_most=1,
        meaning="exponent p with which the penalty grows with the number n of past experiences: "
        "their curvatures count n^p times their mean. 1 is the paper's sum over tasks; with less, "
        "one strength serves short and long streams.",
    )
    samples: int = setting(
        default=3000,
        at_least=1,
        meaning="number of samples of an experience that are looked at, at most.",
    )
    negligible: float = setting(
        default=0.02,
        at_most=0.5,
        meaning="share of a step that does not matter: directions along which it would be "
        "shortened by less are left out, which makes training faster. 0 keeps all.",
    )
    damp_every: int = setting(
        default=8,
        at_least=1,
        meaning="number of updates of the optimizer that are shortened together. The step is "
        "linear, so that this costs little accuracy and saves most of the time; 1 shortens each.",
    )
    push_epochs: int = setting(
        default=0,
        symbol="N",
        meaning="number of epochs that the optimizer travels on in step 2 to find the way into the "
        "cone, as DCO does. 0, the default, leaves the weights where training ended.",
    )
    averaged_points: int = AVERAGED_POINTS
    theta: float = THETA
    parameter_filter: ParameterFilter | None = PARAMETER_FILTER

    def __post_init__(self) -> None:
        """Nothing has been learned yet."""
        super().__post_init__()
        # Kept between experiences.
        self.curvature = Curvature()
        """The curvature of the outputs, summed over past experiences."""
        # Lives for one experience.
        self._step: DampedUpdate | None = None

    @property
    def free_shares(self) -> dict[str, float]:
        """The share of each layer's directions that is still free, by the name of its weight.

        1 before the first experience has been learned; near 0 the layer cannot move any more.
        """
        return self.curvature.free_shares(self._strength(self.curvature))

    def prohibited(self) -> DampedShare | None:
        """What the capacity meter asks about gradients; None before the first experience."""
        known = self.curvature.layers or self.curvature.diagonal
        return DampedShare(self.curvature, self._strength(self.curvature)) if known else None

    def _default_strengths(self) -> tuple[float, float]:
        return 100.0, 3.0

    def _strength(self, curvature: Curvature) -> float:
        return curvature.strength(self.dco_lambda, self.growth)

    def before_training(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Refuse what contradicts this plugin."""
        super().before_training(strategy, **kwargs)
        refuse_other_plugins(strategy, (DCOKronPlugin, DirectionConstrainedPlugin))

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Eigendecompose the curvature of past experiences."""
        constrained_parameters(
            strategy.model, self.parameter_filter
        )  # refuses now rather than later
        parameters = dict(strategy.model.named_parameters())
        self.curvature = self.curvature.adapted_to(parameters)
        self._step = DampedUpdate(
            self.curvature,
            parameters,
            self._strength(self.curvature),
            self.negligible,
            self.damp_every,
        )

    def before_update(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Note where the weights are."""
        assert self._step is not None
        self._step.before_update()

    def after_update(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Dx <- (I + lambda S (x) A)^-1 dx."""
        assert self._step is not None
        self._step.after_update()

    def after_training_epoch(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Leave no update undamped, and refuse to go on with broken weights."""
        self._finish_step()
        super().after_training_epoch(strategy, **kwargs)

    def before_eval(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Evaluate damped weights, also within an epoch."""
        self._finish_step()
        super().before_eval(strategy, **kwargs)

    def _finish_step(self) -> None:
        if self._step is not None:
            self._step.finish()

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Push into the cone, if that is wanted, and add the curvature of this experience."""
        step, self._step = self._step, None
        parameters = trainable(strategy.model)
        with (
            undone_on_error(parameters) as before,
            naming_experience(strategy),
            isolated(strategy),
        ):
            if self.push_epochs and self.theta and can_travel(strategy):
                assert step is not None
                assign(parameters, self._pushed(strategy, kwargs.get("num_workers", 0)))
                step.damp_since(before)
            learned = self._estimated(strategy)
        curvature = self.curvature + learned
        for name, share in curvature.free_shares(self._strength(curvature)).items():
            publish(strategy, f"DCO_FreeDirections/{name}", share, strategy.clock.train_iterations)
        self._finished(strategy, curvature=curvature)

    def _pushed(self, strategy: SupervisedTemplate, num_workers: int) -> dict[str, Tensor]:
        """Step 2 of Algorithm 1: x*, for which the model travels on."""
        batches = training_batches(strategy, num_workers)
        length = self.push_epochs * batches.per_epoch
        return push_into_cone(
            strategy,
            batches.of_training,
            length,
            averaged_points=self.averaged_points,
            theta=self.theta,
        )

    def _estimated(self, strategy: SupervisedTemplate) -> Curvature:
        strategy.model.eval()
        dataset = strategy.experience.dataset.eval()
        samples = min(self.samples, len(dataset))
        size = min(_BATCH, samples)
        chosen = torch.randperm(len(dataset), device="cpu")[:samples]
        stream = BatchStream(dataset.subset(chosen.tolist()), size)
        constrained = constrained_parameters(strategy.model, self.parameter_filter)
        estimator = CurvatureEstimator(strategy.model, constrained)
        batches = itertools.islice(stream, samples // size)
        for batch in progress_bar(strategy, batches, samples // size, "DCO-KRON: curvature"):
            estimator.observe(partial(outputs_of, strategy, batch), size)
        return estimator.finish()
