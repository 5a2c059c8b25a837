"""Split CIFAR-10 and CIFAR-100, from Avalanche or from arrays of the same shape in an .npz file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from avalanche.benchmarks import CLScenario
from avalanche.benchmarks.classic import SplitCIFAR10, SplitCIFAR100
from avalanche.benchmarks.utils import AvalancheDataset
from torchvision import transforms  # type: ignore[import-untyped]

from avalanche_dco.errors import SettingError
from benchmarks.streams.tensors import tensor_benchmark, tensor_dataset

# Avalanche's own constants.
_MEAN_AND_STD = {
    10: ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    100: ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
EXPERIENCES = {10: 5, 100: 10}
"""Number of experiences by number of classes."""


def split_cifar(classes: int, root: Path | None) -> CLScenario:
    """Avalanche's benchmark: classes in their order, normalised, not augmented (authors' code).

    :param classes: 10 or 100.
    """
    build = {10: SplitCIFAR10, 100: SplitCIFAR100}[classes]
    normalised = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize(*_MEAN_AND_STD[classes])]
    )
    return build(
        EXPERIENCES[classes],
        return_task_id=True,
        fixed_class_order=list(range(classes)),
        train_transform=normalised,
        eval_transform=normalised,
        dataset_root=root,
    )


def split_arrays(file: Path, like: int) -> CLScenario:
    """The same from a file: as many experiences, the same normalisation, the file's classes.

    :param file: an .npz file with x_train, y_train, x_test and y_test.
    :param like: 10 or 100: the CIFAR in whose place it is used.
    """
    x_train, y_train, x_test, y_test = read_arrays(file, like)
    experiences = EXPERIENCES[like]
    width = (int(y_train.max()) + 1) // experiences
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in _MEAN_AND_STD[like])

    def parts(x: np.ndarray, y: np.ndarray) -> Sequence[AvalancheDataset]:
        images = (torch.from_numpy(x).float() / 255 - mean) / std
        labels = torch.from_numpy(y)
        chosen = [labels // width == task for task in range(experiences)]
        return [tensor_dataset(images[c], labels[c], task) for task, c in enumerate(chosen)]

    return tensor_benchmark(train=parts(x_train, y_train), test=parts(x_test, y_test))


def read_arrays(file: Path, like: int) -> list[np.ndarray]:
    """Images as N x 3 x 32 x 32 and labels of training, then of test; raises unless they fit.

    :param file: an .npz file with x_train, y_train, x_test and y_test.
    :param like: 10 or 100: the CIFAR in whose place it is used.
    """
    arrays = read_npz(file, ("train", "test"))
    _, y_train, _, y_test = arrays
    classes = int(max(y_train.max(), y_test.max())) + 1
    experiences = EXPERIENCES[like]
    found = np.unique(y_train)
    if classes % experiences or not np.array_equal(found, np.arange(classes)):
        raise SettingError(
            f"--npz {file.name}: its training labels must be all of 0 to n - 1 with n a multiple "
            f"of {experiences}, to make {experiences} experiences of as many classes each; the "
            f"largest is {classes - 1} and there are {len(found)} different ones."
        )
    untested = sorted(set(range(experiences)) - set(y_test // (classes // experiences)))
    if untested:
        raise SettingError(
            f"--npz {file.name}: its test labels have none of the classes of experiences "
            f"{untested}, counted from 0, so there is nothing to evaluate them on. Add test images "
            "of these classes."
        )
    return arrays


def read_npz(file: Path, parts: Sequence[str]) -> list[np.ndarray]:
    """Images as N x 3 x 32 x 32 and labels of each part in turn; raises unless they fit.

    :param file: an .npz file with x_train and y_train, and so on.
    """
    expected = (
        f"Expected an .npz with {' and '.join(f'x_{part}' for part in parts)} (uint8, N x 32 x 32 "
        f"x 3 or N x 3 x 32 x 32) and {' and '.join(f'y_{part}' for part in parts)} (integers)."
    )
    if not file.is_file():
        raise SettingError(f"--npz {file}: there is no such file. {expected}")
    names = [f"{kind}_{part}" for part in parts for kind in "xy"]
    try:
        with np.load(file) as arrays:
            missing = [name for name in names if name not in arrays.files]
            found = {name: arrays[name] for name in names if not missing}
    except Exception as error:  # a changed byte can make numpy fail in any way
        raise SettingError(
            f"--npz {file} cannot be read ({type(error).__name__}: {error}). {expected}"
        ) from error
    if missing:
        raise SettingError(f"--npz {file}: {missing} are not in it. {expected}")
    for name, array in found.items():
        if not isinstance(array, np.ndarray):  # the archive's file has another name than *.npy
            raise SettingError(f"--npz {file}: {name} is no array. {expected}")
    for part in parts:
        x, y = found[f"x_{part}"], found[f"y_{part}"].reshape(-1)
        if x.ndim == 4 and x.shape[1:] == (32, 32, 3):
            x = x.transpose(0, 3, 1, 2)
        if x.dtype != np.uint8 or x.shape[1:] != (3, 32, 32):
            raise SettingError(
                f"--npz {file}: x_{part} is {x.dtype} of shape {found[f'x_{part}'].shape}. "
                f"{expected}"
            )
        if not np.issubdtype(y.dtype, np.integer) or len(y) != len(x) or not len(y) or y.min() < 0:
            raise SettingError(
                f"--npz {file}: y_{part} must hold one integer of at least 0 for each of the "
                f"{len(x)} images; it is {y.dtype} of shape {found[f'y_{part}'].shape}. {expected}"
            )
        found[f"x_{part}"], found[f"y_{part}"] = np.ascontiguousarray(x), y.astype(np.int64)
    return [found[name] for name in names]
