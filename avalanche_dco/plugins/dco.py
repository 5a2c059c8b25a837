"""DCO: every experience keeps its own directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Weights, bytes_of_directions
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.plugins.base import DirectionConstrainedPlugin
from avalanche_dco.plugins.support.kept import Directed, Kept

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate


class DCOPlugin(DirectionConstrainedPlugin):
    """Direction-Constrained Optimization (DCO): Algorithm 1 of Teng et al.

    After each experience DCO pushes the weights into the cone of low loss that the optimizer's
    trajectory points to, and learns, from gradients, the ``k`` directions along which the loss of
    this experience rises steeply. Later experiences are penalised for moving along them. No data
    is kept, and no copy of past weights. Memory grows by ``k`` directions per experience.

    Works with any model and optimizer and on any benchmark; task labels are not used::

        strategy = Naive(model=model, optimizer=optimizer, plugins=[DCOPlugin(k=1000)], ...)

    The defaults are the paper's settings for Permuted and Split MNIST, but for ``penalty_step`` and
    ``move_unused``, which are ours:

    ========================= ====================== ============================================
    argument                  symbol                 paper's value
    ========================= ====================== ============================================
    ``k``                     k                      1000
    ``dco_lambda``            lambda                 100; CIFAR-100 1000; MNIST/Fashion 1 to 100
    ``gamma_1``               gamma_1                0; MNIST/Fashion 0.001
    ``gamma_2``               gamma_2                0.1
    ``push_epochs``           N                      10
    ``averaged_points``       C                      16
    ``theta``                 theta                  0.2; MNIST/Fashion 2.0
    ``gradients_per_update``  m                      128
    ``tau``                   tau                    2
    ``rho``                   rho                    100 or 1000
    ``autoencoder_lr``        eta_a                  0.01
    ``autoencoder_updates``   ("until convergence")  200
    ``trajectory_lr``         eta in step 3          0.001
    ``max_penalty_grad_norm`` (Section 5.2)          20; CIFAR-100 1
    ========================= ====================== ============================================

    Through the strategy's evaluator it reports ``DCO_Penalty`` (the mean over each epoch) and
    ``DCO_AutoencoderError`` (the relative reconstruction error of each autoencoder update).

    :param k: number of directions to learn per experience.
    :param dco_lambda: strength of the penalty; 0 switches it off.
    :param gamma_1: pull towards the weights at the start of the experience, applied after every
        update of step 1: ``x <- x - gamma_1 (x - x_0)``. 0 switches it off.
    :param gamma_2: pull towards x* after every autoencoder update of step 3.
    :param push_epochs: epochs the optimizer travels on, from a fresh state and without the
        penalty, to find the way into the cone, on the batches of the strategy's loader (replayed
        samples included). 0 leaves the weights where training ended.
    :param averaged_points: number of points of that trajectory that are averaged at either end.
    :param theta: length of the push into the cone. 0 leaves the weights where training ended.
    :param gradients_per_update: gradients per autoencoder update. Fewer are faster: 16 instead of
        128 make an eighth of the work.
    :param tau: gradients per move of the model while they are sampled.
    :param rho: factor on the autoencoder's loss.
    :param autoencoder_lr: learning rate of the autoencoder's Adam.
    :param autoencoder_updates: number of autoencoder updates at most. 0 learns no directions.
    :param autoencoder_tolerance: stop learning directions once the reconstruction error falls by
        less than this share from 20 updates to the next 20. None (the default) makes all
        updates, as the paper does.
    :param trajectory_lr: learning rate of the plain SGD that moves the model while gradients are
        sampled. The weights are put back to x* afterwards. Criteria that sum over samples need a
        smaller one.
    :param penalty_step: how the penalty moves the weights. ``"implicit"`` makes its exact implicit
        step after every step of the optimizer, which is stable with any learning rate and strength.
        ``"gradient"``, as in the paper, adds its gradient to the criterion's, and is stable while
        ``lr * 2 * dco_lambda * ||W^T W||`` is about 1 or less.
    :param max_penalty_grad_norm: the penalty's gradient is scaled down to this l2 norm where it
        is longer; the criterion's is left alone. None for no limit.
    :param move_unused: whether the penalty also moves parameters that the experience does not use,
        such as heads of other tasks, as in the paper. By default they stay as they are.
    :param couple_layers: whether the penalty is on codes summed over all parameters, the paper's
        common feature vector. With False, it is on the codes of every parameter (weight and bias
        apart): the same directions, ``k`` targets per experience for each parameter instead of
        ``k`` for all, and parameters cannot move against each other without a penalty.
    :param gradient_source: ``"criterion"``, as in the paper, learns from gradients of the loss.
        These vanish on a task that is learned to perfection, and with them the directions.
        ``"logits"`` learns from gradients of randomly weighted outputs at x*, which do not (a
        sample of the Gauss-Newton matrix).
    :param parameter_filter: a function of a parameter's name and the parameter that tells whether
        it is constrained; all trainable parameters are by default.
    :param max_bytes: warn before an experience with whose directions ``memory_bytes`` would exceed
        this. None for no such warning.
    """

    _KEEPS = (Kept("penalty", Directed(Penalty)),)
    _THRIFTIER = "DCO-COMP (DCOCompPlugin), whose memory does not grow with the experiences, or "

    def _stored(
        self, strategy: SupervisedTemplate, directions: Directions, shares: Tensor, x_star: Weights
    ) -> dict[str, Any]:
        """Step 4: W^i <- W, and of x_i* only the codes t = ENC^i(x_i*)."""
        learned = Penalty.keeping(x_star, directions, couple_layers=self.couple_layers)
        return {"penalty": learned if self.penalty is None else self.penalty.cat(learned)}

    def _adapt_to(self, parameters: Weights) -> None:
        assert self.penalty is not None
        self.penalty = self.penalty.adapted_to(parameters)

    def _bytes_expected(self, constrained: Weights) -> int:
        return self.memory_bytes + bytes_of_directions(
            constrained, self.k, self._targets_each(constrained)
        )
