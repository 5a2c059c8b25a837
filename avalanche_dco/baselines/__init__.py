"""Avalanche's plugins with the defects of version 0.6.0 corrected, under their own names.

Each class is a small subclass of Avalanche's; its docstring states the defect. To use one, import
it from here instead of from ``avalanche.training.plugins``.
"""

from avalanche_dco.baselines.agem import AGEMPlugin
from avalanche_dco.baselines.ewc import EWCPlugin
from avalanche_dco.baselines.lwf import LwFPlugin
from avalanche_dco.baselines.mas import MASPlugin
from avalanche_dco.baselines.rwalk import RWalkPlugin
from avalanche_dco.baselines.si import SynapticIntelligencePlugin

__all__ = [
    "AGEMPlugin",
    "EWCPlugin",
    "LwFPlugin",
    "MASPlugin",
    "RWalkPlugin",
    "SynapticIntelligencePlugin",
]
