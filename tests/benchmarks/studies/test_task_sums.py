"""Sums of curvatures over tasks against explicit matrices, and the study that compares them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_dco.core.kronecker import KroneckerFactors
from benchmarks.__main__ import main
from benchmarks.commands.tables import make_table
from benchmarks.report.statistics import statistic
from benchmarks.runs.kept import Study, read_study, write_study
from benchmarks.studies.task_sums import study
from benchmarks.studies.task_sums.study import draw
from benchmarks.studies.task_sums.sums import (
    SUMS,
    EigenvalueSum,
    LowRankSum,
    kl_optimal,
    nearest,
    traces,
)
from tests.support.problems import seeds

sizes = st.integers(2, 4)


def moment(size):
    vectors = torch.randn(2 * size, size, dtype=torch.float64)
    return (vectors.T @ vectors / size)[None]


def task(outputs, inputs):
    return KroneckerFactors(moment(inputs), moment(outputs))


def dense(A, S):
    return torch.kron(S[0], A[0])


def explicit(tasks):
    return sum(dense(f.A, f.S) for f in tasks)


def damped(matrix, strength, change):
    eye = torch.eye(len(matrix), dtype=matrix.dtype)
    return torch.linalg.solve(eye + strength * matrix, change.flatten()).view_as(change)


def stepped(summed, strength, change):
    return change - summed.step(strength, 0.0)(change)


@pytest.mark.parametrize("name", SUMS)
@given(seed=seeds, outputs=sizes, inputs=sizes)
def test_one_task_is_exact(name, seed, outputs, inputs):
    torch.manual_seed(seed)
    one, summed = task(outputs, inputs), SUMS[name]()
    summed.add(one)
    change = torch.randn(1, outputs, inputs, dtype=torch.float64)
    torch.testing.assert_close(
        stepped(summed, 3.0, change), damped(explicit([one]), 3.0, change), rtol=1e-6, atol=1e-9
    )
    eigenvalues = torch.linalg.eigvalsh(explicit([one]))
    share = float((1 / (1 + 3.0 * eigenvalues)).mean())
    assert summed.free_share(3.0) == pytest.approx(share)


@pytest.mark.parametrize("name", SUMS)
def test_a_task_that_comes_twice_counts_twice(name):
    torch.manual_seed(0)
    one, summed = task(3, 4), SUMS[name]()
    summed.add(one)
    summed.add(one)
    change = torch.randn(1, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(
        stepped(summed, 1.0, change),
        damped(2 * explicit([one]), 1.0, change),
        rtol=1e-6,
        atol=1e-9,
    )


@given(seeds, sizes, sizes)
def test_traces_are_those_of_the_sum(seed, outputs, inputs):
    torch.manual_seed(seed)
    first, second = task(outputs, inputs), task(outputs, inputs)
    A, S = traces((first.A, first.S), (second.A, second.S))
    total = explicit([first, second]).view(outputs, inputs, outputs, inputs)
    product = dense(A, S).view(outputs, inputs, outputs, inputs)
    for partial in ("iaib->ab", "iaja->ij"):
        torch.testing.assert_close(torch.einsum(partial, product), torch.einsum(partial, total))


@given(seeds, sizes, sizes)
def test_nearest_is_the_first_singular_pair_of_the_rearranged_sum(seed, outputs, inputs):
    torch.manual_seed(seed)
    first, second = task(outputs, inputs), task(outputs, inputs)
    total = explicit([first, second])
    rearranged = total.view(outputs, inputs, outputs, inputs).permute(0, 2, 1, 3)
    U, sigma, V = torch.linalg.svd(rearranged.reshape(outputs**2, inputs**2))
    best = (sigma[0] * torch.outer(U[:, 0], V[0])).view(outputs, outputs, inputs, inputs)
    expected = best.permute(0, 2, 1, 3).reshape(outputs * inputs, -1)
    found = nearest((first.A, first.S), (second.A, second.S))
    torch.testing.assert_close(dense(*found), expected, rtol=1e-6, atol=1e-8)


@settings(max_examples=20)
@given(seeds, sizes, sizes)
def test_kl_optimal_is_a_minimum_of_the_divergence(seed, outputs, inputs):
    """log det(S (x) A) + tr((S (x) A)^-1 sum) has no descent there."""
    torch.manual_seed(seed)
    first, second = task(outputs, inputs), task(outputs, inputs)
    total = explicit([first, second])
    A, S = kl_optimal(0.0, rounds=100)((first.A, first.S), (second.A, second.S))
    A, S = A[0].requires_grad_(), S[0].requires_grad_()
    product = torch.kron(S, A)
    value = torch.logdet(product) + torch.linalg.solve(product, total).trace()
    for gradient, at in zip(torch.autograd.grad(value, (A, S)), (A, S), strict=True):
        assert (gradient @ at).abs().max() < 1e-5


@given(seeds, sizes, sizes)
def test_eigenvalues_are_the_diagonal_in_the_new_basis(seed, outputs, inputs):
    torch.manual_seed(seed)
    tasks, summed = [task(outputs, inputs) for _ in range(2)], EigenvalueSum()
    for one in tasks:
        summed.add(one)
    basis = torch.kron(summed._U[0], summed._V[0])
    new = torch.diagonal(basis.T @ explicit(tasks) @ basis)
    torch.testing.assert_close(summed._D.flatten(), new)


@given(seeds, sizes, sizes, st.integers(1, 3))
def test_low_rank_is_exact_while_there_is_room(seed, outputs, inputs, n):
    torch.manual_seed(seed)
    tasks, summed = [task(outputs, inputs) for _ in range(n)], LowRankSum(n * outputs * inputs)
    for one in tasks:
        summed.add(one)
    change = torch.randn(1, outputs, inputs, dtype=torch.float64)
    torch.testing.assert_close(
        stepped(summed, 2.0, change), damped(explicit(tasks), 2.0, change), rtol=1e-6, atol=1e-9
    )


def test_low_rank_keeps_the_largest_of_each_task_when_there_is_no_room():
    tasks, summed = [task(2, 3) for _ in range(2)], LowRankSum(4)
    for one in tasks:
        summed.add(one)
    for (_, _, weights), one in zip(summed._tasks, tasks, strict=True):
        largest = torch.linalg.eigvalsh(explicit([one])).flip(0)[:2]
        torch.testing.assert_close(weights, largest)


def test_the_study_measures_keeps_and_does_not_repeat(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    images = torch.randn(300, 20)
    data = images, images[:, :3].argmax(1)
    monkeypatch.setattr(study, "get_mnist_dataset", lambda root: ("train", "test"))
    monkeypatch.setattr(study, "flat_tensors", lambda part: {"train": data}[part])
    monkeypatch.setitem(study.NETWORKS, "mlp-100-100", study.Network(8, 2, 6, epochs=1, lr=0.05))
    command = ["task-sums", "--data-root", str(tmp_path), "--out", str(tmp_path / "out.csv.xz")]
    command += ["--sums", "mean", "low-rank", "--floors", "0", "0.3"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "after 5" in shown
    assert "after 6" in shown
    runs = read_study(tmp_path / "out.csv.xz").runs
    assert len(runs) == 4
    run = runs["mlp-100-100-mean-lambda30-floor0.3-seed1"]
    assert run.config["sum"] == "mean"
    assert len(run.metrics[run.metrics["metric"] == "NewError"]) == 6
    shares = run.metrics[run.metrics["metric"] == "FreeShare/1.weight"]
    assert (shares["value"].diff().dropna() < 0).all()
    assert main([*command, "--figure", str(tmp_path / "figure.svg")]) == 0
    assert capsys.readouterr().out == shown
    assert ">Tasks learned</text>" in (tmp_path / "figure.svg").read_text()


def test_the_figure_has_every_layer_and_every_strength():
    images = torch.randn(300, 20)
    network = study.Network(8, 2, 5, epochs=1, lr=0.05)
    both = [study.Setting("mlp-256", "mean", s, g, 0.0, 1) for s, g in ((100, 0.0), (3, 1.0))]
    kept = Study()
    kept.add(study.measure(one, network, images, images[:, :3].argmax(1)) for one in both)
    left, right = draw(kept, "mlp-256").axes
    assert [one.get_label() for one in left.lines] == ["1.weight", "3.weight", "5.weight"]
    assert [one.get_label() for one in right.lines] == ["λ = 100 / n", "λ = 3"]
    run = kept.runs[both[1].name].metrics
    shares = run[run["metric"] == "FreeShare/1.weight"]["value"]
    assert list(right.lines[1].get_xdata()) == shares.tolist()


@pytest.mark.parametrize(("growth", "expected"), [(1.0, 8.0), (0.5, 4.0), (0.0, 2.0)])
def test_the_strength_by_the_number_of_tasks(growth, expected):
    assert study.Setting("mlp-256", "mean", 8.0, growth, 0.0, 1).strength_after(4) == expected


def test_the_table_has_the_means_over_seeds(tmp_path):
    torch.manual_seed(0)
    images = torch.randn(300, 20)
    labels = images[:, :3].argmax(1)
    network = study.Network(8, 1, 5, epochs=1, lr=0.05)
    runs = [
        study.measure(study.Setting("mlp-256", name, 10, 0.5, floor, seed), network, images, labels)
        for name, floor, seed in (("kl", 0.0, 1), ("mean", 0.3, 1), ("mean", 0.3, 2))
    ]
    kept = Study()
    kept.add(runs)
    write_study(tmp_path / "task-sums.csv.xz", kept)
    lines = make_table(["task-sums", "mlp-256"], tmp_path).splitlines()
    assert lines[0] == "| sum | strength | 5 tasks |"
    values = [
        100 * run.metrics[run.metrics["metric"] == "AverageError"]["value"].iloc[0] for run in runs
    ]
    assert lines[2] == f"| sum of A, mean of S, floor 0.3 | λ = 10 / √n | {statistic(values[1:])} |"
    shares = make_table(["free-shares", "mlp-256"], tmp_path).splitlines()[2:]
    assert shares
    assert all(shown.endswith("| 1 |") for shown in shares)  # one strength
    assert lines[3] == f"| KL-optimal, damped by 0.1 | λ = 10 / √n | {values[0]:.2f} |"
