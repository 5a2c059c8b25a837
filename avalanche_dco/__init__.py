"""Direction-Constrained Optimization (DCO) for Avalanche."""

from avalanche_dco.plugins.dco import DCOPlugin
from avalanche_dco.plugins.dco_comp import DCOCompPlugin
from avalanche_dco.strategies import DCO, DCOComp

__all__ = ["DCO", "DCOComp", "DCOCompPlugin", "DCOPlugin"]
__version__ = "0.1.0"
