"""Avalanche's checkpoints, on current torch, that continue a run bit for bit."""

from avalanche_dco.checkpointing.checkpoint import maybe_load_checkpoint, save_checkpoint

__all__ = ["maybe_load_checkpoint", "save_checkpoint"]
