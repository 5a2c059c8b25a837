"""What DCO cannot be combined with is refused in plain words before training."""

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import FromScratchTraining
from torch import nn

from avalanche_dco import DCOCompPlugin, DCOPlugin
from avalanche_dco.errors import ModelError, SettingError
from tests.support.learning import QUICK, blobs, naive, small_mlp, stream, weights_of

pytestmark = pytest.mark.parametrize("plugin", [DCOPlugin, DCOCompPlugin])


def refused(strategy, error, message, experience=None):
    before = weights_of(strategy.model)
    with pytest.raises(error, match=message):
        strategy.train(experience or blobs(1).train_stream[0])
    assert strategy.clock.train_iterations == 0
    assert torch.equal(weights_of(strategy.model), before)


class Spectral(nn.Module):
    """Has a complex parameter."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=6))


def test_complex_parameters(plugin):
    message = r"The parameters 'filter' are complex.*parameter_filter"
    refused(naive(Spectral(), [plugin(**QUICK)]), ModelError, message)


def test_complex_parameters_that_are_left_out_are_trained(plugin):
    dco = plugin(**QUICK, parameter_filter=lambda name, p: not p.is_complex(), gamma_1=0.01)
    model = Spectral()
    strategy = naive(model, [dco])
    for experience in blobs().train_stream:
        strategy.train(experience)
    assert dco.penalty.directions.factors.keys() == {"head.weight", "head.bias"}


class Embedded(nn.Module):
    """Has sparse gradients only."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Embedding(10, 3, sparse=True)

    def forward(self, x):
        return self.scores(x).mean(1)


def embedded(plugin, **settings):
    return naive(
        Embedded(),
        [plugin(**QUICK, **settings)],
        optimizer=lambda p: torch.optim.SparseAdam(list(p), lr=0.01),
    )


def test_an_optimizer_for_sparse_gradients(plugin):
    tokens = stream([torch.arange(192).reshape(32, 6) % 10], [torch.arange(32) % 3])
    message = r"SparseAdam takes sparse.*'scores\.weight'.*Use torch\.optim\.SGD"
    refused(embedded(plugin), SettingError, message, tokens.train_stream[0])
    embedded(plugin, dco_lambda=0.0).train(tokens.train_stream[0])  # has no penalty


def test_two_plugins_in_one_strategy(plugin):
    strategy = naive(small_mlp(), [plugin(**QUICK), DCOPlugin(**QUICK)])
    refused(strategy, SettingError, r"2 plugins .*DCOPlugin.* Leave one")


def test_training_from_scratch(plugin):
    model = small_mlp()
    strategy = FromScratchTraining(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=16,
        plugins=[plugin(**QUICK)],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    refused(strategy, SettingError, rf"resets the weights.*{plugin.__name__}.*Use Naive")
