import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_dco.core.cone import TrajectoryEnds, push


def trajectory(length):
    return [
        [torch.randn(3, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)]
        for _ in range(length)
    ]


@given(st.integers(2, 40), st.integers(1, 12))
def test_ends_are_means_of_first_and_last_points(length, points):
    path = trajectory(length)
    ends = TrajectoryEnds(length, points)
    for x in path:
        ends.add(x)
    c1 = min(points, (length + 1) // 2)
    c2 = min(points, length - c1)
    for i in range(2):
        first = torch.stack([x[i] for x in path[:c1]]).mean(0)
        last = torch.stack([x[i] for x in path[-c2:]]).mean(0)
        torch.testing.assert_close(ends.first[i], first, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ends.last[i], last, rtol=1e-10, atol=1e-10)


def test_points_may_change_after_they_were_added():
    x = [torch.zeros(2)]
    ends = TrajectoryEnds(2, 1)
    ends.add(x)
    x[0] += 1
    ends.add(x)
    assert ends.first[0].tolist() == [0, 0]
    assert ends.last[0].tolist() == [1, 1]


def test_single_point_ends_where_it_began():
    ends = TrajectoryEnds(1, 16)
    ends.add([torch.ones(2)])
    assert torch.equal(ends.first[0], ends.last[0])


@given(st.floats(0, 5))
def test_push_moves_by_theta_towards_the_end(theta):
    first, last = trajectory(2)
    pushed = push(first, last, theta)
    flat1, flat2, moved = (torch.cat([t.reshape(-1) for t in x]) for x in (first, last, pushed))
    expected = flat1 - theta * (flat1 - flat2) / (flat1 - flat2).norm()
    torch.testing.assert_close(moved, expected, rtol=1e-10, atol=1e-10)
    assert (moved - flat1).norm().item() == pytest.approx(theta, abs=1e-9)


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_push_along_nothing_but_rounding_stays(noise):
    x = [torch.ones(3), torch.ones(2, 2)]
    y = [tensor + noise for tensor in x]
    assert push(x, y, 2.0) is None
    assert push(x, [tensor + 1e-3 for tensor in x], 2.0) is not None
