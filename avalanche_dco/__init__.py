"""Direction-Constrained Optimization (DCO) for Avalanche."""

__version__ = "0.1.0"
