"""The data: streams of experiences, from tensors."""
