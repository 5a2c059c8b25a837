"""Direction-Constrained Optimization (DCO) for Avalanche."""

from avalanche_dco.plugins.dco import DCOPlugin

__all__ = ["DCOPlugin"]
__version__ = "0.1.0"
