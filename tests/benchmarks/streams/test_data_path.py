"""Batches cut from tensors: the same samples, in random order, unless the data is random."""

import pytest
import torch
from avalanche.benchmarks.utils.transform_groups import DefaultTransformGroups
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin

from avalanche_dco.plugins.support.push import shuffled_dataset
from avalanche_dco.plugins.support.sampling import as_tensors
from benchmarks.streams.data_path import ShuffledBatches, TensorBatches, _stacked
from benchmarks.streams.tensors import StackedDataset, tensor_benchmark, tensor_dataset
from tests.support.learning import blobs, naive, small_mlp, split_blobs


class Witness(SupervisedPlugin):
    """Writes down the inputs of every training batch and the loader's type."""

    def __init__(self):
        super().__init__()
        self.inputs, self.loaders = [], []

    def before_training_epoch(self, strategy, **kwargs):
        self.loaders.append(strategy.dataloader)

    def before_forward(self, strategy, **kwargs):
        self.inputs.append(strategy.mb_x.clone())


def trained(benchmark):
    witness = Witness()
    torch.manual_seed(0)
    naive(small_mlp(), [TensorBatches(), witness]).train(benchmark.train_stream[0])
    return witness


def test_every_epoch_has_every_sample_once_in_another_order():
    benchmark = blobs(n_experiences=1, samples=40)
    witness = trained(benchmark)
    assert all(isinstance(loader, ShuffledBatches) for loader in witness.loaders)
    assert [len(x) for x in witness.inputs] == [16, 16, 8, 16, 16, 8]
    assert len(witness.loaders[0]) == 3
    first, second = torch.cat(witness.inputs[:3]), torch.cat(witness.inputs[3:])
    x = torch.stack([sample[0] for sample in benchmark.train_stream[0].dataset])
    assert not torch.equal(first, second)
    for epoch in (first, second):
        assert torch.equal(*(part[part[:, 0].argsort()] for part in (epoch, x)))


def test_dco_takes_it_for_the_default_loader_that_it_replaces():
    """So that the steps after training draw the same batches with it and without it."""
    loader = trained(blobs(n_experiences=1, samples=40)).loaders[0]
    assert len(shuffled_dataset(loader, 16)) == 40


def test_random_augmentation_stays_random():
    torch.manual_seed(0)
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    noisy = DefaultTransformGroups((lambda sample: sample + torch.rand(()), None))
    data = tensor_dataset(x, y, transform_groups=noisy)
    witness = trained(tensor_benchmark(train=[data], test=[data]))
    assert not any(isinstance(loader, ShuffledBatches) for loader in witness.loaders)
    assert len({row[0].item() for x in witness.inputs for row in x}) == 48


def test_samples_are_stacked_without_fetching_each(monkeypatch):
    fetched = []
    fetch = StackedDataset.__getitem__
    monkeypatch.setattr(
        StackedDataset, "__getitem__", lambda self, i: fetched.append(i) or fetch(self, i)
    )
    whole = blobs(n_experiences=1, samples=400).train_stream[0].dataset
    for dataset in (whole, whole.subset([5, 1, 399]), whole.subset([7, 8, 9]).subset([2, 0])):
        fetched.clear()
        tensors = _stacked(dataset)
        assert len(fetched) <= 16
        expected = as_tensors(dataset)
        assert all(map(torch.equal, tensors, expected))
        assert [part.dtype for part in tensors] == [part.dtype for part in expected]


def test_samples_are_fetched_where_they_would_stack_otherwise(monkeypatch):
    whole = blobs(n_experiences=1, samples=40).train_stream[0].dataset
    changed = whole.replace_current_transform_group(lambda x: 2 * x)
    assert torch.equal(_stacked(changed)[0], 2 * _stacked(whole)[0])
    both = whole.concat(whole)
    assert both.stacked() is None
    assert len(_stacked(both)[0]) == 80
    monkeypatch.setattr("benchmarks.streams.data_path.CACHE_BYTES", 10)
    monkeypatch.setattr("avalanche_dco.plugins.support.sampling.CACHE_BYTES", 10)
    assert _stacked(whole) is None


def test_experiences_of_several_tasks_keep_the_loader_that_balances_them():
    benchmark = split_blobs()
    both = benchmark.train_stream[0].dataset.concat(benchmark.train_stream[1].dataset)
    witness = Witness()
    naive(small_mlp(classes=4), [TensorBatches(), witness]).train(
        tensor_benchmark(train=[both], test=[both]).train_stream[0]
    )
    assert not isinstance(witness.loaders[0], ShuffledBatches)


@pytest.mark.parametrize("plugins", [[], [TensorBatches()]])
def test_evaluation_gives_the_same_accuracies(plugins):
    benchmark = blobs()
    torch.manual_seed(1)
    evaluator = EvaluationPlugin(accuracy_metrics(experience=True), loggers=[])
    strategy = naive(small_mlp(), plugins, evaluator=evaluator, eval_mb_size=20)
    found = [strategy.eval(benchmark.test_stream) for _ in range(2)]
    torch.manual_seed(1)
    model = small_mlp().eval()
    for index, experience in enumerate(benchmark.test_stream):
        x, y = (torch.stack(part) for part in list(zip(*_samples(experience), strict=True)))
        accuracy = (model(x).argmax(1) == y).float().mean().item()
        name = f"Top1_Acc_Exp/eval_phase/test_stream/Task000/Exp{index:03d}"
        assert [metrics[name] for metrics in found] == [pytest.approx(accuracy)] * 2


def _samples(experience):
    return [(sample[0], torch.as_tensor(sample[1])) for sample in experience.dataset]
