"""Ready-made strategies: Avalanche's template with one plugin of this package."""

from avalanche_dco.strategies.dco import DCO
from avalanche_dco.strategies.dco_comp import DCOComp
from avalanche_dco.strategies.gpm import GPM

__all__ = ["DCO", "GPM", "DCOComp"]
