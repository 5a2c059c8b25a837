"""DCO: every experience keeps its own directions."""

from __future__ import annotations

from avalanche_dco.directions import Directions, Weights
from avalanche_dco.penalty import Penalty
from avalanche_dco.plugins.base import DirectionConstrainedPlugin


class DCOPlugin(DirectionConstrainedPlugin):
    """Direction-Constrained Optimization (Teng et al., Algorithm 1 without compression)."""

    def _store(self, directions: Directions, x_star: Weights) -> None:
        """Step 4: W^i <- W, and of x_i* only the codes t = ENC^i(x_i*)."""
        learned = Penalty(directions, directions.encode(x_star))
        self.penalty = learned if self.penalty is None else self.penalty.cat(learned)
