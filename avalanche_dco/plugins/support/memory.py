"""The memory that directions will take, estimated before they are learned."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING

from avalanche_dco.core.factors import Weights, bytes_of_directions
from avalanche_dco.plugins.support.reporting import experience_number
from avalanche_dco.plugins.support.state import PluginState

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate


class MemoryLimit(PluginState, ABC):
    """The warning of ``max_bytes``; for plugins to inherit from."""

    k: int
    couple_layers: bool
    _THRIFTIER = ""
    """What to use instead if memory is short, besides a smaller k."""

    @abstractmethod
    def _bytes_expected(self, constrained: Weights) -> int:
        """What ``memory_bytes`` will be at most once this experience has been learned."""

    def _targets_each(self, parameters: Collection[str]) -> int:
        """Number of targets of a direction in which these parameters have a part."""
        return 1 if self.couple_layers else len(parameters)

    def _warn_of_memory(
        self, strategy: SupervisedTemplate, constrained: Weights, max_bytes: float
    ) -> None:
        expected = self._bytes_expected(constrained)
        if expected <= max_bytes:
            return
        each = bytes_of_directions(constrained, 1, self._targets_each(constrained) + 1)
        affordable = int(self.k - (expected - max_bytes) / each)
        smaller = (
            f"a k of at most {affordable} instead of {self.k}"
            if affordable > 0
            else "a smaller k from the first experience on"
        )
        warnings.warn(
            f"Experience {experience_number(strategy)}: {type(self).__name__} may keep "
            f"{expected:,} bytes once it has learned this experience, more than "
            f"max_bytes={max_bytes:,.0f}, and {self.memory_bytes:,} now. Use {self._THRIFTIER}"
            f"{smaller}.",
            stacklevel=2,
        )
