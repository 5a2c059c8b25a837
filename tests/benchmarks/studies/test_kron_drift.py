"""What the curvature of a learned task predicts, and how far its outputs really move."""

import pytest
import torch
from torch import nn

from avalanche_dco.core.kronecker import Curvature, KroneckerFactors
from benchmarks.__main__ import main
from benchmarks.commands.tables import make_table
from benchmarks.runs.kept import read_measurements, study_path
from benchmarks.studies.kron_drift import drift


def exact_curvature(network, images):
    """Of a linear network: A is the second moment of the inputs, S the identity."""
    moment = images.mT @ images / len(images)
    outputs, _ = network.weight.shape
    identity = torch.eye(outputs, dtype=moment.dtype)
    return Curvature({"weight": KroneckerFactors(moment[None], identity[None])}, tasks=1)


def test_a_linear_network_moves_as_predicted():
    network = nn.Linear(5, 3, bias=False).double()
    images = torch.randn(40, 5, dtype=torch.float64)
    before = {"weight": network.weight.detach().clone()}
    after = {"weight": before["weight"] + torch.randn(3, 5, dtype=torch.float64)}
    found = drift(network, before, after, exact_curvature(network, images), images)
    change = images @ (after["weight"] - before["weight"]).mT
    assert found["actual"] == pytest.approx(float(change.square().sum(1).mean()))
    assert found["predicted"] == pytest.approx(found["actual"])
    assert found["first_order"] == pytest.approx(found["actual"])
    assert found["half_way"] == pytest.approx(found["actual"] / 4)


def test_products_of_changes_are_not_in_the_first_order():
    """y = w2 w1 x with w1 = w2 = 0: neither weight alone changes the output."""
    network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    before = {name: torch.zeros(1, 1) for name in ("0.weight", "1.weight")}
    after = {name: torch.ones(1, 1) for name in before}
    found = drift(network, before, after, Curvature(), torch.ones(4, 1))
    assert (found["first_order"], found["half_way"], found["actual"]) == (0.0, 0.0625, 1.0)


def test_the_command_measures_and_the_table_shows_it(tmp_path, capsys):
    path = study_path("kron-drift", tmp_path)
    quick = ["--benchmark", "permuted-digits", "--seeds", "1", "--images", "50"]
    assert main(["kron-drift", *quick, "--strengths", "10", "--out", str(path)]) == 0
    table, made = read_measurements(path)
    assert made["benchmark"] == "permuted-digits"
    (row,) = table.to_dict("records")
    assert row["strength"] == 10
    assert row["predicted"] > 0
    assert row["first_order"] > 0
    assert 0 < row["half_way"] < row["actual"]
    header, _, shown = make_table(["kron-drift"], tmp_path).splitlines()
    assert header.count("|") <= 7
    assert shown.startswith("| 10 | 1 | ")
