"""The speed study measures everything it promises, and what it compares computes the same."""

import numpy as np
import pytest
import torch

from avalanche_dco.core.directions import Directions
from avalanche_dco.models import mlp_256
from benchmarks.__main__ import main
from benchmarks.commands import tables
from benchmarks.runs.kept import read_measurements, study_path
from benchmarks.studies.speed import core, training
from tests.support.problems import weights


def test_convolutions_are_the_encoder_and_the_decoder():
    U, V = torch.randn(3, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    G = weights({"w": (3, 4)}, 0)["w"]
    code = core.encode(G, U, V)
    torch.testing.assert_close(code, torch.einsum("rk,rc,ck->k", U, G, V))
    torch.testing.assert_close(core.decode(code, U, V), (U * code) @ V.T)
    autoencoder = core.AutogradAutoencoder(Directions.random({"w": G}, 5))
    before = autoencoder.layers["w"][0].detach().clone()
    autoencoder.observe({"w": G})
    autoencoder.update()
    assert not torch.equal(autoencoder.layers["w"][0], before)


def test_both_ways_to_the_fisher_information_agree():
    model, x, y = mlp_256().eval(), torch.randn(20, 784), torch.randint(10, (20,))
    slow, fast = training.one_by_one(model, x, y), training.in_batches(model, x, y)
    for name, value in slow.items():
        torch.testing.assert_close(fast[name], value)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    options = ["--quick", "--threads", "1", "--out", str(study_path("speed", folder))]
    assert main(["speed", *options]) == 0
    return folder


def test_everything_is_measured(results):
    frame, config = read_measurements(study_path("speed", results))
    assert config["threads"] == "1"
    assert ">Past tasks</text>" in (results / "speed.svg").read_text()
    by_part = dict(list(frame.groupby("part")))
    assert sorted(by_part) == ["autoencoder", "growth", "others", "penalty", "tasks", "training"]
    forms = ("gradient step, coupled", "gradient step, uncoupled", "implicit step, coupled",
             "implicit step, uncoupled")  # fmt: skip
    for form in forms:
        assert by_part["penalty"]["case"].str.startswith(form).any()
    assert set(by_part["growth"]["against"]) == {"k", "d", "tasks"}
    ratios = frame["ratio"].dropna()
    assert len(ratios) > 20
    assert (ratios > 0).all()
    memory = by_part["tasks"].pivot(index="case", columns="at", values="memory_mb")
    assert memory.loc["DCO", 4] == pytest.approx(2 * memory.loc["DCO", 2])
    assert memory.loc["DCO-KRON", 4] == memory.loc["DCO-KRON", 2]
    trained = by_part["training"].set_index("case")
    assert trained.loc["split-digits: naive", "ratio"] == 1
    assert set(trained.index) == {f"split-digits: {method}" for method in training.METHODS}


@pytest.mark.parametrize("part", ["steps", "others", "tasks", "growth", "training"])
def test_every_part_has_a_table(results, part):
    lines = tables.make_table(["speed", part], results).splitlines()
    assert 3 <= lines[0].count("|") <= 7
    assert len(lines) > 4


def test_growth_is_the_exponent():
    row = core._growth("x", "k", [1, 2, 4, 8], [3.0 * n**1.5 for n in (1, 2, 4, 8)])
    assert row["slope"] == pytest.approx(1.5)


def test_actions_take_turns():
    calls = []
    times = core.alternately(2, {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")})
    assert calls == ["a", "b"] * 3
    assert np.isfinite(list(times.values())).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--threads", "0"], "--threads 0"), (["--data-root", "/nowhere"], "MNIST/raw")],
)
def test_what_cannot_be_measured_is_refused(options, message, capsys):
    assert main(["speed", *options]) == 2
    assert message in capsys.readouterr().err
