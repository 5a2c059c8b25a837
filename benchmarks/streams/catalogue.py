"""The continual-learning benchmarks, by name, and where their data is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from avalanche.benchmarks import CLScenario
from avalanche.benchmarks.classic import SplitMNIST
from avalanche.benchmarks.datasets.external_datasets import cifar as cifar_files
from avalanche.benchmarks.datasets.external_datasets.fmnist import get_fmnist_dataset
from avalanche.benchmarks.datasets.external_datasets.mnist import get_mnist_dataset
from sklearn.datasets import load_digits
from torch import nn

from avalanche_dco.errors import SettingError
from avalanche_dco.models import MLP, ConvNet, TaskMasked, mlp_100, mlp_256
from avalanche_dco.persistence.files import checksum
from benchmarks.runs.training import Bfloat16Training, HalfDropout
from benchmarks.streams import digits
from benchmarks.streams.cifar import read_arrays, split_arrays, split_cifar
from benchmarks.streams.tensors import permuted_mnist, two_domains


@dataclass(frozen=True)
class Data:
    """Where the data of a benchmark is.

    :param root: folder that holds the data sets; None for embedded data.
    :param npz: file with arrays in place of a CIFAR.
    """

    root: Path | None = None
    npz: Path | None = None


@dataclass(frozen=True)
class Task:
    """A stream of experiences and the network that learns it.

    :param summary: what it is, in a line.
    :param build: makes the stream from a seed and the place of the data.
    :param network: makes the network for a number of classes.
    :param masked: whether each experience has outputs of its own.
    :param files: what the data folder must hold, by the function of Avalanche that reads it;
        empty for embedded data.
    :param arrays_like: the CIFAR (10 or 100) in whose place arrays may come; None if none may.
    """

    summary: str
    build: Callable[[int, Data], CLScenario]
    network: Callable[[int], nn.Module]
    masked: bool
    files: tuple[DataSet, ...] = ()
    arrays_like: int | None = None

    def model(self, classes: int, precision: str = "float32") -> nn.Module:
        """The network as methods get it."""
        network = self.network(classes)
        if precision == "bfloat16":
            network = Bfloat16Training(network)
        return TaskMasked(network, classes) if self.masked else network


@dataclass(frozen=True)
class DataSet:
    """Files that belong together.

    :param read: reads them from a data folder, after a download of what is not there.
    """

    folder: str
    names: tuple[str, ...]
    read: Callable[[str], object]

    def paths(self) -> list[str]:
        """The files, relative to the data folder."""
        return [f"{self.folder}/{name}" for name in self.names]


_IDX = tuple(
    f"{part}-ubyte"
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)
_MNIST = DataSet("MNIST/raw", _IDX, get_mnist_dataset)
_FASHION = DataSet("FashionMNIST/raw", _IDX, get_fmnist_dataset)
_CIFAR10 = DataSet(
    "cifar-10-batches-py",
    (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta"),
    cifar_files.get_cifar10_dataset,
)
_CIFAR100 = DataSet("cifar-100-python", ("train", "test", "meta"), cifar_files.get_cifar100_dataset)


def _split_mnist(seed: int, data: Data) -> CLScenario:
    return SplitMNIST(
        5, return_task_id=True, fixed_class_order=list(range(10)), dataset_root=data.root
    )


def _permuted_mnist(
    experiences: int, summary: str, network: Callable[..., nn.Module] = mlp_256
) -> Task:
    def build(seed: int, data: Data) -> CLScenario:
        return permuted_mnist(data.root, experiences, seed)

    return Task(summary, build, lambda n: network(num_classes=n), masked=False, files=(_MNIST,))


def _split_cifar(classes: int, files: DataSet, summary: str) -> Task:
    def build(seed: int, data: Data) -> CLScenario:
        if data.npz is not None:
            return split_arrays(data.npz, like=classes)
        return split_cifar(classes, data.root)

    return Task(summary, build, _conv_net, masked=True, files=(files,), arrays_like=classes)


def _two_domains(fashion_first: bool, summary: str) -> Task:
    def build(seed: int, data: Data) -> CLScenario:
        return two_domains(data.root or Path(), fashion_first=fashion_first)

    return Task(summary, build, mlp_256, masked=False, files=(_MNIST, _FASHION))


def _digits_network(classes: int) -> MLP:
    return MLP(digits.INPUT_SIZE, hidden_size=100, num_classes=classes)


def _conv_net(classes: int) -> nn.Module:
    layers = [HalfDropout() if isinstance(m, nn.Dropout) else m for m in ConvNet(classes)]
    # Channels last: the same numbers up to rounding, and faster on a CPU.
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


TASKS: dict[str, Task] = {
    "split-digits": Task(
        "five tasks of two digits, 8 x 8 pixels, embedded",
        lambda seed, data: digits.split_digits(5),
        _digits_network,
        masked=True,
    ),
    "permuted-digits": Task(
        "five permutations of the same digits, embedded",
        lambda seed, data: digits.permuted_digits(5, seed=seed),
        _digits_network,
        masked=False,
    ),
    "split-mnist": Task(
        "five tasks of two classes; the paper's",
        _split_mnist,
        mlp_100,
        masked=True,
        files=(_MNIST,),
    ),
    "permuted-mnist": _permuted_mnist(5, "five permutations of MNIST; the paper's"),
    "permuted-mnist-10": _permuted_mnist(
        10,
        "ten permutations of MNIST, 784-100-100-10; GPM's and its successors', not the paper's",
        partial(MLP, hidden_size=100, hidden_layers=2),
    ),
    "permuted-mnist-20": _permuted_mnist(20, "twenty permutations of MNIST; not in the paper"),
    "split-cifar10": _split_cifar(
        10, _CIFAR10, "five tasks of two classes; not in the paper, takes CIFAR-100's settings"
    ),
    "split-cifar100": _split_cifar(100, _CIFAR100, "ten tasks of ten classes; the paper's"),
    "mnist-fashion": _two_domains(False, "MNIST, then Fashion-MNIST; the paper's"),
    "fashion-mnist": _two_domains(True, "Fashion-MNIST, then MNIST; the paper's"),
}


def classes_of(stream: CLScenario) -> int:
    """One more than the largest label of a benchmark."""
    return 1 + max(
        max(map(int, experience.classes_in_this_experience)) for experience in stream.train_stream
    )


def missing_files(name: str, root: Path | None) -> list[str]:
    """Files a benchmark needs that the data folder does not have."""
    expected = [path for files in TASKS[name].files for path in files.paths()]
    return [file for file in expected if root is None or not (root / file).exists()]


def require_files(name: str, root: Path | None) -> None:
    """Raise unless the data folder has all files of a benchmark, and they can be read."""
    missing = missing_files(name, root)
    if missing:
        raise SettingError(
            f"the data of {name} are not there. Give --data-root a folder that holds "
            f"{', '.join(missing)}.{_own_arrays(name)}"
        )
    provide(name, Data(root))


def provide(name: str, data: Data) -> None:
    """See to it that the data can be read: download what is missing, or say what is expected."""
    if data.npz is not None:
        like = TASKS[name].arrays_like
        if like is None:
            able = [other for other, task in TASKS.items() if task.arrays_like]
            raise SettingError(f"--npz is for {' and '.join(able)}, not for {name}.")
        read_arrays(data.npz, like)
        return
    missing = ", ".join(missing_files(name, data.root))
    own = _own_arrays(name)
    if data.root is None and missing:
        raise SettingError(
            f"--benchmark {name} needs data. Give --data-root a folder that holds {missing}; what "
            f"is not in it is downloaded to it.{own}"
        )
    for files in TASKS[name].files:
        try:
            with redirect_stdout(sys.stderr):
                files.read(str(data.root))
        except Exception as error:  # a changed byte can make torchvision fail in any way
            raise SettingError(
                f"--benchmark {name} needs data that is not there and could not be downloaded "
                f"({error}). Put these files into {data.root}: {missing}.{own}"
                if missing
                else f"--benchmark {name}: the files in {data.root}/{files.folder} cannot be read "
                f"({type(error).__name__}: {error}). Put undamaged ones there, or delete them to "
                f"have them downloaded.{own}"
            ) from error


def _own_arrays(name: str) -> str:
    return " Or bring arrays of the same shape with --npz FILE." if TASKS[name].arrays_like else ""


def data_hashes(name: str, data: Data) -> dict[str, str]:
    """SHA-256 of every file a benchmark reads, by its name; of the digits, the embedded array."""
    if data.npz is not None:
        return {data.npz.name: _digest(data.npz)}
    if not TASKS[name].files:
        images, labels = load_digits(return_X_y=True)
        return {"scikit-learn digits": checksum([images.tobytes(), labels.tobytes()])}
    root = data.root or Path()
    return {path: _digest(root / path) for files in TASKS[name].files for path in files.paths()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return checksum(iter(partial(file.read, 2**20), b""))
