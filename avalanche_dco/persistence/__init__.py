"""Checkpoints of Avalanche's strategies, from which runs resume bit for bit."""

from avalanche_dco.persistence.checkpoint import maybe_load_checkpoint, save_checkpoint
from avalanche_dco.persistence.states import load_plugin_state, save_plugin_state

__all__ = ["load_plugin_state", "maybe_load_checkpoint", "save_checkpoint", "save_plugin_state"]
