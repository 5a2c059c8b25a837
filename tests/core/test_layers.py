"""Layers as matrices: the matrix times the input vectors is what the layer returns."""

import pytest
import torch
from torch import nn

from avalanche_dco.core.layers import (
    as_matrix,
    groups_of,
    input_vectors,
    output_vectors,
    split_matrix,
)

LAYERS = {
    "linear": (nn.Linear(4, 3), (5, 4)),
    "linear on sequences": (nn.Linear(4, 3, bias=False), (2, 7, 4)),
    "conv1d": (nn.Conv1d(2, 4, 3, padding="same", dilation=2, bias=False), (5, 2, 11)),
    "conv1d, valid": (nn.Conv1d(2, 4, 2, padding="valid"), (5, 2, 6)),
    "conv2d": (
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        (3, 4, 9, 8),
    ),
    "conv2d, reflected, one image": (
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
        (4, 9, 8),
    ),
    "conv2d, depthwise": (nn.Conv2d(4, 8, 3, groups=4), (2, 4, 5, 5)),
    "conv3d": (nn.Conv3d(2, 4, (2, 3, 2), stride=2, groups=2), (2, 2, 6, 7, 5)),
}


@pytest.mark.parametrize("kind", LAYERS)
class TestMatrixOfALayer:
    def test_product_with_input_vectors_is_the_output(self, kind):
        layer, shape = LAYERS[kind]
        layer = layer.double()
        inputs = torch.randn(shape, dtype=torch.float64)
        matrix = as_matrix(layer.weight, layer.bias, groups=groups_of(layer))
        vectors = input_vectors(layer, inputs, bias=layer.bias is not None)
        expected = output_vectors(layer, layer(inputs))
        torch.testing.assert_close(vectors @ matrix.mT, expected)

    def test_splitting_undoes_it(self, kind):
        layer, _ = LAYERS[kind]
        parameters = list(layer.parameters())
        matrix = as_matrix(*parameters, groups=groups_of(layer))
        for part, parameter in zip(
            split_matrix(matrix, [p.shape for p in parameters]), parameters, strict=True
        ):
            assert torch.equal(part, parameter)
