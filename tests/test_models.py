import pytest
import torch
from avalanche.benchmarks.utils import AvalancheDataset
from torch import nn

from avalanche_dco.errors import ModelError
from avalanche_dco.models import MLP, ConvNet, TaskMasked, mlp_100, mlp_256
from tests.support.learning import naive, split_blobs, stream


def matrices(model):
    return [tuple(p.shape) for p in model.parameters()]


def test_the_papers_networks():
    assert matrices(mlp_100()) == [(100, 784), (100, 100), (100, 100), (10, 100)]
    assert matrices(mlp_256()) == [(256, 784), (256, 256), (256, 256), (10, 256)]
    assert matrices(ConvNet()) == [
        (32, 3, 3, 3),
        (32, 32, 3, 3),
        (64, 32, 3, 3),
        (64, 64, 3, 3),
        (100, 1600),
    ]
    assert mlp_100()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert ConvNet()(torch.zeros(2, 3, 32, 32)).shape == (2, 100)


def masked():
    return TaskMasked(MLP(6, hidden_size=8, num_classes=6), 6)


def test_each_task_sees_its_own_outputs():
    model, benchmark = masked(), split_blobs(3)
    for experience in benchmark.train_stream:
        model.adaptation(experience)
    x = torch.randn(3, 6)
    out = model(x, torch.tensor([0, 1, 2]))
    plain = model.network(x)
    for task in range(3):
        own = slice(2 * task, 2 * task + 2)
        assert torch.equal(out[task, own], plain[task, own])
        assert (out[task] > TaskMasked.MASKED / 2).sum() == 2
        assert out[task].argmax() in (2 * task, 2 * task + 1)
    assert torch.equal(model(x, 1), model(x, torch.ones(3, dtype=torch.long)))


def test_half_precision():
    model = masked().half()
    model.adaptation(split_blobs(3).train_stream[0])
    out = model(torch.randn(2, 6).half(), 0)
    assert torch.isfinite(out).all()
    assert (out.argmax(1) < 2).all()


def test_masked_outputs_have_no_gradient():
    model, benchmark = masked(), split_blobs(3)
    model.adaptation(benchmark.train_stream[1])
    loss = nn.functional.cross_entropy(model(torch.randn(5, 6), 1), torch.tensor([2, 3, 2, 3, 2]))
    loss.backward()
    head = list(model.network.children())[-1].weight.grad
    assert torch.count_nonzero(head[[0, 1, 4, 5]]) == 0
    assert torch.count_nonzero(head[[2, 3]]) > 0


def test_learns_a_task_incremental_stream():
    torch.manual_seed(0)
    model, benchmark = masked(), split_blobs(3)
    strategy = naive(model, train_epochs=10)
    strategy.train(benchmark.train_stream[0])
    strategy.eval(benchmark.test_stream)  # unseen tasks too
    assert model.task_of_class.tolist() == [0, 0, 1, 1, 2, 2]
    x = torch.stack([sample[0] for sample in benchmark.train_stream[0].dataset])
    y = torch.tensor([sample[1] for sample in benchmark.train_stream[0].dataset])
    assert (model(x, 0).argmax(1) == y).float().mean() > 0.9


def test_tasks_survive_state_dict():
    model, other = masked(), masked()
    model.adaptation(split_blobs(3).train_stream[1])
    other.load_state_dict(model.state_dict())
    assert other.task_of_class.tolist() == [-1, -1, 1, 1, -1, -1]


def test_classes_of_two_tasks_are_refused():
    y = torch.arange(8) % 2
    benchmark = stream([torch.randn(8, 6)] * 2, [y, y], tasks=[0, 1])
    model = masked()
    model.adaptation(benchmark.train_stream[0])
    with pytest.raises(ModelError, match="another task has too"):
        model.adaptation(benchmark.train_stream[1])


def test_class_beyond_the_outputs_is_refused():
    benchmark = stream([torch.randn(8, 6)], [torch.arange(8)])
    with pytest.raises(ModelError, match=r"made for 6 classes.*class 7.*num_classes=8"):
        masked().adaptation(benchmark.train_stream[0])


def test_experience_of_several_tasks_is_refused():
    first, second = (e.dataset for e in split_blobs(2).train_stream)
    mixed: AvalancheDataset = first.concat(second)
    experience = split_blobs(2).train_stream[0]
    experience._dataset = mixed
    experience.task_labels = [0, 1]
    with pytest.raises(ModelError, match=r"one task per experience.*\[0, 1\]"):
        masked().adaptation(experience)
