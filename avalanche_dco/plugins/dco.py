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

    After each experience DCO finds, from gradients, ``k`` directions along which this experience is
    sensitive. Later experiences are penalised for moving along them. No data is kept, and no copy
    of past weights. Memory grows by ``k`` directions per experience. With ``push_epochs`` it first
    pushes the weights into the cone of low loss that the optimizer's trajectory points to.

    Works with any model and optimizer and on any benchmark; task labels are not used:

    >>> import torch
    >>> from avalanche.training.supervised import Naive
    >>> from avalanche_dco import DCOPlugin
    >>> from avalanche_dco.models import MLP
    >>> model = MLP(64, hidden_size=50)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    >>> strategy = Naive(model=model, optimizer=optimizer, plugins=[DCOPlugin(k=1000)])

    Every symbol of Algorithm 1 is an argument. The page *Settings* of the documentation says of
    each whether its default comes from the paper, from its authors' code or from us, and which
    values were published for each data set. ``DCOPlugin.paper()`` has those; the defaults are
    faster.

    Through the strategy's evaluator it reports ``DCO_Penalty`` (the mean over each epoch), and
    ``DCO_RankOneError`` (the share of the sampled gradients' energy that directions cannot hold) or
    ``DCO_AutoencoderError`` (the relative reconstruction error of each autoencoder update).
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
        numbers = self.k * (self._targets_each(constrained) + 1)  # targets and weights
        return self.memory_bytes + bytes_of_directions(constrained, self.k, numbers)
