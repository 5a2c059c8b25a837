"""The example on the documentation page runs as printed."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

PAGE = Path(__file__).parent.parent.parent / "docs" / "landscape.md"


def test_the_example_for_ones_own_model_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    x = torch.randn(200, 12)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=50, shuffle=True
    )
    for _ in range(30):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    names: dict = {"model": model, "optimizer": optimizer, "loader": loader}
    exec(code, names)
    assert names["f"].shape == (5, 41)
    assert names["h"].mean.shape == (3,)
    assert names["walls"].shape == (5, 2)
    assert torch.isfinite(names["f"]).all()
    assert (names["h"].mean.diff() > 0).all()  # a larger radius, a larger loss


def test_every_figure_on_the_page_exists_and_is_small() -> None:
    figures = re.findall(r"\]\((figures/[^)]+)\)", PAGE.read_text())
    assert len(figures) >= 9
    for figure in figures:
        assert 0 < (PAGE.parent / figure).stat().st_size < 200_000, figure
