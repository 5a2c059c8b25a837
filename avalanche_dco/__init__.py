"""Direction-Constrained Optimization (DCO) for Avalanche."""

from avalanche_dco.baselines.gpm import GPMPlugin
from avalanche_dco.persistence import maybe_load_checkpoint, save_checkpoint
from avalanche_dco.persistence.seeds import seed_everything
from avalanche_dco.plugins.dco import DCOPlugin
from avalanche_dco.plugins.dco_comp import DCOCompPlugin
from avalanche_dco.plugins.dco_kron import DCOKronPlugin
from avalanche_dco.strategies import DCO, GPM, DCOComp, DCOKron

__all__ = [
    "DCO",
    "GPM",
    "DCOComp",
    "DCOCompPlugin",
    "DCOKron",
    "DCOKronPlugin",
    "DCOPlugin",
    "GPMPlugin",
    "maybe_load_checkpoint",
    "save_checkpoint",
    "seed_everything",
]
__version__ = "0.1.0"
