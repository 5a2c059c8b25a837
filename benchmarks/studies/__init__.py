"""Measurements of one thing each."""
