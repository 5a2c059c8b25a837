"""The factors against an implementation that nobody here wrote."""

import pytest
import torch
from curvlinops import GGNLinearOperator, KFACLinearOperator
from curvlinops.kfac import FisherType
from torch import nn

from avalanche_dco.core.curvature import CurvatureEstimator

SAMPLES = 12


def averaged(model: nn.Module, inputs: torch.Tensor, draws: int):
    """Factors of every layer, averaged over draws of e; one batch, so that no scale is measured."""
    torch.manual_seed(0)
    total = None
    for _ in range(draws):
        estimator = CurvatureEstimator(model, dict(model.named_parameters()))
        estimator.observe(lambda: model(inputs), len(inputs))
        found = estimator.finish()
        total = found if total is None else total + found
    return {name: (f.A[0] / draws, f.S[0] / draws) for name, f in total.layers.items()}


MODELS = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False)),
        (3,),
    ),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 2, stride=2, bias=False),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(12, 2, bias=False),
        ),
        (2, 4, 4),
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_same_kronecker_product(kind):
    make, shape = MODELS[kind]
    torch.manual_seed(1)
    model = make().double()
    inputs = torch.randn(SAMPLES, *shape, dtype=torch.float64)
    operator = KFACLinearOperator(
        model,
        nn.MSELoss(reduction="sum"),
        list(model.parameters()),
        [(inputs, torch.zeros(SAMPLES, 2, dtype=torch.float64))],
        fisher_type=FisherType.TYPE2,
        check_deterministic=False,
    )
    expected = operator @ torch.eye(operator.shape[1], dtype=torch.float64)
    found = averaged(model, inputs, draws=4000)
    blocks = [torch.kron(S, A) for A, S in found.values()]
    # The sum over samples of a loss with Hessian 2 I, here the mean of the outputs' squares.
    ours = 2 * SAMPLES * torch.block_diag(*blocks)
    assert (ours - expected).norm() < 0.03 * expected.norm()


def test_quadratic_is_that_of_the_gauss_newton_matrix_for_one_linear_layer():
    """With one layer and one position, the Kronecker product is no approximation."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    inputs = torch.randn(SAMPLES, 3, dtype=torch.float64)
    operator = GGNLinearOperator(
        model,
        nn.MSELoss(reduction="sum"),
        list(model.parameters()),
        [(inputs, torch.zeros(SAMPLES, 2, dtype=torch.float64))],
        check_deterministic=False,
    )
    expected = operator @ torch.eye(6, dtype=torch.float64)
    ((A, S),) = averaged(model, inputs, draws=4000).values()
    assert (2 * SAMPLES * torch.kron(S, A) - expected).norm() < 0.03 * expected.norm()
