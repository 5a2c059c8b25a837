from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from avalanche.models import SimpleMLP
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_dco import DCOCompPlugin, DCOKronPlugin, DCOPlugin, GPMPlugin
from avalanche_dco.baselines import AGEMPlugin, EWCPlugin, LwFPlugin, SynapticIntelligencePlugin
from avalanche_dco.errors import CheckpointError, StateError
from avalanche_dco.persistence import checkpoint, load_plugin_state, save_plugin_state
from avalanche_dco.persistence.states import device_map
from avalanche_dco.plugins.support import state as states
from avalanche_dco.plugins.support.kept import tensors_in
from tests.support.checkpointed import PLUGINS, QUICK, make_strategy, short_digits
from tests.support.learning import blobs, naive, small_mlp, split_blobs, train, weights_of
from tests.support.small_runs import GrowingMLP

pytestmark = pytest.mark.filterwarnings("ignore:.*Plugin does not protect", "ignore:k=6 is less")


def plain_parts(value: Any) -> Iterator[Any]:
    """All leaves of a nested value, and the types of what holds them."""
    if type(value) in (dict, list):
        for part in [*value, *value.values()] if type(value) is dict else value:
            yield from plain_parts(part)
    else:
        yield value


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True, map_location="cpu")


@pytest.fixture(scope="module")
def digits():
    return short_digits(3)


def plain_sgd(method: str) -> Any:
    """Without momentum: Avalanche empties the optimizer's state when a strategy starts."""
    strategy = make_strategy(method, evaluator=EvaluationPlugin(loggers=[]))
    strategy.optimizer = torch.optim.SGD(strategy.model.parameters(), lr=0.05)
    return strategy


@pytest.mark.parametrize("method", PLUGINS)
def test_a_run_goes_on_from_plain_states(method, digits):
    whole = plain_sgd(method)
    for experience in digits.train_stream[:2]:
        whole.train(experience)
    state = through_a_file(whole.plugins[0].state_dict())
    weights = {name: value.clone() for name, value in whole.model.state_dict().items()}
    assert all(
        isinstance(part, torch.Tensor | int | float | str | None) for part in plain_parts(state)
    )

    torch.manual_seed(9)
    whole.train(digits.train_stream[2])
    continued = plain_sgd(method)
    continued.model.load_state_dict(weights)
    continued.plugins[0].load_state_dict(state, continued.model)
    again = continued.plugins[0].state_dict()
    assert again["checksum"] == state["checksum"]
    torch.manual_seed(9)
    continued.train(digits.train_stream[2])
    assert torch.equal(weights_of(continued.model), weights_of(whole.model))
    assert continued.clock.train_exp_counter == 3
    assert continued.clock.train_iterations == whole.clock.train_iterations
    final = continued.plugins[0].state_dict()["checksum"]
    if method != "a-gem":  # draws its patterns from Python's generator
        assert final == whole.plugins[0].state_dict()["checksum"]


@pytest.mark.parametrize("method", PLUGINS)
def test_an_untrained_plugin_has_an_empty_state(method):
    plugin = PLUGINS[method]()
    state = through_a_file(plugin.state_dict())
    assert state["memory"] is None
    PLUGINS[method]().load_state_dict(state)


@pytest.mark.parametrize(
    "make", [lambda: DCOPlugin(**QUICK), DCOKronPlugin, lambda: EWCPlugin(1.0), LwFPlugin]
)
def test_a_head_that_grows_after_loading(make):
    stream = split_blobs(3).train_stream
    model = GrowingMLP()
    model.features[0] = nn.Linear(6, 20)
    strategy = train(model, split_blobs(2), [make()])
    state = through_a_file(strategy.plugins[0].state_dict())
    plugin = make()
    plugin.load_state_dict(state)
    continued = naive(model, [plugin])
    continued.train(stream[2])
    assert continued.clock.train_exp_counter == 3
    assert model.classifier.classifier.weight.shape[0] == 6


class TestRefusals:
    @pytest.fixture
    def state(self):
        return train(small_mlp(), blobs(1), [DCOCompPlugin(**QUICK)]).plugins[0].state_dict()

    def refused(self, plugin, state, reason, **arguments):
        before = plugin.state_dict()["checksum"]
        with pytest.raises(StateError, match=reason):
            plugin.load_state_dict(state, **arguments)
        assert plugin.state_dict()["checksum"] == before

    def test_something_else(self, state):
        for other in ({}, [], None, {"weight": torch.ones(3)}):
            self.refused(DCOCompPlugin(**QUICK), other, "not the state of a plugin")

    def test_another_plugin(self, state):
        self.refused(DCOPlugin(**QUICK), state, "that of DCOCompPlugin, and this is DCOPlugin")

    def test_another_format(self, state, monkeypatch):
        monkeypatch.setattr(states, "FORMAT", 2)
        self.refused(DCOCompPlugin(**QUICK), state, "has format 1, .* reads 2")

    def test_another_setting(self, state):
        other = QUICK | {"k": 10}
        self.refused(DCOCompPlugin(**other), state, "made with k=6, and this .* has k=10")
        plain = DCOCompPlugin(**QUICK, compression_loss="directions")
        self.refused(plain, state, "made with compression_loss='gradients'")
        coupled = DCOCompPlugin(**QUICK, couple_layers=True)
        self.refused(coupled, state, "made with couple_layers=False")
        online = EWCPlugin(1.0, mode="online", decay_factor=0.5)
        separate = train(small_mlp(), blobs(1), [EWCPlugin(1.0)]).plugins[0].state_dict()
        self.refused(online, separate, "mode='separate'")

    def test_something_changed(self, state):
        def changed(**entries):
            return through_a_file(state) | entries

        self.refused(DCOCompPlugin(**QUICK), changed(clock=state["clock"] | {"x": 1}), "checksum")
        copy = through_a_file(state)
        factors = copy["memory"]["tasks"]["directions"]["factors"]["0.weight"]
        factors["U"][0, 0] += 1e-6
        self.refused(DCOCompPlugin(**QUICK), copy, "checksum")
        del copy["memory"]
        self.refused(DCOCompPlugin(**QUICK), copy, "checksum")

    def test_another_model_at_once_or_when_training_starts(self, state):
        wider = small_mlp(inputs=5)
        reason = r"'0.weight' has shape \[8, 6\] in the state and has shape \[8, 5\] in"
        self.refused(DCOCompPlugin(**QUICK), state, reason, model=wider)
        plugin = DCOCompPlugin(**QUICK)
        plugin.load_state_dict(state)
        strategy = naive(wider, [plugin])
        before = weights_of(wider)
        with pytest.raises(StateError, match=reason):
            strategy.train(blobs(1, shape=(5,)).train_stream[0])
        assert torch.equal(weights_of(wider), before)

    @pytest.mark.parametrize("method", ["dco", "dco-comp", "si"])
    def test_a_wider_or_deeper_model(self, method):
        def mlp(**sizes):
            return SimpleMLP(**({"num_classes": 3, "input_size": 6, "hidden_size": 10} | sizes))

        learned = train(mlp(), blobs(1), [PLUGINS[method]()]).plugins[0]
        state = through_a_file(learned.state_dict())
        wider = r"has shape \[10, 6\] in the state and has shape \[12, 6\] in this"
        self.refused(PLUGINS[method](), state, wider, model=mlp(hidden_size=12))
        deeper = r"parameter 'features\.3\.0\.weight' is missing in the state"
        self.refused(PLUGINS[method](), state, deeper, model=mlp(hidden_layers=2))
        PLUGINS[method]().load_state_dict(state, mlp())

    def test_a_model_that_lacks_a_parameter(self, state):
        smaller = nn.Sequential(nn.Linear(6, 8))
        self.refused(
            DCOCompPlugin(**QUICK),
            state,
            "'2.weight' has shape .* missing in",
            model=smaller,
        )

    def test_a_strategy_that_has_trained_something_else(self, state):
        stream = blobs(3).train_stream
        plugin = DCOCompPlugin(**QUICK)
        strategy = train(small_mlp(), blobs(2), [plugin])
        plugin.load_state_dict(state)
        with pytest.raises(StateError, match=r"knows 1 experiences, but .* has trained 2"):
            strategy.train(stream[2])

    def test_an_empty_state_for_a_plugin_that_has_learned(self):
        plugin = train(small_mlp(), blobs(1), [EWCPlugin(1.0)]).plugins[0]
        self.refused(plugin, EWCPlugin(1.0).state_dict(), "learned nothing yet")

    def test_in_the_middle_of_an_experience(self):
        class Interrupts(EvaluationPlugin):
            def after_training_epoch(self, strategy, **kwargs):
                raise KeyboardInterrupt

        plugin = SynapticIntelligencePlugin(1.0)
        strategy = naive(small_mlp(), [plugin], evaluator=Interrupts(loggers=[]))
        with pytest.raises(KeyboardInterrupt):
            strategy.train(blobs(1).train_stream[0])
        with pytest.raises(StateError, match="in the middle of an experience"):
            plugin.state_dict()

    def test_patterns_that_are_not_tensors(self, digits, monkeypatch):
        strategy = make_strategy("a-gem")
        strategy.train(digits.train_stream[0])
        monkeypatch.setattr("avalanche_dco.plugins.support.sampling.CACHE_BYTES", 10)
        with pytest.raises(StateError, match="cannot be written as tensors"):
            strategy.plugins[0].state_dict()

    def test_a_teacher_of_another_shape(self, digits):
        strategy = make_strategy("lwf")
        strategy.train(digits.train_stream[0])
        state = through_a_file(strategy.plugins[0].state_dict())
        other = make_strategy("lwf")
        other.model.register_buffer("extra", torch.zeros(1))
        other.plugins[0].load_state_dict(state)
        with pytest.raises(StateError, match="another model than the one to be trained"):
            other.train(digits.train_stream[1])


class TestFiles:
    def test_a_file_is_plain_and_goes_back(self, digits, tmp_path):
        strategy = make_strategy("gpm")
        strategy.train(digits.train_stream[0])
        path = tmp_path / "gpm.pt"
        save_plugin_state(strategy.plugins[0], path)
        assert torch.load(path, weights_only=True)["plugin"] == "GPMPlugin"
        plugin = GPMPlugin(0.9)
        load_plugin_state(plugin, path, map_location="cpu", model=strategy.model)
        for name, basis in strategy.plugins[0].bases.items():
            assert torch.equal(plugin.bases[name], basis)

    def test_files_that_are_none(self, tmp_path):
        with pytest.raises(CheckpointError, match="does not exist"):
            load_plugin_state(EWCPlugin(1.0), tmp_path / "none.pt")
        (tmp_path / "text.pt").write_text("Hello")
        with pytest.raises(CheckpointError, match="damaged, or is not a file of plain tensors"):
            load_plugin_state(EWCPlugin(1.0), tmp_path / "text.pt")
        with pytest.raises(CheckpointError, match="map_location='cuda:77' names no device"):
            load_plugin_state(EWCPlugin(1.0), tmp_path / "text.pt", map_location="cuda:77")

    def test_no_code_runs(self, tmp_path):
        class Evil:
            def __reduce__(self):
                return (open, (str(tmp_path / "written"), "w"))

        torch.save({"kind": Evil()}, tmp_path / "evil.pt")
        with pytest.raises(CheckpointError, match="not a file of plain tensors"):
            load_plugin_state(EWCPlugin(1.0), tmp_path / "evil.pt")
        assert not (tmp_path / "written").exists()


class TestDevices:
    """There may be no GPU, but ``meta`` is a device, too."""

    @pytest.mark.parametrize("method", ["ewc", "mas", "rwalk", "gpm", "lwf"])
    def test_the_memory_goes_where_the_model_is(self, method, digits):
        strategy = make_strategy(method)
        strategy.train(digits.train_stream[0])
        plugin = strategy.plugins[0]
        plugin._move_memory(strategy.model.to("meta"))
        assert {tensor.device.type for tensor in tensors_in(plugin._memory())} == {"meta"}

    @pytest.mark.parametrize("method", ["dco", "dco-comp"])
    def test_so_do_directions(self, method, digits):
        strategy = make_strategy(method)
        strategy.train(digits.train_stream[0])
        plugin = strategy.plugins[0]
        plugin.penalty = plugin.penalty.adapted_to(
            {name: p.to("meta") for name, p in strategy.model.named_parameters()}
        )
        tensors = tensors_in(plugin.penalty.state())
        assert {tensor.device.type for tensor in tensors} == {"meta"}

    def test_a_checkpoint_moves_the_model(self, digits):
        strategy = make_strategy("ewc")
        strategy.train(digits.train_stream[0])
        checkpoint._move(strategy, torch.device("meta"))
        assert strategy.device == torch.device("meta")
        assert {p.device.type for p in strategy.model.parameters()} == {"meta"}

    def test_gpus_that_are_not_there_are_mapped(self):
        assert device_map("cpu")["cuda:3"] == "cpu"
        assert device_map("meta")["cpu"] == "cpu"
        assert device_map({"cuda:0": torch.device("cpu")}) == {"cuda:0": "cpu", "cuda": "cpu"}
        assert device_map(None) is None


def test_a_gem_keeps_its_patterns(digits):
    strategy = make_strategy("a-gem")
    strategy.train(digits.train_stream[0])
    plugin = AGEMPlugin(20, 12)
    plugin.load_state_dict(through_a_file(strategy.plugins[0].state_dict()))
    for (x, y, task), (x_again, y_again, task_again) in zip(
        strategy.plugins[0].buffers[0], plugin.buffers[0], strict=True
    ):
        assert torch.equal(x, x_again)
        assert (int(y), task) == (int(y_again), task_again)
