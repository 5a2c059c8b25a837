import itertools

import pytest
import torch
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.benchmarks.utils.transform_groups import TransformGroups
from torch.utils.data import Dataset, TensorDataset

from avalanche_dco.plugins.support import sampling
from avalanche_dco.plugins.support.sampling import BatchStream
from benchmarks.streams.tensors import tensor_dataset


def is_cached(stream):
    """Whether batches are cut from tensors."""
    return stream._tensors is not None


def numbered(n, **arguments):
    """Sample i is the number i, so that a batch tells what it holds."""
    return tensor_dataset(torch.arange(float(n))[:, None], torch.arange(n), **arguments)


def with_transform(transform):
    groups = TransformGroups({"train": (transform, None), "eval": (transform, None)})
    return numbered(40, transform_groups=groups)


def take(stream, n):
    return list(itertools.islice(iter(stream), n))


@pytest.mark.parametrize("cached", [True, False])
def test_each_round_holds_every_sample_once_in_a_new_order(cached, monkeypatch):
    if not cached:
        monkeypatch.setattr(sampling, "CACHE_BYTES", 0)
    stream = BatchStream(numbered(40), 10)
    assert is_cached(stream) is cached
    batches = take(stream, 8)
    rounds = [torch.cat([batch[1] for batch in part]) for part in (batches[:4], batches[4:])]
    assert all(sorted(r.tolist()) == list(range(40)) for r in rounds)
    assert rounds[0].tolist() != rounds[1].tolist()
    x, y, task = batches[0]
    assert torch.equal(x[:, 0], y.float())
    assert torch.equal(task, torch.zeros(10, dtype=torch.long))


def test_cached_and_loaded_batches_are_the_same(monkeypatch):
    torch.manual_seed(3)
    cached = take(BatchStream(numbered(30), 8), 5)
    monkeypatch.setattr(sampling, "CACHE_BYTES", 0)
    monkeypatch.setattr(sampling, "DataLoader", WithoutBaseSeed)
    torch.manual_seed(3)
    loaded = take(BatchStream(numbered(30), 8), 5)
    for a, b in zip(cached, loaded, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


class WithoutBaseSeed(torch.utils.data.DataLoader):
    """torch's loader draws one number for its workers before the first batch."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, generator=torch.Generator(), **kwargs)


def test_every_batch_is_full():
    stream = BatchStream(numbered(33), 16)
    assert {len(batch[0]) for batch in take(stream, 9)} == {16}


def test_data_set_smaller_than_a_batch_is_one_batch():
    stream = BatchStream(numbered(5), 16)
    assert [len(batch[0]) for batch in take(stream, 3)] == [5, 5, 5]


def test_deterministic_transformation_is_applied_and_cached():
    stream = BatchStream(with_transform(lambda x: x * 10), 40)
    assert is_cached(stream)
    x, y, _ = take(stream, 1)[0]
    assert torch.equal(x[:, 0], 10 * y.float())


def own_generator():
    generator = torch.Generator().manual_seed(0)
    return lambda x: x + torch.rand(1, generator=generator)


@pytest.mark.parametrize(
    "transform",
    [lambda x: x + torch.rand(1), lambda x: x + __import__("random").random(), own_generator()],
    ids=["torch", "python", "own generator"],
)
def test_random_augmentation_stays_random(transform):
    stream = BatchStream(with_transform(transform), 40)
    assert not is_cached(stream)
    first, second = take(stream, 2)
    assert not torch.equal(first[0].sort(0).values, second[0].sort(0).values)


class Sentences(Dataset):
    """Samples of different lengths, padded within a batch."""

    def __len__(self):
        return 300

    def __getitem__(self, i):
        return torch.ones(1 + i % 7), i % 2

    @staticmethod
    def collate_fn(samples):
        x = torch.nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
        return [x, torch.tensor([y for _, y in samples])]


def test_samples_that_do_not_stack_alone_are_left_to_their_collate_function():
    stream = BatchStream(Sentences(), 8)
    assert not is_cached(stream)
    x, y = take(stream, 1)[0]
    assert x.shape[0] == y.shape[0] == 8


def test_batches_that_are_no_tensors_are_passed_on():
    class Named(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {"x": i}

    stream = BatchStream(Named(), 2)
    assert not is_cached(stream)
    assert take(stream, 1)[0].keys() == {"x"}


def test_chunks_that_differ_in_shape_are_not_cached(monkeypatch):
    monkeypatch.setattr(sampling, "_CHUNK", 3)
    assert not is_cached(BatchStream(Sentences(), 8))


def test_workers_fetch_what_is_not_cached(monkeypatch):
    monkeypatch.setattr(sampling, "CACHE_BYTES", 0)
    batches = take(BatchStream(AvalancheDataset([TensorDataset(torch.arange(8.0))]), 4, 1), 2)
    assert sorted(torch.cat([b[0] for b in batches]).tolist()) == list(range(8))
