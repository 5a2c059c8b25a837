"""Avalanche plugins: thin layers over the tensor core."""
