"""Images and labels from an .npz file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from avalanche_dco.errors import SettingError


def read_npz(file: Path, parts: Sequence[str]) -> list[np.ndarray]:
    """Images as N x 3 x 32 x 32 and labels of each part in turn; raises unless they fit.

    :param file: an .npz file with x_train and y_train, and so on.
    :param parts: such as ``("train", "test")``.
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
