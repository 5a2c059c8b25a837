from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch

from avalanche_dco import seed_everything
from avalanche_dco.errors import SettingError
from tests.support.checkpointed import PLUGINS, fingerprint, finish, make_strategy, short_digits


@pytest.fixture(autouse=True)
def _settings_kept(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_every_generator_is_seeded():
    seed_everything(3)
    first = drawn()
    assert drawn() != first
    seed_everything(3)
    assert drawn() == first
    seed_everything(4)
    assert all(a != b for a, b in zip(drawn(), first, strict=True))


def test_gpus_are_told_to_be_deterministic(monkeypatch):
    seed_everything(0)
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    seed_everything(0)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "1", True, None])
def test_seeds_that_are_none(seed):
    with pytest.raises(SettingError, match=r"must be a whole number of at least 0 and at most"):
        seed_everything(seed)


def trained(method: str, seed: int) -> str:
    strategy = make_strategy(method, seed)
    finish(strategy, short_digits(2, samples=64), 0, 2)
    return fingerprint(strategy)


@pytest.mark.filterwarnings("ignore:.*Plugin does not protect")
@pytest.mark.parametrize("method", PLUGINS)
def test_the_same_seed_gives_the_same_results_twice_in_one_process(method):
    """For two processes see TestBitForBit in test_checkpoint.py."""
    assert trained(method, 5) == trained(method, 5)


def test_another_seed_gives_other_results():
    assert trained("ewc", 5) != trained("ewc", 6)
