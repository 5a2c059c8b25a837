"""What the corrected plugins of Avalanche share: requirements, tables, batches, importances."""

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.utils import ParamData
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import SparseAdam
from torch.utils.data import DataLoader

from avalanche_dco.baselines.per_sample import Batch
from avalanche_dco.baselines.quadratic import Quadratic
from avalanche_dco.core.checked import is_count, is_floating, require
from avalanche_dco.errors import GradientError, ModelError, SettingError
from avalanche_dco.plugins.support.checks import InputChecks
from avalanche_dco.plugins.support.isolation import model_kept, random_state_kept
from avalanche_dco.plugins.support.kept import Form, Shapes, Tensors, is_parameter
from avalanche_dco.plugins.support.state import PluginState

Table = Mapping[str, ParamData]
"""By parameter name."""


class CorrectedPlugin(InputChecks, PluginState):
    """Refuses models and optimizers that the method is not defined for; to inherit from."""

    _NEEDS_SHAPES = False
    """Whether the method looks at the parameters before the first forward pass."""

    def before_training(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Refuse complex parameters, optimizers for sparse gradients and, for some, lazy layers."""
        mine = type(self).__name__
        for name, parameter in strategy.model.named_parameters():
            if self._NEEDS_SHAPES and is_lazy(parameter):
                raise ModelError(
                    f"Parameter '{name}' has no shape yet, because its layer is lazy, and {mine} "
                    "needs all shapes before the first step. Call the model once with a batch of "
                    "inputs before you train it."
                )
            if parameter.is_complex():
                raise ModelError(
                    f"Parameter '{name}' is complex, and {mine} is defined for real parameters. "
                    "Hold the real and the imaginary part in one real parameter, and combine them "
                    "in forward with torch.view_as_complex."
                )
        if isinstance(strategy.optimizer, SparseAdam):
            raise SettingError(
                f"{mine} makes the gradients dense, and SparseAdam takes sparse ones only. Use "
                "another optimizer, such as torch.optim.Adam with nn.Embedding(..., sparse=False)."
            )
        super().before_training(strategy, *args, **kwargs)


class QuadraticPenalty(CorrectedPlugin):
    """Adds a penalty that is made anew at the first step of each experience."""

    _penalty: Quadratic | None = None

    @abstractmethod
    def _tables(self, strategy: SupervisedTemplate) -> Iterable[tuple[Table, Table]]:
        """Importances and weights; the penalty is the sum over all such pairs."""

    def _penalised(self, strategy: SupervisedTemplate) -> Iterable[tuple[str, Tensor]]:
        """The parameters, shaped like the entries of the tables."""
        return strategy.model.named_parameters()

    def _add_penalty(self, strategy: SupervisedTemplate, strength: float) -> None:
        if self._penalty is None:
            self._penalty = self._made(strategy)
        penalty = strength * self._penalty.of(self._penalised(strategy))
        strategy.loss += penalty.to(strategy.device) if isinstance(penalty, Tensor) else penalty

    def _made(self, strategy: SupervisedTemplate) -> Quadratic:
        penalty = Quadratic()
        for importances, weights in self._tables(strategy):
            for name, p in self._penalised(strategy):
                if name in importances:  # otherwise it is new
                    importance, centre = (t[name].expand(p.shape) for t in (importances, weights))
                    penalty.add(name, p, importance, centre)
        return penalty

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Forget the penalty of an experience that was interrupted."""
        self._penalty = None
        super().before_training_exp(strategy, *args, **kwargs)  # type: ignore[misc]

    def _finished(self, strategy: SupervisedTemplate, **kept: Any) -> None:
        super()._finished(strategy, _penalty=None, **kept)

    def _restored(self) -> None:
        self._penalty = None
        super()._restored()


class PerSampleImportances(CorrectedPlugin):
    """Tries the pass on two samples before a strategy's first step.

    A model or a criterion that the pass cannot deal with is thus refused before it is trained.
    """

    @abstractmethod
    def _importances(
        self, model: nn.Module, batches: Iterable[Batch], criterion: Any
    ) -> dict[str, Tensor]:
        """The importances of each parameter, averaged over the samples."""

    def before_training_iteration(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse what the pass after the experience would fail on."""
        super().before_training_iteration(strategy, *args, **kwargs)
        model = strategy.model
        if strategy.clock.train_iterations or any(map(is_lazy, model.parameters())):
            return
        with model_kept(model, weights=False), random_state_kept():
            model.eval()
            with torch.no_grad():
                outputs = strategy.forward()
            self._check_labels(strategy, outputs)
            # A loss that is infinite now may be finite once the model has been trained.
            with suppress(GradientError):
                x, y, task_labels = unpacked([part[:2] for part in strategy.mbatch])
                self._importances(model, [(x, y, task_labels)], strategy._criterion)


def loaded_batches(
    dataset: Any, batch_size: int, device: str | torch.device, num_workers: int = 0
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, targets and task labels, in order; task 0 where the data have no task labels."""
    collate = getattr(dataset, "collate_fn", None)
    loader = DataLoader(dataset, batch_size=batch_size, collate_fn=collate, num_workers=num_workers)
    for batch in loader:
        x, y, task_labels = unpacked(batch)
        yield x.to(device), y.to(device), task_labels


def unpacked(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and task labels; task 0 where the data have no task labels."""
    x, y, *others = batch
    return x, y, others[-1] if others else torch.zeros(len(x), dtype=torch.int64)


def labelled(targets: Tensor, criterion: Any) -> Tensor:
    """Which samples the criterion does not ignore, by ``ignore_index`` or a weight of zero."""
    known = torch.ones_like(targets, dtype=torch.bool)
    ignored = getattr(criterion, "ignore_index", None)
    if ignored is not None and not targets.is_floating_point():  # otherwise probabilities
        known = targets != ignored
        if criterion.weight is not None:
            known[known.clone()] = criterion.weight[targets[known]] != 0
    return known.reshape(len(targets), -1).any(1)


def as_param_data(tensors: Mapping[str, Tensor]) -> dict[str, ParamData]:
    """One for each tensor, on its device."""
    return {
        name: ParamData(name, value.shape, init_tensor=value, device=value.device)
        for name, value in tensors.items()
    }


@dataclass(frozen=True)
class _Table(Tensors):
    """``ParamData`` by parameter name.

    :param whole: whether every parameter of the model has an entry.
    :param on_cpu: whether the tensors have to be there.
    """

    whole: bool = False
    on_cpu: bool = False

    def plain(self, value: Mapping[str, ParamData]) -> dict[str, Tensor]:
        return {name: entry.data for name, entry in value.items()}

    def read(self, plain: Any, what: str, shapes: Shapes) -> dict[str, ParamData]:
        tensors = super().read(plain, what, shapes)
        complete = not self.whole or tensors.keys() == shapes.keys()
        require(complete, f"{what} lacks some of the model's parameters")
        return as_param_data({n: t.cpu() if self.on_cpu else t for n, t in tensors.items()})


class _TablesByExperience(Form):
    def plain(self, value: Mapping[int, Mapping[str, ParamData]]) -> dict[int, dict[str, Tensor]]:
        return {number: TABLE.plain(table) for number, table in value.items() if table}

    def read(self, plain: Any, what: str, shapes: Shapes) -> dict[int, dict[str, ParamData]]:
        by_number = isinstance(plain, dict) and all(is_count(number) for number in plain)
        require(by_number, f"{what} must be a dictionary with numbers of experiences as keys")
        tables = {n: TABLE.read(table, f"{what}[{n}]", shapes) for n, table in plain.items()}
        return defaultdict(dict, tables)


def _is_flat_parameter(value: Tensor, name: str, shapes: Shapes) -> bool:
    return name in shapes and is_floating(value, [math.prod(shapes[name])])


TABLE = _Table(is_parameter)
WHOLE_TABLE = _Table(is_parameter, whole=True)
FLAT_TABLE = _Table(_is_flat_parameter, on_cpu=True)
TABLES_BY_EXPERIENCE = _TablesByExperience()
