"""DCO-COMP as a ready-made strategy."""

from __future__ import annotations

from typing import Any

from avalanche_dco.compression import Loss, Start
from avalanche_dco.plugins.base import DirectionConstrainedPlugin
from avalanche_dco.plugins.dco_comp import DCOCompPlugin
from avalanche_dco.strategies.dco import DCO


class DCOComp(DCO):
    """Compressed Direction-Constrained Optimization strategy (DCO-COMP).

    See :class:`avalanche_dco.DCOCompPlugin` for details. This strategy does not use task
    identities.
    """

    def __init__(
        self,
        *,
        k: int = 1000,
        new_task_k: int | None = None,
        compression_updates: int = 50,
        compression_lr: float = 2e-2,
        compression_start: Start = "previous",
        compression_loss: Loss = "gradients",
        **dco_kwargs: Any,
    ):
        """Init.

        :param k: number of directions to keep for all experiences together; for this and the
            following settings see :class:`avalanche_dco.DCOCompPlugin`.
        :param dco_kwargs: model, optimizer and all other arguments of
            :class:`avalanche_dco.DCO`.
        """
        self._compression: dict[str, Any] = {
            "new_task_k": new_task_k,
            "compression_updates": compression_updates,
            "compression_lr": compression_lr,
            "compression_start": compression_start,
            "compression_loss": compression_loss,
        }
        super().__init__(k=k, **dco_kwargs)

    def _make_plugin(self, k: int, **settings: Any) -> DirectionConstrainedPlugin:
        return DCOCompPlugin(k, **self._compression, **settings)
