"""The tensor core of GPM against definitions, in float64."""

import pytest
import torch
from torch import Tensor, nn

from avalanche_dco.baselines.gradient_projection import compact, extended_basis, project_out
from avalanche_dco.core.layers import as_matrix, groups_of, input_vectors, write_matrix

CONVOLUTIONS = [
    {},
    {"bias": False},
    {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)},
    {"padding": "same", "kernel_size": (2, 3), "dilation": 2},
    {"padding": "valid", "stride": 2},
    {"groups": 2, "padding": 1},
    {"groups": 4, "out_channels": 8, "bias": False},
    {"padding": 1, "padding_mode": "reflect"},
    {"padding": (2, 1), "padding_mode": "replicate", "groups": 2},
    {"padding": (1, 2), "padding_mode": "circular", "stride": 2},
    {"padding": "same", "padding_mode": "reflect", "kernel_size": (4, 3)},
]


def convolution(settings: dict) -> nn.Conv2d:
    arguments = {"in_channels": 4, "out_channels": 6, "kernel_size": 3} | settings
    return nn.Conv2d(**arguments).double()


@pytest.mark.parametrize("settings", CONVOLUTIONS)
def test_matrix_times_input_vectors_is_the_convolution(settings: dict) -> None:
    layer, images = convolution(settings), torch.randn(3, 4, 7, 8, dtype=torch.float64)
    expected = layer(images)
    vectors = input_vectors(layer, images, bias=layer.bias is not None)
    matrix = as_matrix(layer.weight, layer.bias, groups=groups_of(layer))
    answers = vectors @ matrix.mT  # (g, n * positions, o)
    shaped = answers.unflatten(1, (3, -1)).permute(1, 0, 3, 2).reshape(expected.shape)
    torch.testing.assert_close(shaped, expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4), (4,)])
def test_matrix_times_input_vectors_is_the_linear_layer(bias: bool, shape: tuple) -> None:
    layer, inputs = nn.Linear(4, 3, bias=bias), torch.randn(shape)
    answers = (
        input_vectors(layer, inputs, bias=bias)
        @ as_matrix(layer.weight, layer.bias, groups=groups_of(layer)).mT
    )
    torch.testing.assert_close(answers[0], layer(inputs).reshape(-1, 3))


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(4, 3), nn.Linear(4, 3, bias=False), convolution({"groups": 2})],
)
def test_a_matrix_is_written_back_where_it_came_from(layer: nn.Linear | nn.Conv2d) -> None:
    weight = torch.randn_like(layer.weight)
    bias = None if layer.bias is None else torch.randn_like(layer.bias)
    new_weight = torch.zeros_like(weight)
    new_bias = None if bias is None else torch.zeros_like(bias)
    write_matrix(as_matrix(weight, bias, groups=groups_of(layer)), new_weight, new_bias)
    assert torch.equal(new_weight, weight)
    assert bias is None or (new_bias is not None and torch.equal(new_bias, bias))


def wide_spectrum(vectors: int, size: int, groups: int = 1) -> Tensor:
    spectrum = 0.7 ** torch.arange(size, dtype=torch.float64)
    return torch.randn(groups, vectors, size, dtype=torch.float64) * spectrum


def empty(groups: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.zeros(groups, size, 0, dtype=dtype)


@pytest.mark.parametrize("vectors", [5, 40])
def test_compact_keeps_the_second_moment(vectors: int) -> None:
    original = wide_spectrum(vectors, 12, groups=2)
    small = compact(original)
    assert small.shape == (2, min(vectors, 12), 12)
    torch.testing.assert_close(small.mT @ small, original.mT @ original)


@pytest.mark.parametrize("threshold", [0.5, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("vectors", [8, 60])
def test_the_first_basis_is_the_smallest_that_holds_the_energy(
    threshold: float, vectors: int
) -> None:
    data = wide_spectrum(vectors, 12)
    basis = extended_basis(empty(1, 12), data, threshold)
    _, singular, directions = torch.linalg.svd(data[0], full_matrices=False)
    shares = singular.square().cumsum(0) / singular.square().sum()
    rank = int((shares < threshold).sum()) + 1
    assert basis.shape == (1, 12, rank)
    projector = directions[:rank].mT @ directions[:rank]
    torch.testing.assert_close(basis[0] @ basis[0].mT, projector)


@pytest.mark.parametrize("threshold", [0.8, 0.95, 0.999])
def test_an_extension_keeps_the_old_and_adds_the_fewest(threshold: float) -> None:
    old_data, new_data = wide_spectrum(30, 12), wide_spectrum(30, 12).flip(2)
    old = extended_basis(empty(1, 12), old_data, 0.9)
    new = extended_basis(old, new_data, threshold)
    assert torch.equal(new[:, :, : old.shape[2]], old)
    added = new.shape[2] - old.shape[2]
    assert added > 0

    # The definition: singular vectors of the rest, until old and new hold the share together.
    rest = new_data[0] - new_data[0] @ old[0] @ old[0].mT
    _, _, directions = torch.linalg.svd(rest, full_matrices=False)
    total = new_data.square().sum()
    for count in (added - 1, added):
        held_by = torch.cat([old[0], directions[:count].mT], dim=1)
        share = (new_data[0] @ held_by).square().sum() / total
        assert (share >= threshold) == (count == added)
    torch.testing.assert_close(
        new[0] @ new[0].mT, old[0] @ old[0].mT + directions[:added].mT @ directions[:added]
    )


def test_nothing_is_added_if_the_basis_holds_enough() -> None:
    data = wide_spectrum(30, 12)
    basis = extended_basis(empty(1, 12), data, 0.99)
    assert torch.equal(extended_basis(basis, data * 3, 0.99), basis)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threshold_one_takes_all_directions_and_none_made_of_rounding(dtype: torch.dtype) -> None:
    data = torch.randn(1, 50, 3, dtype=torch.float64) @ torch.randn(3, 12, dtype=torch.float64)
    basis = extended_basis(empty(1, 12, dtype), data, 1.0)
    assert basis.shape[2] == 3
    assert extended_basis(basis, data, 1.0).shape[2] == 3
    full = extended_basis(basis, torch.randn(1, 50, 12), 1.0)
    assert full.shape[2] == 12
    assert extended_basis(full, torch.randn(1, 50, 12), 1.0).shape[2] == 12


def test_groups_have_bases_of_their_own() -> None:
    data = torch.cat([wide_spectrum(30, 6), torch.eye(6, dtype=torch.float64)[:1].expand(1, 30, 6)])
    basis = extended_basis(empty(2, 6), data, 0.99)
    for group in range(2):
        alone = extended_basis(empty(1, 6), data[group : group + 1], 0.99)
        used = basis[group, :, basis[group].any(dim=0)]
        torch.testing.assert_close(used @ used.mT, alone[0] @ alone[0].mT)
    assert int(basis[1].any(dim=0).sum()) == 1


def test_projection_removes_the_span_and_nothing_else() -> None:
    basis = extended_basis(empty(2, 6), torch.randn(2, 3, 6), 1.0)
    matrix = torch.randn(2, 4, 6, dtype=torch.float64)
    left = project_out(matrix, basis)
    assert (left @ basis).abs().max() < 1e-12
    torch.testing.assert_close(left + matrix @ basis @ basis.mT, matrix)
    torch.testing.assert_close(project_out(left, basis), left)
