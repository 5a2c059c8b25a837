"""The arguments that DCO and DCO-COMP share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from avalanche_dco.errors import SettingError
from avalanche_dco.plugins.support.compatibility import ParameterFilter
from avalanche_dco.plugins.support.settings import DeclaredSettings, authors, paper, setting

PenaltyStep = Literal["implicit", "gradient"]
GradientSource = Literal["criterion", "logits"]
DirectionKind = Literal["eigen", "sampled", "trained"]
LayerWeights = Literal["equal", "decreasing"]

PARAMETER_FILTER: Any = setting(
    default=None,
    none="all trainable parameters",
    accepts=callable,
    expected="a function of a parameter's name and the parameter that tells whether to constrain "
    "it, for example lambda name, parameter: not name.startswith('head')",
    recorded=False,  # a function is no plain data
    meaning="function of a parameter's name and the parameter that tells whether it is "
    "constrained.",
)
"""Declaration of an argument that chooses parameters."""

AVERAGED_POINTS: Any = setting(
    default=16,
    at_least=1,
    symbol="C",
    published=paper(16),
    meaning="number of points of that trajectory that are averaged at either end.",
)
"""Declaration of an argument of step 2, as is the next."""

THETA: Any = setting(
    default=0.2,
    symbol="theta",
    published=authors(0.2, mnist_fashion=2.0, among=(0.0, 0.2, 0.5, 2.0)),
    meaning="length of the push into the cone. 0 leaves the weights where training ended.",
)


_OF_TRAINING = (
    "gradients_per_update",
    "tau",
    "gamma_2",
    "autoencoder_lr",
    "autoencoder_lr_decay",
    "layer_weights",
    "autoencoder_updates",
    "autoencoder_tolerance",
    "trajectory_lr",
    "gradient_source",
)
"""Arguments that matter only if directions are trained."""


class DirectionSettings(DeclaredSettings):
    """Declarations of Algorithm 1's symbols, and of what the paper leaves open."""

    k: int = setting(
        default=1000,
        at_least=1,
        kw_only=False,
        symbol="k",
        published=paper(1000),
        meaning="number of directions to learn per experience.",
    )
    dco_lambda: float = setting(
        default=None,
        none="3 with directions='eigen' and 100 with others; beside replay, which has to move what "
        "the penalty holds, 0.01 and 0.1",
        symbol="lambda",
        # The paper's sets have one value each, but for MNIST/Fashion.
        published=paper(100.0, split_cifar100=1000.0)
        | authors(mnist_fashion=10.0, among=(1.0, 10.0, 100.0)),
        meaning="strength of the penalty; 0 switches it off.",
    )
    directions: DirectionKind = setting(
        default="eigen",
        published=paper("trained"),
        meaning="how step 3 finds directions.",
        choices={
            "eigen": "the k largest eigendirections, parameter by parameter, of the gradients of "
            "the outputs of k samples at x*, for uncoupled layers; the unit of dco_lambda is then "
            "the squared change of the outputs",
            "sampled": "gradients of the outputs of k samples at x*, which are rank-one matrices "
            "in a Linear layer and are taken as they are, with the same unit of dco_lambda",
            "trained": "as in the paper, an autoencoder is trained to reconstruct gradients of "
            "mini-batches, which takes far longer",
        },
    )
    gamma_1: float = setting(
        default=0.0,
        at_most=1,
        symbol="gamma_1",
        published=authors(0.0, mnist_fashion=0.001, among=(0.0, 0.001)),
        meaning="pull towards the weights at the start of the experience, applied after every "
        "update of step 1, from the second experience on: ``x <- x - gamma_1 (x - x_0)``. 0 "
        "switches it off.",
    )
    pull_first: bool = setting(
        default=False,
        published=authors(False),
        meaning="whether gamma_1 acts in the first experience as well.",
        choices={
            False: "as in the authors' code, it does not",
            True: "as in the paper's Algorithm 1, it does, which ties the weights to their random "
            "start and learns the first experience badly",
        },
    )
    gamma_2: float = setting(
        default=0.1,
        at_most=1,
        symbol="gamma_2",
        published=paper(0.1),
        meaning="pull towards x* after every autoencoder update of step 3.",
    )
    push_epochs: int = setting(
        default=0,
        symbol="N",
        published=paper(10),
        meaning="number of epochs that the optimizer travels on in step 2, from a fresh state and "
        "without the penalty, to find the way into the cone, on the batches of the strategy's "
        "loader (replayed samples included). 0 leaves the weights where training ended.",
    )
    averaged_points: int = AVERAGED_POINTS
    theta: float = THETA
    gradients_per_update: int = setting(
        default=128,
        at_least=1,
        symbol="m",
        published=paper(128),
        meaning="number of gradients per autoencoder update. Fewer are faster: 16 instead of 128 "
        "make an eighth of the work.",
    )
    tau: int = setting(
        default=2,
        at_least=1,
        symbol="tau",
        published=paper(2),
        meaning="number of gradients per move of the model while they are sampled.",
    )
    rho: float = setting(
        default=100.0,
        above=0,
        symbol="rho",
        published=authors(100.0, among=(100.0, 1000.0)),
        meaning="factor on the autoencoder's loss.",
    )
    autoencoder_lr: float = setting(
        default=1e-2,
        above=0,
        symbol="eta_a",
        published=authors(1e-2),
        meaning="learning rate of the autoencoder's Adam.",
    )
    autoencoder_lr_decay: float = setting(
        default=1.0,
        above=0,
        at_most=1,
        published=authors(1.0),
        meaning="factor on that learning rate after every update.",
    )
    layer_weights: LayerWeights = setting(
        default="equal",
        published=paper("equal"),
        meaning="weights of the layers in the autoencoder's loss.",
        choices={
            "equal": "all layers have the same weight",
            "decreasing": "the first of L layers counts L times, the second L - 1 times, ..., the "
            "last once",
        },
    )
    autoencoder_updates: int = setting(
        default=200,
        symbol='"until convergence"',
        published=authors(200, mnist_fashion=50),
        meaning="number of autoencoder updates at most. 0 learns no directions, sampled ones "
        "neither.",
    )
    autoencoder_tolerance: float | None = setting(
        default=None,
        at_most=1,
        none="all updates, as in the authors' code",
        published=authors(None),
        meaning="relative improvement below which directions are learned no further: learning "
        "stops once the reconstruction error falls by less than this share from 20 updates to the "
        "next 20.",
    )
    trajectory_lr: float = setting(
        default=1e-3,
        symbol="eta in step 3",
        published=authors(1e-3),
        meaning="learning rate of the plain SGD that moves the model while gradients are sampled. "
        "The weights are put back to x* afterwards. Criteria that sum over samples need a smaller "
        "one.",
    )
    penalty_step: PenaltyStep = setting(
        default="implicit",
        published=paper("gradient"),
        meaning="how the penalty moves the weights.",
        choices={
            "implicit": "its exact implicit step after every step of the optimizer, stable with "
            "any learning rate and strength",
            "gradient": "as in the paper, its gradient is added to the criterion's, which is "
            "stable while lr * 2 * dco_lambda * ||W^T W|| is about 1 or less",
        },
    )
    penalty_every: int = setting(
        default=8,
        at_least=1,
        published=paper(1),
        meaning="number of updates of the optimizer that one implicit step of the penalty "
        "follows, of the same strength as one after each of them. Most of the time of a training "
        "step is the penalty's. Gradient steps are made with every update.",
    )
    max_penalty_grad_norm: float | None = setting(
        default=20.0,
        above=0,
        none="no limit",
        symbol="(Section 5.2)",
        published=authors(20.0, mnist_fashion=2000.0) | paper(split_cifar100=1.0),
        meaning="longest gradient that the penalty may have: it is scaled down to this l2 norm "
        "where it is longer; the criterion's is left alone.",
    )
    move_unused: bool = setting(
        default=False,
        meaning="whether the penalty also moves parameters that the experience does not use, such "
        "as heads of other tasks.",
        choices={
            False: "they stay as they are",
            True: "it moves them too, which is the paper's formula to the letter",
        },
    )
    couple_layers: bool = setting(
        default=False,
        binding=True,
        published=paper(True),
        meaning="whether the penalty is on the sum over layers.",
        choices={
            True: "it is on codes summed over all parameters, the paper's common feature vector",
            False: "it is on the codes of every parameter (weight and bias separately), with k "
            "targets per experience for each of them, so that parameters cannot move against each "
            "other without a penalty",
        },
    )
    gradient_source: GradientSource = setting(
        default="criterion",
        published=paper("criterion"),
        meaning="what directions are learned from.",
        choices={
            "criterion": "as in the paper, gradients of the loss along the optimizer's trajectory, "
            "which vanish on a task that is learned to perfection, and with them the directions",
            "logits": "gradients of randomly weighted outputs at x*, which do not: a sample of the "
            "Gauss-Newton matrix",
        },
    )
    parameter_filter: ParameterFilter | None = PARAMETER_FILTER
    max_bytes: float | None = setting(
        default=None,
        above=0,
        none="no warning",
        meaning="memory above which to warn, before an experience with whose directions "
        "``memory_bytes`` would exceed it.",
    )

    def __post_init__(self) -> None:
        """Check what settings have to be together."""
        super().__post_init__()
        if self.tau > self.gradients_per_update:
            raise SettingError(
                f"tau={self.tau} must be at most gradients_per_update={self.gradients_per_update}: "
                "the model moves after every tau gradients, so it would not move at all."
            )
        if self.directions == "eigen" and self.couple_layers:
            raise SettingError(
                "directions='eigen' finds directions of each parameter separately, but "
                "couple_layers=True sums codes over parameters. Write directions='sampled' or "
                "'trained', or leave couple_layers out."
            )
        if self.directions != "trained":
            self._refuse_without_effect(_OF_TRAINING, "directions that are not trained")

    def _refuse_without_effect(self, names: Iterable[str], what: str) -> None:
        """Raise if one of these settings, which only trained directions have, is set."""
        for name in names:
            value, default = getattr(self, name), self.SETTINGS[name].default
            unused = value != default and not (name == "autoencoder_updates" and value == 0)
            if unused:
                raise SettingError(
                    f"{name}={value!r} has no effect on {what}. Write directions='trained', "
                    f"{name}={value!r}, or leave {name} out."
                )
