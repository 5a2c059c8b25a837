"""What the baselines refuse or warn of before training, in plain words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from avalanche_dco.baselines import (
    AGEMPlugin,
    EWCPlugin,
    LwFPlugin,
    MASPlugin,
    RWalkPlugin,
    SynapticIntelligencePlugin,
)
from avalanche_dco.errors import ModelError, SettingError
from benchmarks.streams.digits import permuted_digits
from tests.support.small_runs import mlp, naive, same_weights, trained

EXPERIENCES = list(permuted_digits(2).train_stream)

ON_GRADIENTS: dict[str, Callable[[], Any]] = {
    "ewc": lambda: EWCPlugin(1.0),
    "mas": MASPlugin,
    "si": lambda: SynapticIntelligencePlugin(1.0),
    "rwalk": RWalkPlugin,
    "a-gem": lambda: AGEMPlugin(50, 20),
}
ALL = ON_GRADIENTS | {"lwf": LwFPlugin}


def steps_of(strategy: Any) -> int:
    return strategy.clock.train_iterations


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phase, self.head = nn.Parameter(torch.ones(64) + 0j), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x.reshape(len(x), -1) * self.phase).abs())


class Words(nn.Module):
    """Reads each digit's pixels as words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(17, 10, mode="mean", sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.words((x.reshape(len(x), -1) * 16).round().long().clamp(0, 16))


@pytest.mark.parametrize("method", ON_GRADIENTS)
def test_complex_parameters_are_refused_before_the_first_step(method: str) -> None:
    strategy = naive(Complex(), ON_GRADIENTS[method]())
    with pytest.raises(ModelError, match=r"'phase' is complex.*view_as_complex"):
        strategy.train(EXPERIENCES[0])
    assert steps_of(strategy) == 0


@pytest.mark.parametrize("method", ON_GRADIENTS)
def test_sparse_adam_is_refused_before_the_first_step(method: str) -> None:
    model = Words()
    optimizer = torch.optim.SparseAdam(model.parameters())
    strategy = naive(model, ON_GRADIENTS[method](), optimizer=optimizer)
    with pytest.raises(SettingError, match=r"SparseAdam takes sparse.*torch.optim.Adam"):
        strategy.train(EXPERIENCES[0])
    assert steps_of(strategy) == 0


@pytest.mark.parametrize(
    ("make", "optimizer"), [(Complex, torch.optim.SGD), (Words, torch.optim.SparseAdam)]
)
def test_lwf_takes_complex_parameters_and_sparse_adam(make: Any, optimizer: Any) -> None:
    model = make()
    strategy = naive(model, LwFPlugin(), optimizer=optimizer(model.parameters(), lr=0.01))
    for experience in EXPERIENCES:
        strategy.train(experience)
    assert strategy.clock.train_exp_counter == 2


@pytest.mark.filterwarnings("ignore:.*cannot be vectorised", "ignore:There is a performance drop")
@pytest.mark.parametrize("method", ALL)
def test_sparse_gradients_with_another_optimizer(method: str) -> None:
    torch.manual_seed(0)
    model = Words()
    strategy = naive(model, ALL[method](), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for experience in EXPERIENCES:
        strategy.train(experience)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(20), nn.ReLU(), nn.LazyLinear(10))


@pytest.mark.parametrize("method", ["si", "rwalk"])
def test_lazy_layers_are_refused_until_the_model_has_been_called(method: str) -> None:
    strategy = naive(lazy(), ALL[method]())
    with pytest.raises(ModelError, match=r"'0.weight' has no shape yet.*Call the model once"):
        strategy.train(EXPERIENCES[0])
    assert steps_of(strategy) == 0
    strategy.model(torch.zeros(1, 64))
    strategy.train(EXPERIENCES[0])


@pytest.mark.parametrize("method", ["ewc", "mas", "a-gem", "lwf"])
def test_lazy_layers_are_no_hindrance_to_the_others(method: str) -> None:
    strategy = naive(lazy(), ALL[method]())
    for experience in EXPERIENCES:
        strategy.train(experience)


def test_rwalk_refuses_a_training_without_epochs() -> None:
    with pytest.raises(SettingError, match=r"train_epochs=0 trains nothing.*train_epochs=1"):
        naive(mlp(), RWalkPlugin(), train_epochs=0).train(EXPERIENCES[0])


@pytest.mark.parametrize("method", ALL)
def test_a_plugin_of_another_run_warns_and_one_that_loads_its_own_state_goes_on(
    method: str,
) -> None:
    torch.manual_seed(0)
    plugin = ALL[method]()
    model = trained(mlp, plugin, EXPERIENCES[:1]).model
    with pytest.warns(UserWarning, match=r"another strategy already.*Make a new plugin for every"):
        naive(model, plugin).train(EXPERIENCES[1])

    plugin = ALL[method]()
    one = trained(mlp, plugin, EXPERIENCES[:1])
    plugin.load_state_dict(plugin.state_dict())
    other = naive(one.model, plugin)
    other.train(EXPERIENCES[1])
    assert other.clock.train_exp_counter == 2


@pytest.mark.parametrize("method", ALL)
def test_a_plugin_of_one_run_does_not_warn(method: str, recwarn: pytest.WarningsRecorder) -> None:
    strategy = trained(mlp, ALL[method](), EXPERIENCES)
    assert not [str(w.message) for w in recwarn if "another strategy" in str(w.message)]
    assert not same_weights(strategy, trained(mlp, None, EXPERIENCES))
