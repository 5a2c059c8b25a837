"""Gradients of tasks that are learned to perfection: most of them vanish, and some do not."""

import pytest
import torch
from avalanche.models import MTSimpleMLP

from avalanche_dco import DCOPlugin
from benchmarks.streams.digits import split_digits
from tests.support.learning import QUICK, stream, train, weights_of


@pytest.mark.parametrize(("samples", "epochs"), [(32, 20), (1, 1)])
def test_avalanches_multi_head_example_runs_to_its_end_with_adam(samples, epochs):
    """The sizes of the gradients differ by more than single precision's range of squares."""
    benchmark, model = split_digits(), MTSimpleMLP(input_size=64)
    plugin = DCOPlugin(**(QUICK | {"gradients_per_update": 16, "autoencoder_updates": 20}))
    with pytest.warns(UserWarning, match=r"% of the gradients are zero.*gradient_source='logits'"):
        strategy = train(
            model,
            benchmark,
            [plugin],
            optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
            train_mb_size=samples,
            train_epochs=epochs,
        )
    assert strategy.clock.train_exp_counter == len(benchmark.train_stream)
    assert weights_of(model).isfinite().all()
    factors = plugin.penalty.directions.factors.values()
    assert all(f.U.isfinite().all() and f.V.isfinite().all() for f in factors)


def test_vanishing_gradients_are_no_directions():
    """One class in single precision: the loss is zero up to rounding, and so are its gradients."""
    inputs = torch.ones(16, 4)
    benchmark = stream([inputs], [torch.zeros(16, dtype=torch.int64)])
    model = torch.nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight[0], model.weight[1] = 15.0, -2.0  # margins of 68: gradients of 1e-30
    plugin = DCOPlugin(**QUICK)
    with pytest.warns(UserWarning, match=r"0: the gradients are zero.*gradient_source='logits'"):
        train(model, benchmark, [plugin])
    assert plugin.penalty is None
