"""Benchmarks beside the digits, on small made-up files; the validation split."""

import pickle
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from avalanche.benchmarks.classic import PermutedMNIST
from torchvision.datasets import CIFAR10

from avalanche_dco.errors import SettingError
from avalanche_dco.plugins.support.sampling import as_tensors
from benchmarks.runs.choices import read_choices, write_choices
from benchmarks.runs.execution import execute
from benchmarks.runs.planning import Assignment, Plan, Request
from benchmarks.streams.catalogue import (
    TASKS,
    Data,
    DataSet,
    classes_of,
    data_hashes,
    missing_files,
    provide,
)
from benchmarks.streams.cifar import split_arrays
from benchmarks.streams.digits import permuted_digits, split_digits
from benchmarks.streams.tensors import held_out
from tests.support.benchmark_runs import run_options


def arrays(classes: int = 10, per_class: int = 4) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    y = np.repeat(np.arange(classes), per_class)
    x = generator.integers(0, 256, (len(y), 32, 32, 3), dtype=np.uint8)
    return {"x_train": x, "y_train": y, "x_test": x[::2], "y_test": y[::2]}


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    path = tmp_path / "own arrays.npz"
    np.savez(path, **arrays())
    return path


def test_an_npz_is_split_and_normalised_like_the_cifar_it_stands_for(npz: Path) -> None:
    stream = split_arrays(npz, like=10)
    assert [e.classes_in_this_experience for e in stream.train_stream] == [
        [0, 1], [2, 3], [4, 5], [6, 7], [8, 9],
    ]  # fmt: skip
    assert [e.task_labels for e in stream.test_stream] == [[0], [1], [2], [3], [4]]
    x, y, task = stream.train_stream[1].dataset[0]
    expected = torch.from_numpy(arrays()["x_train"][8]).permute(2, 0, 1) / 255
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    assert torch.allclose(x, (expected - mean.view(3, 1, 1)) / std.view(3, 1, 1), atol=1e-6)
    assert (y, task) == (2, 1)
    assert classes_of(stream) == 10


def test_channels_may_come_first(npz: Path, tmp_path: Path) -> None:
    content = arrays()
    for name in ("x_train", "x_test"):
        content[name] = content[name].transpose(0, 3, 1, 2)
    np.savez(tmp_path / "first.npz", **content)
    one, other = split_arrays(npz, like=10), split_arrays(tmp_path / "first.npz", like=10)
    assert torch.equal(one.test_stream[2].dataset[1][0], other.test_stream[2].dataset[1][0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": None}, r"\['x_test'\] are not in it"),
        ({"x_train": np.zeros((40, 32, 32, 3))}, "x_train is float64"),
        ({"x_train": np.zeros((40, 28, 28), np.uint8)}, r"shape \(40, 28, 28\)"),
        ({"y_train": np.zeros(39, int)}, "one integer of at least 0 for each of the 40"),
        ({"y_train": np.zeros(40)}, "y_train must hold one integer"),
        ({"y_train": np.zeros(40, int)}, "1 different ones"),
        ({"y_test": np.full(20, 11)}, "largest is 11"),
    ],
)
def test_an_npz_that_does_not_fit_says_why(tmp_path: Path, change: dict, message: str) -> None:
    content = {name: a for name, a in (arrays() | change).items() if a is not None}
    np.savez(tmp_path / "bad.npz", **content)
    with pytest.raises(SettingError, match=message):
        split_arrays(tmp_path / "bad.npz", like=10)


def test_an_npz_that_is_none_says_so(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_text("no arrays")
    with pytest.raises(SettingError, match=r"cannot be read.*Expected an .npz with x_train"):
        split_arrays(tmp_path / "bad.npz", like=10)
    with pytest.raises(SettingError, match="no such file"):
        provide("split-cifar10", Data(npz=tmp_path / "none.npz"))


@pytest.mark.parametrize("content", [b"", b"no arrays", "npy", "cut", "too few classes"])
def test_an_npz_that_does_not_fit_is_refused_before_anything_runs(tmp_path, content) -> None:
    path = tmp_path / "bad.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        np.savez(path, **arrays(9 if content == "too few classes" else 10))
        if content == "cut":
            path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(SettingError, match=r"--npz .*bad\.npz"):
        Plan(Request("split-cifar10", ["naive"], data=Data(npz=path)))


def test_two_benchmarks_on_one_npz_share_no_run_and_no_choice(npz: Path, tmp_path: Path) -> None:
    five, ten = (
        Plan(Request(name, ["naive"], data=Data(npz=npz)))
        for name in ("split-cifar10", "split-cifar100")
    )
    assert five.benchmark.startswith("split5-own arrays.npz-")
    assert five.job("naive", 1).folder_name != ten.job("naive", 1).folder_name
    write_choices(tmp_path / "chosen.json", five, [1], {})
    assert read_choices(tmp_path / "chosen.json", five.benchmark) == {}
    with pytest.raises(SettingError, match="was chosen on split5-own"):
        read_choices(tmp_path / "chosen.json", ten.benchmark)


def test_results_on_an_npz_are_called_by_the_file(npz: Path, tmp_path: Path) -> None:
    request = Request(
        "split-cifar100", ["naive"], data=Data(npz=npz), training=[Assignment(None, "epochs", 1)]
    )
    plan = Plan(request)
    job = plan.job("naive", 1)
    digest = data_hashes("split-cifar100", Data(npz=npz))["own arrays.npz"]
    assert job.benchmark == f"split10-own arrays.npz-{digest[:8]}"
    assert job.config["npz"] == {"name": "own arrays.npz", "sha256": digest}
    assert job.config["protocol"] == "split-cifar100"
    shown = execute(job, run_options(tmp_path), lambda done, total: None)  # ten experiences
    assert len(shown["gradient_evaluations_by_experience"]) == 10
    content = np.load(npz)
    np.savez(npz, **{name: content[name][: len(content[name])] // 2 for name in content.files[:1]},
             **{name: content[name] for name in content.files[1:]})  # fmt: skip
    assert Plan(request).job("naive", 1).benchmark != job.benchmark


def test_cifar_is_avalanche_s_with_classes_in_order(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in TASKS["split-cifar10"].files[0].names:
        content = {"data": np.zeros((10, 3072), np.uint8), "labels": list(range(10))}
        if name == "batches.meta":
            content = {"label_names": list("abcdefghij")}  # type: ignore[dict-item]
        (folder / name).write_bytes(pickle.dumps(content))
    assert missing_files("split-cifar10", tmp_path) == []
    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)  # not the real files
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    stream = TASKS["split-cifar10"].build(1, Data(tmp_path))
    assert [list(e.classes_in_this_experience) for e in stream.train_stream][1] == [2, 3]
    assert [e.task_labels for e in stream.test_stream][4] == [4]
    x = stream.train_stream[0].dataset[0][0]
    assert torch.allclose(
        x[:, 0, 0], -torch.tensor([0.4914 / 0.2023, 0.4822 / 0.1994, 0.4465 / 0.2010])
    )
    network = TASKS["split-cifar10"].model(10)
    network.adaptation(stream.train_stream[0])
    assert network(x.unsqueeze(0), 0).shape == (1, 10)


def write_idx(path: Path, content: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = struct.pack(f">{content.ndim}I", *content.shape)
    path.write_bytes(bytes([0, 0, 8, content.ndim]) + sizes + content.astype(np.uint8).tobytes())


@pytest.mark.parametrize(("name", "first"), [("mnist-fashion", 10), ("fashion-mnist", 20)])
def test_two_domains_in_either_order(tmp_path: Path, name: str, first: int) -> None:
    for folder, level in (("MNIST", 10), ("FashionMNIST", 20)):
        for part in ("train", "t10k"):
            place = tmp_path / folder / "raw"
            write_idx(place / f"{part}-images-idx3-ubyte", np.full((10, 28, 28), level))
            write_idx(place / f"{part}-labels-idx1-ubyte", np.arange(10))
    assert missing_files(name, tmp_path) == []
    stream = TASKS[name].build(1, Data(tmp_path))
    levels = [e.dataset[0][0][0].item() for e in stream.train_stream]
    expected = [(level / 255 - 0.1307) / 0.3081 for level in (first, 30 - first)]
    assert levels == pytest.approx(expected)
    assert [e.task_labels for e in stream.test_stream] == [[0], [0]]
    assert TASKS[name].model(10)(stream.train_stream[0].dataset[0][0].unsqueeze(0)).shape == (
        1,
        10,
    )


def test_permuted_mnist_is_avalanches_to_the_bit(tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (30, 28, 28))
    levels[0].flat[:256] = np.arange(256)
    for part, images in (("train", levels), ("t10k", levels[::-1])):
        write_idx(tmp_path / "MNIST" / "raw" / f"{part}-images-idx3-ubyte", images)
        labels = np.arange(30) * 7 % 10
        write_idx(tmp_path / "MNIST" / "raw" / f"{part}-labels-idx1-ubyte", labels)
    ours = TASKS["permuted-mnist"].build(3, Data(tmp_path))
    avalanches = PermutedMNIST(5, seed=3, dataset_root=tmp_path)
    for name in ("train", "test"):
        pairs = zip(ours.streams[name], avalanches.streams[name], strict=True)
        for mine, theirs in pairs:
            sorted_alike = []
            for dataset in (mine.dataset, theirs.dataset):
                tensors = as_tensors(dataset)
                assert tensors is not None
                assert tensors[1].tolist() == list(map(int, dataset.targets))
                order = tensors[1].argsort(stable=True)
                sorted_alike.append([tensor[order] for tensor in tensors])
            for a, b in zip(*sorted_alike, strict=True):
                assert torch.equal(a, b)
                assert a.dtype == b.dtype
            assert mine.task_labels == theirs.task_labels
            assert set(mine.classes_in_this_experience) == set(theirs.classes_in_this_experience)


def test_data_that_cannot_be_downloaded_are_named(tmp_path: Path, monkeypatch) -> None:
    def offline(root: str) -> None:
        raise OSError("no network")

    task = TASKS["split-cifar100"]
    files = DataSet(task.files[0].folder, task.files[0].names, offline)
    monkeypatch.setitem(TASKS, "split-cifar100", replace(task, files=(files,)))
    expected = rf"could not be downloaded \(no network\).*{tmp_path}.*cifar-100-python/train.*--npz"
    with pytest.raises(SettingError, match=expected):
        provide("split-cifar100", Data(tmp_path))
    with pytest.raises(SettingError, match=r"--data-root a folder.*cifar-100-python/test"):
        provide("split-cifar100", Data())


@pytest.mark.parametrize("benchmark", [split_digits(5), permuted_digits(2)])
def test_validation_holds_out_a_tenth_of_every_class_and_no_test_data(benchmark) -> None:
    stream = held_out(benchmark, seed=3)
    assert len(stream.train_stream) == len(benchmark.train_stream)
    for whole, kept, held in zip(
        benchmark.train_stream, stream.train_stream, stream.test_stream, strict=True
    ):
        every, part, rest = (Counter(map(int, e.dataset.targets)) for e in (whole, held, kept))
        assert part == {label: round(0.1 * count) for label, count in every.items()}
        assert part + rest == every
        assert kept.task_labels == held.task_labels == whole.task_labels
        samples = [
            {tuple(e.dataset[i][0].tolist()) for i in range(len(e.dataset))}
            for e in (whole, kept, held)
        ]
        assert samples[1] | samples[2] == samples[0]
        assert not samples[1] & samples[2]


def test_validation_depends_on_the_seed_alone() -> None:
    def first(seed: int) -> list[float]:
        return held_out(split_digits(5), seed).test_stream[0].dataset[0][0].tolist()

    assert first(1) == first(1) != first(2)
