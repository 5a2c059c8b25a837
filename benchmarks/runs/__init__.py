"""Runs: planned, executed, recorded, resumed."""
