"""The factors against an implementation that nobody here wrote."""

import pytest
import torch
from curvlinops import GGNLinearOperator, KFACLinearOperator
from curvlinops.kfac import FisherType
from torch import nn

from avalanche_dco.core.curvature import CurvatureEstimator

SAMPLES = 12


def averaged(model: nn.Module, inputs: torch.Tensor, draws: int):
    """Factors of every layer, averaged over draws of e."""
    torch.manual_seed(0)
    total = None
    for _ in range(draws):
        estimator = CurvatureEstimator(model, dict(model.named_parameters()))
        estimator.observe(lambda: model(inputs), len(inputs))
        found = estimator.finish()
        total = found if total is None else total + found
    return {name: (f.A[0] / draws, f.S[0] / draws) for name, f in total.layers.items()}


def operator(kind, model: nn.Module, inputs: torch.Tensor, **arguments):
    """A matrix of the sum over samples of a loss with Hessian 2 I: twice the outputs' curvature."""
    targets = torch.zeros(SAMPLES, 2, dtype=torch.float64)
    made = kind(
        model,
        nn.MSELoss(reduction="sum"),
        list(model.parameters()),
        [(inputs, targets)],
        check_deterministic=False,
        **arguments,
    )
    return made @ torch.eye(made.shape[1], dtype=torch.float64) / (2 * SAMPLES)


def made(kind: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(1)
    if kind == "linear":
        model = nn.Sequential(
            nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False)
        ).double()
        return model, torch.randn(SAMPLES, 3, dtype=torch.float64)
    convolution = nn.Conv2d(2, 3, 2, stride=2, bias=False)
    head = nn.Linear(12, 2, bias=False)
    model = nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), head).double()
    return model, torch.randn(SAMPLES, 2, 4, 4, dtype=torch.float64)


def blocks(matrix: torch.Tensor, model: nn.Module):
    """The diagonal blocks, one per parameter."""
    start = 0
    for parameter in model.parameters():
        end = start + parameter.numel()
        yield matrix[start:end, start:end]
        start = end


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_trace_is_that_of_the_gauss_newton_matrix(kind):
    model, inputs = made(kind)
    exact = blocks(operator(GGNLinearOperator, model, inputs), model)
    found = averaged(model, inputs, draws=4000).values()
    for (A, S), block in zip(found, exact, strict=True):
        assert (A.trace() * S.trace()).item() == pytest.approx(block.trace().item(), rel=0.03)


def test_linear_layers_have_the_factors_of_kfac_up_to_their_scale():
    model, inputs = made("linear")
    matrix = operator(KFACLinearOperator, model, inputs, fisher_type=FisherType.TYPE2)
    found = averaged(model, inputs, draws=4000).values()
    for (A, S), expected in zip(found, blocks(matrix, model), strict=True):
        ours = torch.kron(S, A)
        ours *= expected.trace() / ours.trace()
        assert (ours - expected).norm() < 0.03 * expected.norm()


def test_convolutions_have_the_partial_traces_of_the_gauss_newton_matrix():
    model, inputs = made("convolution")
    exact = next(blocks(operator(GGNLinearOperator, model, inputs), model))
    weight = model[0].weight
    outputs, width = len(weight), weight[0].numel()
    four = exact.reshape(outputs, width, outputs, width)
    A, S = averaged(model, inputs, draws=4000)["0.weight"]
    for ours, expected in (
        (A, torch.einsum("oiop->ip", four)),
        (S * A.trace(), torch.einsum("oipi->op", four)),
    ):
        assert (ours - expected).norm() < 0.05 * expected.norm()


def test_quadratic_is_that_of_the_gauss_newton_matrix_for_one_linear_layer():
    """With one layer and one position, the Kronecker product is no approximation."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    inputs = torch.randn(SAMPLES, 3, dtype=torch.float64)
    expected = operator(GGNLinearOperator, model, inputs)
    ((A, S),) = averaged(model, inputs, draws=4000).values()
    assert (torch.kron(S, A) - expected).norm() < 0.03 * expected.norm()
