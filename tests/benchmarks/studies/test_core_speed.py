import argparse
import json

import pytest
import torch

from benchmarks.studies import core_speed
from tests.support.problems import weights


@pytest.mark.parametrize("form", ["convolutions", "matrices", "diagonals"])
def test_what_is_measured_against_computes_the_same(form):
    U, V = torch.randn(3, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    G = torch.stack([weights({"w": (3, 4)}, seed)["w"] for seed in range(2)])
    encode = getattr(core_speed, f"_encode_{form}")
    decode = getattr(core_speed, f"_decode_{form}")
    codes = torch.einsum("rk,nrc,ck->nk", U, G, V)
    torch.testing.assert_close(encode(G, U, V), codes)
    torch.testing.assert_close(decode(codes, U, V), torch.einsum("rk,nk,ck->nrc", U, codes, V))


def test_all_figures_are_measured_and_written(tmp_path):
    parser = argparse.ArgumentParser()
    core_speed.add_arguments(parser)
    out = tmp_path / "speed.json"
    args = ["--k", "4", "--m", "3", "--tasks", "2", "--repeats", "1", "--out", str(out)]
    assert core_speed.run(parser.parse_args(args)) == 0
    figures = json.loads(out.read_text())
    for name in (
        "update_share_of_sgemm",
        "speedup_over_convolutions",
        "speedup_over_matrices",
        "speedup_over_diagonals",
        "penalty_over_products",
    ):
        assert figures[name] > 0
    assert figures["versions"]["torch"]
