"""Methods to compare with.

Most are Avalanche's plugins with the defects of version 0.6.0 corrected, under their own names: a
small subclass each, whose docstring states the defect. To use one, import it from here instead of
from ``avalanche.training.plugins``. GPM, SGP and OWM, which Avalanche does not have, are projection
methods. A strategy takes any of them:

>>> import torch
>>> from avalanche.training.supervised import Naive
>>> from avalanche_dco.baselines import EWCPlugin
>>> from avalanche_dco.models import MLP
>>> model = MLP(64, hidden_size=50)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
>>> strategy = Naive(model=model, optimizer=optimizer, plugins=[EWCPlugin(ewc_lambda=100)])
"""

from avalanche_dco.baselines.agem import AGEMPlugin
from avalanche_dco.baselines.ewc import EWCPlugin
from avalanche_dco.baselines.gpm import GPMPlugin
from avalanche_dco.baselines.lwf import LwFPlugin
from avalanche_dco.baselines.mas import MASPlugin
from avalanche_dco.baselines.owm import OWMPlugin
from avalanche_dco.baselines.rwalk import RWalkPlugin
from avalanche_dco.baselines.sgp import SGPPlugin
from avalanche_dco.baselines.si import SynapticIntelligencePlugin

__all__ = [
    "AGEMPlugin",
    "EWCPlugin",
    "GPMPlugin",
    "LwFPlugin",
    "MASPlugin",
    "OWMPlugin",
    "RWalkPlugin",
    "SGPPlugin",
    "SynapticIntelligencePlugin",
]
