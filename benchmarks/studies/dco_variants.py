"""What the study of DCO's cost compares: DCO's settings, and other ways to find directions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import torch

from avalanche_dco import DCOCompPlugin, DCOPlugin
from avalanche_dco.core.curvature import CurvatureEstimator
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors
from avalanche_dco.core.sampled import SampledDirections
from avalanche_dco.plugins.support.gradients import LogitSampler, assign, outputs_of, trainable
from avalanche_dco.plugins.support.sampling import BatchStream

_SAMPLES = 1000


class FactoredDCO(DCOPlugin):
    """Trains directions on gradients of single samples, which are factored.

    With m gradients of rank one as directions themselves, codes and their gradients are products
    of small matrices (:meth:`Directions.cross`): m (r + c) k operations per parameter instead of
    m r c k.
    """

    starts_from_samples = False
    updates = 50
    decay = 0.99
    gram_every = 1
    """Updates between two computations of S = W^T W; in between it is held fast."""
    blocks = 1
    """Parts of the directions, of which each is fitted by itself to a part of the gradients."""

    def _learn_directions(self, strategy: Any, stream: Any, x_star: Any) -> Any:
        constrained = self._constrained(strategy)
        gradients = _sampled(strategy, constrained, 4 * self.k, x_star).like_trained().directions
        numbers, size, found = torch.arange(gradients.k), self.k // self.blocks, []
        for block in range(self.blocks):
            if self.starts_from_samples:
                start = _sampled(strategy, constrained, size, x_star).like_trained().directions
            else:
                start = Directions.random(constrained, size)
            self._fit(start, gradients.select(numbers[block :: self.blocks]))
            found.append(start)
        return reduce(Directions.cat, found), torch.ones(self.k)

    def _fit(self, start: Directions, gradients: Directions) -> None:
        tensors = [t.requires_grad_() for f in start.factors.values() for t in (f.U, f.V)]
        optimizer = torch.optim.Adam(tensors, lr=self.autoencoder_lr)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.decay)
        with torch.enable_grad():
            for update in range(self.updates):
                batch = gradients.select(torch.randperm(gradients.k)[: self.gradients_per_update])
                energy = batch.gram().diagonal().sum()
                C = start.cross(batch)
                if update % self.gram_every == 0:
                    S = start.gram()
                lost = ((S @ C - 2 * C) * C).sum() / energy
                S = S.detach()
                optimizer.zero_grad()
                (self.rho * lost).backward()
                optimizer.step()
                schedule.step()
        for f in start.factors.values():
            f.U, f.V = f.U.detach(), f.V.detach()


class StaleGram(FactoredDCO):
    """The same with S = W^T W computed for one update of five."""

    gram_every = 5


class InBlocks(FactoredDCO):
    """The same in ten blocks of k / 10 directions, whose S has a hundredth of the entries."""

    blocks = 10


class SampledAndFitted(FactoredDCO):
    """The same from sampled directions on, with fewer updates."""

    starts_from_samples = True
    updates = 10


class EigenDCO(DCOPlugin):
    """The k largest eigendirections of each layer's curvature, from DCO-KRON's factors."""

    def _learn_directions(self, strategy: Any, stream: Any, x_star: Any) -> Any:
        constrained = self._constrained(strategy)
        assign(trainable(strategy.model), x_star)
        strategy.model.eval()
        estimator = CurvatureEstimator(strategy.model, constrained)
        chosen = torch.randperm(len(strategy.adapted_dataset))[:_SAMPLES].tolist()
        batches = BatchStream(strategy.adapted_dataset.subset(chosen), 32)
        for batch in itertools.islice(batches, _SAMPLES // 32):
            estimator.observe(partial(outputs_of, strategy, batch), 32)
        factors = {}
        for name, layer in estimator.finish().layers.items():
            (s, U), (a, V) = (torch.linalg.eigh(part[0]) for part in (layer.S, layer.A))
            weights = s.clamp(min=0)[:, None] * a.clamp(min=0)
            largest = weights.flatten().topk(min(self.k, weights.numel()))
            i, j = largest.indices // len(a), largest.indices % len(a)
            roots = largest.values.pow(0.25)
            factors[name] = Factors(U[:, i] * roots, V[:, j] * roots, constrained[name].shape)
        return Directions(self.k, factors), torch.ones(self.k)


def _sampled(strategy: Any, constrained: Any, k: int, x_star: Any) -> Any:
    strategy.model.eval()
    chosen = torch.randperm(len(strategy.adapted_dataset))[:k].tolist()
    stream = iter(BatchStream(strategy.adapted_dataset.subset(chosen), 1))
    sampled = SampledDirections(constrained, k)
    LogitSampler(strategy, stream, constrained, k, x_star=x_star).sample(sampled.add)
    return sampled.finish()


@dataclass(frozen=True)
class Variant:
    """A plugin and its settings.

    :param title: in words.
    :param settings: of the plugin, where they differ from its defaults.
    :param plugin: the plugin.
    """

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    plugin: type[DCOPlugin | DCOCompPlugin] = DCOPlugin


_SAMPLED = {"directions": "sampled", "dco_lambda": 100.0}
_TRAINED = {"directions": "trained", "dco_lambda": 100.0, "gradients_per_update": 16}
PAPER = "paper"
VARIANTS = {
    "default": Variant("the default"),
    "sampled": Variant("sampled directions", _SAMPLED),
    "every-1": Variant("penalty after every update", _SAMPLED | {"penalty_every": 1}),
    "every-32": Variant("penalty after 32 updates", _SAMPLED | {"penalty_every": 32}),
    "push-2": Variant("push of 2 epochs", _SAMPLED | {"push_epochs": 2}),
    "push-10": Variant("push of 10 epochs", _SAMPLED | {"push_epochs": 10}),
    "k-200": Variant("200 directions", _SAMPLED | {"k": 200}),
    "coupled": Variant("coupled layers", _SAMPLED | {"couple_layers": True}),
    "eigen": Variant("closed-form directions", {"dco_lambda": 100.0}, EigenDCO),
    "factored": Variant("50 factored updates", _SAMPLED, FactoredDCO),
    "factored-stale": Variant("50 factored updates, S = WᵀW in every fifth", _SAMPLED, StaleGram),
    "factored-blocks": Variant("50 factored updates in 10 blocks", _SAMPLED, InBlocks),
    "sampled-factored": Variant("sampled, then 10 factored updates", _SAMPLED, SampledAndFitted),
    "trained-50": Variant("50 updates with m = 16", _TRAINED | {"autoencoder_updates": 50}),
    "trained-200": Variant("200 updates with m = 16", _TRAINED),
    "trained-m-4": Variant("50 updates with m = 4",
                           _TRAINED | {"autoencoder_updates": 50, "gradients_per_update": 4}),
    "trained-decay": Variant("50 updates with m = 16, rate times 0.99",
                             _TRAINED | {"autoencoder_updates": 50, "autoencoder_lr_decay": 0.99}),
    "trained-stop": Variant("updates with m = 16 until the error stops falling",
                            _TRAINED | {"autoencoder_tolerance": 0.05}),
    "comp": Variant("DCO-COMP", plugin=DCOCompPlugin),
    "comp-trained": Variant("DCO-COMP, trained with m = 16",
                            _TRAINED | {"autoencoder_updates": 50, "compression_updates": 20},
                            DCOCompPlugin),
    PAPER: Variant("the paper's setting"),
}  # fmt: skip
