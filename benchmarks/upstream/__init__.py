"""A contribution to Avalanche, made from this package's own sources."""
