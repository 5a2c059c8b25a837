import hypothesis
import pytest
import torch

# A busy machine is no defect.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

# Small tensors: more threads only wait for each other, and for whatever else the machine does.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test starts from the same random state, whatever ran before it."""
    torch.manual_seed(0)
