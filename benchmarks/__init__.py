"""Benchmarks of avalanche_dco: protocols, runners and reports; no algorithm lives here."""
