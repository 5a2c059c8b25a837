"""Direction-Constrained Optimization (DCO) for Avalanche."""

from avalanche_dco.plugins.dco import DCOPlugin
from avalanche_dco.plugins.dco_comp import DCOCompPlugin
from avalanche_dco.plugins.gpm import GPMPlugin
from avalanche_dco.strategies import DCO, GPM, DCOComp

__all__ = ["DCO", "GPM", "DCOComp", "DCOCompPlugin", "DCOPlugin", "GPMPlugin"]
__version__ = "0.1.0"
