"""Every way to the eigenvectors of G G^T against the obvious one, in float64."""

import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import avalanche_dco.landscape.spectrum as module
from avalanche_dco.errors import GradientError, SettingError
from avalanche_dco.landscape import gradient_spectrum


def decaying(size: int, count: int, seed: int = 0, decay: float = 0.5) -> torch.Tensor:
    """n gradients (rows) whose G G^T has well separated, falling eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    rank = min(size, count)
    left = torch.linalg.qr(torch.randn(count, rank, generator=generator, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(size, rank, generator=generator, dtype=torch.float64)).Q
    return left * decay ** torch.arange(rank, dtype=torch.float64) @ right.T


def obvious(gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, vectors = torch.linalg.eigh(gradients.T @ gradients)
    return values.flip(0), vectors.flip(1)


def same_up_to_sign(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    signs = (ours * theirs).sum(0).sign()
    torch.testing.assert_close(ours * signs, theirs, atol=tolerance, rtol=0)


def orthonormal(vectors: torch.Tensor, tolerance: float = 1e-10) -> None:
    identity = torch.eye(vectors.shape[1], dtype=vectors.dtype)
    torch.testing.assert_close(vectors.T @ vectors, identity, atol=tolerance, rtol=0)


@pytest.mark.parametrize("method", ["outer", "gram"])
@pytest.mark.parametrize(("size", "count"), [(9, 20), (20, 9), (12, 12), (7, 600), (600, 300)])
def test_exact_methods_agree_with_the_obvious_one(method: str, size: int, count: int) -> None:
    gradients = decaying(size, count, decay=0.7)
    values, vectors = obvious(gradients)
    result = gradient_spectrum(gradients, size=size, count=count, method=method, top=8 - (size < 8))
    kept = len(result.eigenvalues)
    assert kept == 8 - (size < 8)
    torch.testing.assert_close(result.eigenvalues, values[:kept])
    same_up_to_sign(result.eigenvectors, vectors[:, :kept], 1e-8)
    orthonormal(result.eigenvectors)


def test_randomized_is_exact_when_the_sketch_holds_the_rank() -> None:
    gradients = decaying(200, 10)
    values, vectors = obvious(gradients)
    result = gradient_spectrum(gradients, size=200, count=10, method="randomized", top=6)
    torch.testing.assert_close(result.eigenvalues, values[:6], atol=1e-12, rtol=1e-8)
    same_up_to_sign(result.eigenvectors, vectors[:, :6], 1e-8)
    orthonormal(result.eigenvectors)


def test_randomized_finds_the_leading_part_of_a_full_spectrum() -> None:
    gradients = decaying(300, 400, decay=0.8)
    values, vectors = obvious(gradients)
    result = gradient_spectrum(gradients, size=300, count=400, method="randomized", top=20)
    torch.testing.assert_close(result.eigenvalues[:10], values[:10], rtol=1e-4, atol=0)
    overlap = (result.eigenvectors[:, :10].T @ vectors[:, :10]).square().sum() / 10
    assert overlap > 0.9999


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_outer_and_gram_span_the_same_matrix(size: int, count: int, seed: int) -> None:
    """Degenerate or not: sum lambda v v^T is G G^T whichever eigenvectors are chosen."""
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(count, size, generator=generator, dtype=torch.float64)
    for method in ("outer", "gram"):
        result = gradient_spectrum(gradients, size=size, count=count, method=method)
        rebuilt = result.eigenvectors * result.eigenvalues @ result.eigenvectors.T
        torch.testing.assert_close(rebuilt, gradients.T @ gradients, atol=1e-9, rtol=1e-9)
        assert len(result.eigenvalues) == min(size, count)


def test_gram_stays_orthonormal_when_eigenvalues_span_many_orders() -> None:
    gradients = decaying(60, 30, decay=0.6)  # eigenvalues from 1 to 1e-13
    result = gradient_spectrum(gradients, size=60, count=30, method="gram")
    orthonormal(result.eigenvectors)
    _, vectors = obvious(gradients)
    same_up_to_sign(result.eigenvectors[:, :12], vectors[:, :12], 1e-6)


def test_float32_gradients_are_summed_in_float64() -> None:
    gradients = decaying(40, 500, decay=0.75).float()  # eigenvalues from 1 to 1e-10
    result = gradient_spectrum(gradients, size=40, count=500)
    values, _ = obvious(gradients.double())
    torch.testing.assert_close(result.eigenvalues, values[: len(result.eigenvalues)])
    assert result.eigenvalues.dtype == torch.float64
    wide = gradient_spectrum(gradients[:20], size=40, count=20)
    torch.testing.assert_close(wide.eigenvalues, obvious(gradients[:20].double())[0][:20])


@pytest.mark.parametrize("method", ["outer", "gram", "randomized"])
def test_mean_and_order(method: str) -> None:
    gradients = decaying(30, 25) + 0.1
    result = gradient_spectrum(gradients, size=30, count=25, method=method, top=12)
    torch.testing.assert_close(result.mean, gradients.mean(0))
    assert result.count == 25
    assert (result.eigenvalues.diff() <= 0).all()


def test_reads_a_stream_once_and_keeps_no_gradient_when_there_are_more_than_parameters() -> None:
    references: list[weakref.ref] = []
    most_alive = 0

    def stream() -> Iterator[torch.Tensor]:
        nonlocal most_alive
        for row in decaying(5, 2000).unbind():
            gradient = row.clone()
            references.append(weakref.ref(gradient))
            yield gradient
            most_alive = max(most_alive, sum(ref() is not None for ref in references))

    gradient_spectrum(stream(), size=5, count=2000)
    assert len(references) == 2000
    assert most_alive <= 300  # one block of 256, never all of them


@pytest.mark.parametrize(
    ("size", "count", "limit", "expected"),
    [(5, 9, 2**31, "_Outer"), (9, 5, 2**31, "_Gram"), (9, 5, 10, "_Randomized"),
     (5, 9, 10, "_Randomized")],
)  # fmt: skip
def test_auto_takes_the_affordable_way(
    monkeypatch: pytest.MonkeyPatch, size: int, count: int, limit: int, expected: str
) -> None:
    used = []
    for name in ("_Outer", "_Gram", "_Randomized"):
        kind = getattr(module, name)

        def spy(*args, _kind=kind, _name=name):
            used.append(_name)
            return _kind(*args)

        monkeypatch.setattr(module, name, spy)
    gradients = decaying(size, count)
    gradient_spectrum(gradients, size=size, count=count, top=2, memory_limit=limit)
    assert used == [expected]


def test_vectors_and_subspaces_count_from_one() -> None:
    result = gradient_spectrum(decaying(20, 30), size=20, count=30)
    assert torch.equal(result.vector(1), result.eigenvectors[:, 0])
    assert torch.equal(result.subspace(5, width=3), result.eigenvectors[:, 2:5])
    for wrong in (0, 21):
        with pytest.raises(SettingError, match="no eigenvector"):
            result.vector(wrong)
    with pytest.raises(SettingError, match="begin before v_1"):
        result.subspace(2, width=3)
    with pytest.raises(SettingError, match="no eigenvector 50"):
        result.subspace(50)


@pytest.mark.parametrize("method", ["outer", "gram", "randomized"])
def test_vanishing_gradients_have_no_directions(method: str) -> None:
    result = gradient_spectrum(torch.zeros(6, 4), size=4, count=6, method=method, top=2)
    assert result.eigenvectors.shape == (4, 0)
    assert torch.equal(result.mean, torch.zeros(4, dtype=torch.float64))


def test_errors_name_the_way_out() -> None:
    gradients = torch.ones(4, 3)
    with pytest.raises(SettingError, match=r"4 came"):
        gradient_spectrum(gradients, size=3, count=5)
    with pytest.raises(SettingError, match="0 came"):
        gradient_spectrum([], size=3, count=5)
    with pytest.raises(SettingError, match="top="):
        gradient_spectrum(gradients, size=3, count=4, memory_limit=1)
    with pytest.raises(SettingError, match="is unknown"):
        gradient_spectrum(gradients, size=3, count=4, method="power")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"shape \(2,\)"):
        gradient_spectrum([torch.ones(2)], size=3, count=1)
    gradients[2, 1] = float("nan")
    with pytest.raises(GradientError, match="1 to 4"):
        gradient_spectrum(gradients, size=3, count=4)
