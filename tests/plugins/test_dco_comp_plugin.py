"""What DCO-COMP adds to DCO: constant memory and constant time per step."""

import os
import subprocess
import sys

import pytest
import torch
from avalanche.models import IncrementalClassifier, MultiHeadClassifier, MultiTaskModule
from torch import nn

from avalanche_dco import DCOComp, DCOCompPlugin
from avalanche_dco.errors import SettingError, StateError
from avalanche_dco.plugins import dco_comp as compression_of_plugin
from avalanche_dco.plugins.support import direction_learning
from tests.support.learning import (
    QUICK,
    blobs,
    errors_on_two_permutations,
    naive,
    small_mlp,
    split_blobs,
    stream,
    train,
    trained_by,
    weights_of,
)

COMP = QUICK | {"compression_updates": 3}
EIGEN = {"k": 24, "penalty_every": 1}


class MultiHead(MultiTaskModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.head = MultiHeadClassifier(5, 2, masking=False)

    def forward(self, x, task_labels):
        return self.head(self.body(x).relu(), task_labels)


def trained(plugins):
    torch.manual_seed(0)
    model = small_mlp()
    train(model, blobs(), plugins)
    return weights_of(model)


@pytest.mark.parametrize("settings", [COMP, EIGEN])
def test_differs_from_naive_and_is_the_same_for_the_same_seed(settings):
    first = trained([DCOCompPlugin(**settings)])
    assert not torch.allclose(first, trained([]))
    assert torch.equal(first, trained([DCOCompPlugin(**settings)]))


def test_forgets_less_than_naive_on_permuted_digits():
    settings = {"gradients_per_update": 8, "autoencoder_updates": 60, "push_epochs": 2}
    settings |= {"directions": "trained", "penalty_every": 1, "couple_layers": True}
    errors = errors_on_two_permutations([DCOCompPlugin(k=128, **settings)])
    assert errors[0] < 0.8 * errors_on_two_permutations([])[0]
    assert errors[1] < 0.15


def test_the_default_forgets_less_than_naive_and_keeps_a_constant_memory():
    errors = errors_on_two_permutations([DCOCompPlugin(k=128)])
    assert errors[0] < 0.6 * errors_on_two_permutations([])[0]
    assert errors[1] < 0.15


class TestClosedForm:
    def test_memory_and_penalty_do_not_grow_with_the_experiences(self):
        plugin = DCOCompPlugin(**EIGEN)
        strategy = naive(small_mlp(), [plugin], train_epochs=1)
        kept = []
        for experience in blobs(5).train_stream:
            strategy.train(experience)
            kept.append(plugin.memory_bytes)
        widths = [f.U.shape[1] for f in plugin.penalty.directions.factors.values()]
        assert widths == [24, 8, 24, 3]
        assert len(set(kept)) == 1

    def test_the_share_that_is_lost_is_reported(self):
        strategy = train(small_mlp(), blobs(), [DCOCompPlugin(**EIGEN)])
        metrics = strategy.evaluator.get_all_metrics()
        (lost,) = metrics["DCO_CompressionError/train_phase/train_stream/Task000/Exp001"][1]
        assert 0 < lost < 1

    def test_new_task_k_is_the_number_of_samples(self):
        plugin = DCOCompPlugin(**EIGEN, new_task_k=5)
        train(small_mlp(), blobs(), [plugin])
        assert plugin.penalty.directions.factors["0.weight"].U.shape[1] == 24

    @pytest.mark.parametrize(
        "setting",
        [
            {"compression_updates": 7},
            {"compression_lr": 0.1},
            {"compression_start": "noise"},
            {"compression_loss": "directions"},
            {"shrink_new_task_k": True},
        ],
    )
    def test_settings_without_an_effect_are_refused(self, setting):
        (name,) = setting
        with pytest.raises(SettingError, match=f"{name}=.* has no effect .* in closed form"):
            DCOCompPlugin(**setting)
        DCOCompPlugin(directions="trained", **setting)

    def test_a_state_of_another_kind_of_directions_is_refused(self):
        plugin, other = DCOCompPlugin(**EIGEN), DCOCompPlugin(**(COMP | {"k": 24}))
        train(small_mlp(), blobs(), [plugin])
        with pytest.raises(StateError, match="directions"):
            other.load_state_dict(plugin.state_dict(), small_mlp())

    def test_a_parameter_frozen_since_an_earlier_experience_keeps_its_directions(self):
        model, plugin = small_mlp(), DCOCompPlugin(**EIGEN)
        strategy = naive(model, [plugin])
        first, second = blobs().train_stream
        strategy.train(first)
        model[0].requires_grad_(False)
        strategy.train(second)
        assert plugin.penalty.directions.factors["0.weight"].U.shape[1] == 12  # with its bias, k

    def test_many_heads_take_the_memory_of_one(self):
        plugin = DCOCompPlugin(**EIGEN)
        train(MultiHead(), two_classes_per_task(6), [plugin])
        heads = [f for n, f in plugin.penalty.directions.factors.items() if n.startswith("head")]
        assert len(heads) == 12
        assert sum(f.U.shape[1] for f in heads[:-2]) <= 24


def test_memory_and_penalty_do_not_grow_with_the_experiences():
    plugin = DCOCompPlugin(**(COMP | {"k": 24, "couple_layers": True}))
    assert plugin.memory_bytes == 0
    strategy = naive(small_mlp(), [plugin], train_epochs=1)
    per_column = (8 + 6) + (8 + 1) + (3 + 8) + (3 + 1)
    for number, experience in enumerate(blobs(6).train_stream, start=1):
        strategy.train(experience)
        own = 24 // (2 * number)
        columns = 12 + number * own
        assert plugin.penalty.directions.k == columns <= 24
        targets = number * (12 + own)
        assert plugin.memory_bytes == 4 * (columns * (per_column + 3) + targets)
        assert plugin.memory_bytes <= 4 * 24 * (per_column + 3 + number)


def test_compression_by_gradients_or_by_directions():
    losses = ("gradients", "directions")
    plugins = {loss: DCOCompPlugin(**COMP, new_task_k=8, compression_loss=loss) for loss in losses}
    weights = {loss: trained([plugin]) for loss, plugin in plugins.items()}
    assert not torch.equal(weights["gradients"], weights["directions"])
    kept = {loss: plugin.memory_bytes for loss, plugin in plugins.items()}
    assert kept["gradients"] - kept["directions"] == 4 * plugins["gradients"].penalty.directions.k


def test_directions_that_gradients_do_not_lie_along_do_not_count(monkeypatch):
    """The shares that step 3 measured reach the compression."""
    seen, fits = [], []
    learn, fit = compression_of_plugin.compress, direction_learning.fit_directions

    def spy_fit(*args, **kwargs):
        fits.append(fit(*args, **kwargs))
        return fits[-1]

    def spy_compress(*args, **kwargs):
        seen.append(kwargs["shares"])
        return learn(*args, **kwargs)

    monkeypatch.setattr(direction_learning, "fit_directions", spy_fit)
    monkeypatch.setattr(compression_of_plugin, "compress", spy_compress)
    trained([DCOCompPlugin(**COMP)])
    assert all(torch.equal(shares, f.shares) for shares, f in zip(seen, fits, strict=True))
    assert all((shares > 0).all() and shares.sum() < 2 for shares in seen)


def test_shared_directions_count_once_per_experience():
    plugin = DCOCompPlugin(**COMP)
    train(small_mlp(), blobs(3), [plugin])
    assert plugin.penalty.weights[: plugin.k // 2].tolist() == [3.0] * (plugin.k // 2)
    assert set(plugin.penalty.weights[plugin.k // 2 :].tolist()) == {1.0}


def test_penalty_and_compression_error_are_reported():
    strategy = train(small_mlp(), blobs(), [DCOCompPlugin(**COMP)])
    metrics = strategy.evaluator.get_all_metrics()
    name = "DCO_CompressionError/train_phase/train_stream/Task000/Exp001"
    assert metrics[name][0] == [0, 1, 2]
    (penalties,) = (v for n, (_, v) in metrics.items() if n.startswith("DCO_Penalty"))
    assert all(value > 0 for value in penalties)


@pytest.mark.parametrize("settings", [COMP, EIGEN])
def test_growing_head(settings):
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 5)
            self.head = IncrementalClassifier(5, initial_out_features=2)

        def forward(self, x):
            return self.head(self.body(x).relu())

    plugin = DCOCompPlugin(**settings)
    train(Growing(), split_blobs(3), [plugin])
    assert plugin.penalty.directions.factors["head.classifier.weight"].shape == (6, 5)


def test_parameter_frozen_since_an_earlier_experience():
    model, plugin = small_mlp(), DCOCompPlugin(**COMP)
    strategy = naive(model, [plugin])
    first, second = blobs().train_stream
    strategy.train(first)
    model[0].requires_grad_(False)
    strategy.train(second)
    assert "0.weight" in plugin.penalty.directions.factors


def test_more_experiences_than_directions_is_told():
    plugin = DCOCompPlugin(**(COMP | {"k": 4}))
    with pytest.warns(UserWarning, match=r"k=4 is less than two directions for each of 3"):
        train(small_mlp(), blobs(3), [plugin])


def test_same_numbers_in_another_process():
    """Whatever order Python's sets have there."""
    code = (
        "import torch; from tests.support.learning import *; import avalanche_dco as dco\n"
        "for plugin in (dco.DCOPlugin(**QUICK), dco.DCOCompPlugin(**QUICK)):\n"
        "    torch.manual_seed(0); model = small_mlp(); train(model, blobs(), [plugin])\n"
        "    print(weights_of(model).tolist())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert len(set(printed.pop().splitlines())) == 2  # DCO and DCO-COMP differ


def test_filter_and_switch_off():
    plugin = DCOCompPlugin(**COMP, parameter_filter=lambda name, p: p.ndim > 1)
    train(small_mlp(), blobs(), [plugin])
    assert plugin.penalty.directions.factors.keys() == {"0.weight", "2.weight"}
    off = DCOCompPlugin(dco_lambda=0.0, push_epochs=0, autoencoder_updates=0)
    assert torch.equal(trained([off]), trained([]))


def test_strategy_equals_naive_with_the_plugin():
    assert torch.equal(trained_by(DCOComp, **COMP), trained([DCOCompPlugin(**COMP)]))
    with pytest.raises(TypeError, match="kk"):
        trained_by(DCOComp, kk=3)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("k", 1),
        ("new_task_k", 0),
        ("compression_updates", 0),
        ("compression_lr", 0.0),
        ("compression_start", "largest"),
        ("compression_loss", "codes"),
        ("theta", -1),
    ],
)
def test_argument_out_of_range_is_refused_at_once(argument, value):
    with pytest.raises(SettingError, match=rf"^{argument}=.* must be "):
        DCOCompPlugin(**{argument: value})


def two_classes_per_task(tasks):
    labels = torch.arange(48) % 2
    return stream([torch.randn(48, 6) for _ in range(tasks)], [labels] * tasks, list(range(tasks)))


def test_memory_with_a_head_per_task_grows_by_the_targets_alone():
    plugin = DCOCompPlugin(**(COMP | {"k": 24}))
    strategy = naive(MultiHead(), [plugin], train_epochs=1)
    body, head = (5 + 6) + (5 + 1), (2 + 5) + (2 + 1)
    for number, experience in enumerate(two_classes_per_task(6).train_stream, start=1):
        strategy.train(experience)
        own = number * (24 // (2 * number))
        of_heads = own if number > 1 else 24
        numbers = (12 + own) * body + of_heads * head
        assert plugin.penalty.directions.nbytes == 4 * numbers


@pytest.mark.parametrize("settings", [COMP, EIGEN])
@pytest.mark.filterwarnings("error:Experience")
def test_memory_is_foretold_with_a_head_per_task(settings):
    def trained_with(limits):
        plugin = DCOCompPlugin(**settings)
        strategy = naive(MultiHead(), [plugin], train_epochs=1)
        kept = []
        for limit, experience in zip(limits, two_classes_per_task(4).train_stream, strict=True):
            plugin.max_bytes = limit
            strategy.train(experience)
            kept.append(plugin.memory_bytes)
        return kept

    kept = trained_with([None] * 4)
    assert trained_with([kept[0], None, *(1.5 * n for n in kept[2:])]) == kept  # no warning
    with pytest.raises(UserWarning, match="may keep"):
        trained_with([None, None, None, kept[3] - 1])


@pytest.mark.parametrize("shrink", [False, True])
def test_later_experiences_learn_fewer_directions_if_told_to(monkeypatch, shrink):
    learned = []
    fit = direction_learning.fit_directions

    def spy(directions, sample, **settings):
        learned.append((directions.k, settings["lr_decay"], settings["layer_weights"]))
        return fit(directions, sample, **settings)

    monkeypatch.setattr(direction_learning, "fit_directions", spy)
    plugin = DCOCompPlugin(
        **COMP,
        new_task_k=7,
        shrink_new_task_k=shrink,
        autoencoder_lr_decay=0.9,
        layer_weights="decreasing",
    )
    train(small_mlp(), blobs(3), [plugin])
    assert [k for k, _, _ in learned] == ([7, 3, 2] if shrink else [7, 7, 7])
    assert {decay for _, decay, _ in learned} == {0.9}
    of_first_layer, of_last_layer = {"0.weight": 2, "0.bias": 2}, {"2.weight": 1, "2.bias": 1}
    assert learned[0][2] == of_first_layer | of_last_layer


@pytest.mark.parametrize("benchmark", ["", "split-mnist", "mnist-fashion"])
def test_it_trains_with_the_published_settings(benchmark):
    published = DCOCompPlugin.published(benchmark) | COMP
    plugin = DCOCompPlugin(**published | {"new_task_k": 6, "gradient_source": "criterion"})
    train(small_mlp(), blobs(3), [plugin])
    state = plugin.state_dict()["memory"]["tasks"]
    assert state["shares"] is None  # all directions count alike
    assert len(state["targets"]) == 3
