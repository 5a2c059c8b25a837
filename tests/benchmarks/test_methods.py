"""Every method: differs from Naive on a CPU, forgets less, and trains with dropout on."""

import random
from functools import cache
from typing import Any

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.utils import load_all_dataset
from torch import Tensor, nn

from avalanche_dco.errors import SettingError
from benchmarks import methods
from benchmarks.methods import METHODS, Method, get_method
from benchmarks.streams.digits import permuted_digits
from tests.support.small_runs import mlp

_DCO = {
    "k": 100,
    "gradients_per_update": 8,
    "directions": "trained",
    "autoencoder_updates": 40,
    "push_epochs": 2,
    "gradient_source": "logits",
}
TUNED: dict[str, dict[str, Any]] = {
    "dco": _DCO,
    "dco-comp": _DCO,
    "ewc": {"ewc_lambda": 100},
    "si": {"si_lambda": 10},
    "rwalk": {"ewc_lambda": 1},
    "gpm": {"threshold": (0.95, 0.99)},
    "sgp": {"alpha": 10},
    "owm": {"alpha": 1},
    "mas": {"lambda_reg": 0.01},
    "lwf": {"alpha": 1},
    "gem": {"memory_strength": 0.5},
}
BENCHMARK = permuted_digits(2)


class SeesDropout(SupervisedPlugin):
    def __init__(self) -> None:
        super().__init__()
        self.active: list[bool] = []

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        self.active.append(strategy.model[2].training)


@cache
def run(name: str) -> tuple[float, list[Tensor], list[bool]]:
    """Average test error in percent, final weights, and whether dropout was on at each step."""
    torch.manual_seed(0)
    random.seed(0)  # A-GEM fills its memory with it
    model, dropout = mlp(0.2, width=100), SeesDropout()
    method = get_method(name)
    strategy = method.make(
        TUNED.get(name, {}),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=64,
        train_epochs=5,
        eval_mb_size=512,
        plugins=[dropout],
        evaluator=None,
    )
    method.train(strategy, BENCHMARK.train_stream)
    strategy.model.eval()
    errors = []
    for experience in BENCHMARK.test_stream:
        x, y, _ = load_all_dataset(experience.dataset)
        errors.append((strategy.model(x).argmax(1) != y).float().mean().item())
    weights = [parameter.detach() for parameter in strategy.model.parameters()]
    return 100 * sum(errors) / len(errors), weights, dropout.active


RIVALS = sorted(METHODS.keys() - {"naive"})


@pytest.mark.parametrize("name", RIVALS)
def test_it_differs_from_naive(name: str) -> None:
    pairs = zip(run(name)[1], run("naive")[1], strict=True)
    assert any((a - b).abs().max() > 1e-3 for a, b in pairs)


@pytest.mark.parametrize("name", RIVALS)
def test_it_forgets_less_than_naive(name: str) -> None:
    assert run(name)[0] < run("naive")[0] - 3.0


def test_gpm_is_far_below_naive() -> None:
    assert run("gpm")[0] < run("naive")[0] / 3


@pytest.mark.parametrize("name", sorted(METHODS))
def test_dropout_stays_on_in_training(name: str) -> None:
    active = run(name)[2]
    assert active
    assert all(active)


def test_settings_are_every_combination_of_the_grid() -> None:
    method = Method("m", lambda **_: None, grid={"a": (1, 2), "b": (3, 4)})  # type: ignore[arg-type]
    assert list(method.settings()) == [
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    ]
    assert list(get_method("naive").settings()) == [{}]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_setting_of_every_grid_can_be_made(name: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for setting in METHODS[name].settings():
        METHODS[name].make(
            setting, model=model, optimizer=optimizer, criterion=nn.CrossEntropyLoss()
        )


def test_marks() -> None:
    assert {n for n, m in METHODS.items() if "replay" in m.marks} == {"a-gem", "gem", "cumulative"}
    assert {n for n, m in METHODS.items() if "bound" in m.marks} == {"joint", "cumulative"}


def test_training_reports_each_experience() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.trained: list[Any] = []

        def train(self, experiences: Any, **arguments: Any) -> None:
            self.trained.append((experiences, arguments))

    one_by_one, together = Recorder(), Recorder()
    seen: list[int] = []
    get_method("naive").train(one_by_one, "abc", seen.append, num_workers=0)  # type: ignore[arg-type]
    assert [e for e, _ in one_by_one.trained] == ["a", "b", "c"]
    assert one_by_one.trained[0][1] == {"num_workers": 0}
    get_method("joint").train(together, "abc", seen.append)  # type: ignore[arg-type]
    assert together.trained == [(["a", "b", "c"], {})]
    assert seen == [0, 1, 2, 2]


def test_unknown_names_and_settings() -> None:
    with pytest.raises(SettingError, match=r"no method 'ewcc'; choose one of \['a-gem'"):
        get_method("ewcc")
    with pytest.raises(SettingError, match=r"ewc has no setting \['lambda'\]; it has"):
        get_method("ewc").make({"lambda": 1})


def test_bic_says_why_it_is_not_offered() -> None:
    with pytest.raises(SettingError, match=r"bic: .*verbose.*no setter"):
        get_method("bic")


def test_gem_without_its_solver_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match="pip install quadprog"):
        get_method("gem").make({"memory_strength": 0.5}, model=mlp())
