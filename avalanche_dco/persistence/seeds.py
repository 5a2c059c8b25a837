"""The same seed, the same numbers."""

import os

import torch
from avalanche.training.determinism.rng_manager import RNGManager

from avalanche_dco.plugins.support.settings import check_number


def seed_everything(seed: int) -> None:
    """Seed all random generators and let GPUs compute in a fixed order.

    Call it first of all, before the benchmark and the model are made. On the same machine, with
    the same number of threads and the same versions, two runs then give the same numbers bit for
    bit; on a CPU nothing else is needed. Generators of your own can be registered with Avalanche's
    ``RNGManager``; they are then seeded here and kept in checkpoints.

    It seeds Python, NumPy and torch (all devices), chooses cuDNN's deterministic algorithms, and
    sets ``CUBLAS_WORKSPACE_CONFIG`` as cuBLAS needs it to be deterministic, unless you have.
    Operations for which torch has no deterministic algorithm on a GPU stay as they are; to get
    errors for them, call ``torch.use_deterministic_algorithms(True)``.

    >>> import torch
    >>> from avalanche_dco import seed_everything
    >>> seed_everything(1)
    >>> first = torch.rand(3)
    >>> seed_everything(1)
    >>> torch.equal(torch.rand(3), first)
    True

    :param seed: a whole number from 0 to 2**32 - 1.
    """
    check_number(
        "seed", seed, high=2**32 - 1, whole=True, meaning="the seed of all random generators"
    )
    RNGManager.set_random_seeds(int(seed))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
