"""The study of a ResNet measures errors, time and memory of one method and keeps them."""

import numpy as np
from torch import nn

from benchmarks.__main__ import main
from benchmarks.commands.tables import make_table
from benchmarks.runs.kept import read_study, study_path
from benchmarks.studies import resnet


def _small(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 2, 3, stride=8),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, num_classes),
    )


def test_all_methods_are_measured_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(resnet, "resnet18", _small)
    rng = np.random.default_rng(0)
    labels = np.arange(100) % 10
    images = rng.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8)
    npz, out = tmp_path / "arrays.npz", study_path("resnet", tmp_path)
    np.savez(npz, x_train=images, y_train=labels, x_test=images, y_test=labels)
    for method in resnet.METHODS:
        command = ["resnet", "--method", method, "--npz", str(npz), "--out", str(out)]
        assert main([*command, "--images", "16", "--epochs", "2"]) == 0
    assert "step_milliseconds" in capsys.readouterr().out
    runs = read_study(out).runs
    naive, dco, kron = (runs[f"resnet18-{method}-seed1"].outcome for method in resnet.METHODS)
    for outcome in (naive, dco, kron):
        assert 0 <= outcome["average"] <= 100
        assert len(outcome["step_milliseconds"]) == len(outcome["seconds_after_training"]) == 2
        for task, seconds in enumerate(outcome["seconds_of_experiences"]):
            assert seconds >= outcome["seconds_after_training"][task]
        assert outcome["peak_megabytes"] >= 0
    assert naive["memory_bytes"] == 0
    # 200 directions of convolution, normalisation and head for each of two tasks, in the second
    # only as many as a parameter has; with targets and weights.
    shapes = [(2, 27), (2, 1), (2, 1), (2, 1), (10, 32), (10, 1)]
    numbers = sum((200 + min(200, r * c)) * (r + c + 1) for r, c in shapes)
    assert dco["memory_bytes"] == 4 * (numbers + 2 * 200)
    # Factors of the convolution and the head with their biases, the normalisation's diagonal.
    assert kron["memory_bytes"] == 4 * (28**2 + 2**2 + 33**2 + 10**2 + 2 * 2)
    lines = make_table(["resnet"], tmp_path).splitlines()
    assert lines[2].startswith(f"| naive | {naive['average']:.2f} | {naive['bwt']:.2f} |")
    assert lines[3].startswith("| dco |")
    assert lines[4].startswith("| dco-kron |")
