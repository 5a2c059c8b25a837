"""Avalanche's Weights & Biases logger, for the versions of wandb that it breaks on."""

import os
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from avalanche.logging import WandBLogger as AvalancheWandBLogger


class WandBLogger(AvalancheWandBLogger):
    """Avalanche's ``WandBLogger``, same arguments, with any version of wandb.

    Avalanche 0.6.0 asks wandb for ``wandb.viz`` and ``wandb.util.generate_id``, which current
    versions do not have: it fails at the first metric of any kind. This class supplies both.

    >>> from avalanche_dco.logging import WandBLogger
    >>> logger = WandBLogger("continual learning", "DCO-KRON", params={"mode": "disabled"})
    """

    def import_wandb(self) -> None:
        """Find wandb."""
        super().import_wandb()
        self.wandb: Any = _CompleteWandB(self.wandb)

    def before_run(self) -> None:
        """Start the run, with an id of its own unless one is given."""
        if self.init_kwargs.get("id") is None:
            self.init_kwargs["id"] = os.environ.get("WANDB_RUN_ID") or uuid4().hex[:8]
        super().before_run()


class _CompleteWandB:
    """The wandb module and, where it lacks it, the name that Avalanche looks up in it."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name == "viz" and not hasattr(self._module, "viz"):
            return SimpleNamespace(CustomChart=self._module.plot.CustomChart)
        return getattr(self._module, name)
