"""States with a right checksum and a wrong structure: one typed error, and nothing is loaded."""

from __future__ import annotations

import pytest
import torch

from avalanche_dco.errors import DCOError, StateError
from avalanche_dco.plugins.support.kept import checksum
from benchmarks.studies.faults.in_files import forgeries
from tests.support.checkpointed import PLUGINS, make_strategy, short_digits

pytestmark = pytest.mark.filterwarnings("ignore:.*Plugin does not protect", "ignore:k=6 is less")


@pytest.fixture(scope="module")
def digits():
    return short_digits(2)


def sealed(state, **entries):
    content = {name: value for name, value in (state | entries).items() if name != "checksum"}
    return content | {"checksum": checksum(content)}


@pytest.fixture(scope="module", params=PLUGINS)
def learned(request, digits):
    """A method, its strategy after an experience, and the plugin's state."""
    strategy = make_strategy(request.param, train_epochs=1)
    strategy.train(digits.train_stream[0])
    return request.param, strategy, strategy.plugins[0].state_dict()


def test_forged_states_are_refused_and_change_nothing(learned, digits):
    method, strategy, state = learned
    plugin = PLUGINS[method]()
    plugin.load_state_dict(sealed(state), strategy.model)  # that is how they are sealed
    tried = 0
    for what, forged in forgeries(state):
        tried += 1
        try:
            plugin.load_state_dict(forged, strategy.model)
        except StateError:
            continue
        # The shapes of buffers are known once there is a model.
        assert what.startswith("memory.teacher"), what
        fresh = make_strategy(method)
        fresh.plugins[0].load_state_dict(forged, fresh.model)
        with pytest.raises(StateError, match="another model"):
            fresh.train(digits.train_stream[1])
        plugin.load_state_dict(state)
    assert tried > 50
    assert plugin.state_dict()["checksum"] == state["checksum"]


def test_a_table_without_a_parameter_ends_in_no_bare_error(learned, digits):
    method, strategy, state = learned
    tables = [
        name for name, table in state["memory"].items() if isinstance(table, dict) and len(table)
    ]
    for name in tables:
        table = dict(state["memory"][name])
        del table[next(iter(table))]
        forged = sealed(state, memory=state["memory"] | {name: table})
        fresh = make_strategy(method, train_epochs=1)
        fresh.model.load_state_dict(strategy.model.state_dict())
        try:
            fresh.plugins[0].load_state_dict(forged, fresh.model)
            fresh.train(digits.train_stream[1])
        except DCOError:
            continue


def test_a_state_with_a_sparse_tensor_or_endless_lists_is_refused(learned):
    method, _, state = learned
    endless: list = []
    for _ in range(10_000):
        endless = [endless]
    for odd in (torch.eye(3).to_sparse(), endless):
        with pytest.raises(StateError, match="plain data"):
            PLUGINS[method]().load_state_dict(state | {"settings": odd})


def test_memory_bytes_are_those_of_the_tensors_in_the_state(learned):
    method, strategy, state = learned
    plugin = PLUGINS[method]()
    assert plugin.memory_bytes == 0
    plugin.load_state_dict(sealed(state), strategy.model)
    kept = strategy.plugins[0].memory_bytes
    assert plugin.memory_bytes == kept > 0
    if not method.startswith("dco-comp"):  # whose penalty is counted and made from the state
        assert kept == sum(tensor.nbytes for tensor in tensors_of(state["memory"]))


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]
