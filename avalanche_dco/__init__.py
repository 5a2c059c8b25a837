"""Direction-Constrained Optimization (DCO) for Avalanche."""

from avalanche_dco.plugins.dco import DCOPlugin
from avalanche_dco.strategies import DCO

__all__ = ["DCO", "DCOPlugin"]
__version__ = "0.1.0"
