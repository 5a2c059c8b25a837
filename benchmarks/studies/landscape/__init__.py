"""Section 3 of the paper: the cone, measured and drawn."""
