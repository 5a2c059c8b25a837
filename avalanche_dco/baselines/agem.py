"""Averaged Gradient Episodic Memory that samples its memory."""

from collections.abc import Iterator
from typing import Any

from avalanche.benchmarks.utils.data_loader import GroupBalancedInfiniteDataLoader
from avalanche.training import plugins

from avalanche_dco.errors import SettingError


class AGEMPlugin(plugins.AGEMPlugin):
    """Avalanche's A-GEM with a random sample of the memory for each step.

    Avalanche 0.6.0 reads its memory in a fixed order: the loader is made without ``shuffle``, so
    the same few batches come back in turn. The paper (Chaudhry et al., 2019) draws them at
    random. Besides, a ``sample_size`` smaller than the number of experiences in memory fails in
    the data loader with a batch size of zero; here an error says so.
    """

    def update_memory(self, dataset: Any, num_workers: int = 0, **kwargs: Any) -> None:
        """Add an experience to the memory, and shuffle it from now on.

        :param dataset: the data of the experience.
        :param num_workers: of the data loader.
        """
        if self.sample_size <= len(self.buffers):
            raise SettingError(
                f"AGEMPlugin(sample_size={self.sample_size}) leaves no pattern for each of "
                f"{len(self.buffers) + 1} experiences; write a sample_size of at least the number "
                "of experiences, better some hundreds."
            )
        super().update_memory(dataset, num_workers, **kwargs)
        # A running iterator can be neither saved nor continued bit for bit: it starts when asked.
        self.buffer_dataloader = None
        self.buffer_dliter: Iterator[Any] = iter(())
        self._num_workers = num_workers

    def sample_from_memory(self) -> Any:
        """A mini-batch drawn from the memory, as many patterns of each experience."""
        if self.buffer_dataloader is None:
            loader: Any = GroupBalancedInfiniteDataLoader(
                self.buffers,
                batch_size=self.sample_size // len(self.buffers),
                shuffle=True,
                num_workers=self._num_workers,
                pin_memory=False,
                persistent_workers=self._num_workers > 0,
            )
            self.buffer_dataloader, self.buffer_dliter = loader, iter(loader)
        return super().sample_from_memory()
