"""Every speed study measures, prints and writes all of its figures."""

import json

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.studies import core_speed
from tests.support.problems import weights


@pytest.mark.parametrize("form", sorted(core_speed.FORMS))
def test_what_is_measured_against_computes_the_same(form):
    U, V = torch.randn(3, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    G = torch.stack([weights({"w": (3, 4)}, seed)["w"] for seed in range(2)])
    encode, decode, _ = core_speed.FORMS[form]
    codes = torch.einsum("rk,nrc,ck->nk", U, G, V)
    torch.testing.assert_close(encode(G, U, V), codes)
    torch.testing.assert_close(decode(codes, U, V), torch.einsum("rk,nk,ck->nrc", U, codes, V))


@pytest.fixture
def figures_of(tmp_path, capsys):
    """Runs a study and reads what it wrote."""

    def measure(*command):
        out = tmp_path / "new" / "speed.json"
        assert main([*command, "--repeats", "1", "--threads", "1", "--out", str(out)]) == 0
        written = json.loads(out.read_text())
        printed = json.loads(capsys.readouterr().out)
        assert {name: written[name] for name in printed} == printed
        assert written["versions"]["torch"]
        return written

    return measure


def test_core(figures_of):
    figures = figures_of("core-speed", "--k", "4", "--m", "3", "--tasks", "2")
    for name in (
        "update_share_of_sgemm",
        "speedup_over_convolutions",
        "speedup_over_matrices",
        "speedup_over_diagonals",
        "penalty_over_products",
    ):
        assert figures[name] > 0


def test_memory_is_constant_for_dco_comp_and_grows_for_dco(figures_of):
    figures = figures_of("compression-speed", "--k", "24", "--few", "2", "--many", "6")
    assert figures["dco"]["bytes_ratio"] == 3
    assert figures["dco_comp"]["bytes_ratio"] < 1.02  # the targets: at most k numbers per task
    assert figures["dco_comp"]["time_ratio"] > 0


def test_both_ways_to_the_fisher_information_agree(figures_of):
    figures = figures_of("ewc-fisher-speed", "--samples", "20")
    assert figures["ratio"] > 0
    assert figures["largest_relative_difference"] < 1e-5


def test_precisions(figures_of):
    figures = figures_of("precision-speed", "--batch-size", "2")
    assert len(figures["milliseconds"]) == 3
    assert all(spent > 0 for spent in figures["milliseconds"].values())


@pytest.mark.parametrize("option", ["--repeats", "--batch-size"])
def test_nothing_to_measure_is_refused(option, capsys):
    assert main(["precision-speed", option, "0"]) == 2
    assert f"{option} 0: use at least 1" in capsys.readouterr().err
