"""Injected faults, and what they do to a run."""
