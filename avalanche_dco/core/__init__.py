"""The mathematics of DCO: tensors in, tensors out, no Avalanche."""
