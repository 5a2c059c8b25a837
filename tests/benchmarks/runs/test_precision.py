"""Training in bfloat16: rounded products in training, none in evaluation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from avalanche_dco.errors import SettingError
from avalanche_dco.models import ConvNet, TaskMasked
from benchmarks.__main__ import main
from benchmarks.report.settings import difference_words
from benchmarks.runs.training import Bfloat16Training, Training
from benchmarks.streams.catalogue import TASKS
from tests.support.run_folders import matrix_of


def gradients(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(2)  # the same dropout
    loss = nn.functional.cross_entropy(network(x), y)
    parts = torch.autograd.grad(loss, list(network.parameters()))
    assert all(part.dtype == torch.float32 for part in parts)
    return torch.cat([part.flatten() for part in parts])


def test_training_is_rounded_to_bfloat16_and_points_the_same_way() -> None:
    torch.manual_seed(1)
    network = ConvNet(10)
    x, y = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    exact, rounded = gradients(network, x, y), gradients(Bfloat16Training(network), x, y)
    assert not torch.allclose(exact, rounded, rtol=1e-5, atol=0)
    assert torch.cosine_similarity(exact, rounded, dim=0) > 0.99


def test_eval_mode_is_not_rounded() -> None:
    torch.manual_seed(1)
    network = ConvNet(10).eval()
    x = torch.randn(4, 3, 32, 32)
    assert torch.equal(Bfloat16Training(network).eval()(x), network(x))


def test_outputs_are_float32_in_training() -> None:
    assert Bfloat16Training(nn.Linear(3, 2))(torch.randn(4, 3)).dtype == torch.float32


def test_the_mask_stays_outside() -> None:
    model = TASKS["split-cifar10"].model(10, "bfloat16")
    assert isinstance(model, TaskMasked)
    assert isinstance(model.network, Bfloat16Training)


def test_an_unknown_precision_is_refused_and_the_usual_one_leaves_no_trace() -> None:
    with pytest.raises(SettingError, match=r"float16.*bfloat16"):
        Training(1, 1, 0.1, 0.0, precision="float16")
    assert "precision" not in Training(1, 1, 0.1, 0.0).as_json()
    assert Training(1, 1, 0.1, 0.0, precision="bfloat16").as_json()["precision"] == "bfloat16"


def test_a_report_tells_precisions_apart() -> None:
    assert difference_words({}, [{"precision": "bfloat16"}]) == ["float32"]
    assert difference_words({"precision": "bfloat16"}, [{}]) == ["bfloat16"]


@pytest.mark.parametrize("method", ["ewc", "gpm", "dco", "mas", "lwf"])
def test_methods_learn_in_bfloat16(tmp_path: Path, method: str) -> None:
    errors = {}
    for precision in ("float32", "bfloat16"):
        out = tmp_path / precision
        command = ["run", "--benchmark", "split-digits", "--methods", method, "--out", str(out)]
        command += ["--training", "epochs=2", "--training", f"precision={precision}"]
        if method == "dco":
            command += ["--set", "k=10", "--set", "push_epochs=1", "--set", "directions=sampled"]
        assert main(command) == 0
        (folder,) = out.iterdir()
        config = json.loads((folder / "config.json").read_text())
        assert config["training"].get("precision", "float32") == precision
        errors[precision] = matrix_of(folder)
    assert (errors["float32"] != errors["bfloat16"]).any()  # it was rounded
    assert np.abs(errors["float32"] - errors["bfloat16"]).mean() < 5
