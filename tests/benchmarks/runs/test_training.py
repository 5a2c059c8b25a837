"""The dropout of the ConvNet in benchmarks: torch's distribution, drawn faster."""

import pytest
import torch
from torch import nn

from avalanche_dco.models import ConvNet
from benchmarks.runs.training import HalfDropout
from benchmarks.streams.catalogue import TASKS


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_is_dropped_and_the_rest_doubled(
    layout: torch.memory_format, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    x = (torch.rand(16, 7, 13, 11) + 1).to(dtype).to(memory_format=layout).requires_grad_()
    out = HalfDropout()(x)
    kept = out != 0
    assert torch.equal(out[kept], 2 * x[kept])
    assert out.dtype == dtype
    assert out.stride() == x.stride()
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, 2 * kept.to(dtype))
    # Every byte of a random number, and every channel, drops half; neighbours are independent.
    in_order = kept.as_strided([kept.numel()], [1]).double()
    each = [in_order[part::8].mean().item() for part in range(8)]
    assert each == pytest.approx([0.5] * 8, abs=0.03)
    assert kept.double().mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.5] * 7, abs=0.05)
    assert (in_order[1:] * in_order[:-1]).mean().item() == pytest.approx(0.25, abs=0.02)


def test_masks_differ_from_call_to_call_and_follow_the_seed() -> None:
    dropout, x = HalfDropout(), torch.ones(3, 5)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)


def test_nothing_is_dropped_in_evaluation() -> None:
    x = torch.randn(3, 5)
    assert HalfDropout().eval()(x) is x


def test_the_network_of_the_benchmarks_is_the_papers_but_for_the_drawing() -> None:
    torch.manual_seed(1)
    papers = ConvNet(10).eval()
    torch.manual_seed(1)
    ours = TASKS["split-cifar10"].network(10).eval()
    assert [type(layer) for layer in ours] == [
        HalfDropout if isinstance(layer, nn.Dropout) else type(layer) for layer in papers
    ]
    assert list(ours.state_dict()) == list(papers.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(x), papers(x), rtol=1e-4, atol=1e-5)
