"""Synaptic Intelligence that has an effect on a CPU."""

from typing import Any

from avalanche.training import plugins
from avalanche.training.utils import ParamData


class SynapticIntelligencePlugin(plugins.SynapticIntelligencePlugin):
    """Avalanche's Synaptic Intelligence, with snapshots that are copies.

    Avalanche 0.6.0 takes its snapshots of the weights with ``param.detach().cpu().flatten()``,
    which on a CPU is the parameter's own memory. The snapshot moves along with the weights: the
    path integral stays zero, the distance to the old weights stays zero, and the plugin does
    nothing at any ``si_lambda``. Here both snapshots that outlive a step, the reference weights
    and the weights before the step, are copied.
    """

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Take the reference weights, as a copy."""
        super().before_training_exp(strategy, **kwargs)
        _own(self.ewc_data[0])

    def before_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Take the weights before the step, as a copy."""
        super().before_training_iteration(strategy, **kwargs)
        _own(self.syn_data["old_theta"])


def _own(snapshot: dict[str, ParamData]) -> None:
    for entry in snapshot.values():
        entry.data = entry.data.clone()
