"""Synaptic Intelligence that has an effect on a CPU."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from avalanche.training import plugins
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.utils import ParamData
from torch import Tensor, nn
from torch.nn import functional

from avalanche_dco.baselines.shared import FLAT_TABLE, QuadraticPenalty, Table
from avalanche_dco.plugins.support.kept import Kept


class _WithoutSteps(plugins.SynapticIntelligencePlugin):
    """Avalanche's, which at every step matches all parameters with the excluded patterns anew."""

    before_training_iteration = plugins.SupervisedPlugin.before_training_iteration


class SynapticIntelligencePlugin(QuadraticPenalty, _WithoutSteps):
    r"""Avalanche's Synaptic Intelligence with six corrections.

    * Avalanche 0.6.0 takes its snapshots of the weights with ``param.detach().cpu().flatten()``,
      which on a CPU is the parameter's own memory. The snapshot moves along with the weights: the
      path integral stays zero, the distance to the old weights stays zero, and the plugin does
      nothing at any ``si_lambda``. Here the snapshots that outlive a step are copies.
    * Importances may become negative there, and the penalty then rewards any distance from the old
      weights: training diverges. Here they are at least zero.
    * Importances are cut off at 0.001 there, often far below the usual ones: then all weights are
      equally important, which is plain weight regularisation. Here the limit is an argument; the
      paper (Zenke, Poole and Ganguli, 2017) has none, but a larger ``eps``.
    * The path integral is taken there over the gradient of loss *and* penalty, so that a weight
      held by the penalty seems unimportant to the new task. Here the penalty's own part, which is
      known exactly, is taken off again.
    * It stops on weights that are not float32. Here path integrals and importances of double
      weights are double, and those of half and bfloat16 weights float32.
    * A parameter that is frozen for a later experience repeats its last step there at every step,
      and its importance changes. Here it has no path.

    >>> from avalanche_dco.baselines import SynapticIntelligencePlugin
    >>> plugin = SynapticIntelligencePlugin(si_lambda=1)
    """

    _KEEPS = (
        Kept("weights", FLAT_TABLE, "ewc_data.0"),
        Kept("importances", FLAT_TABLE, "ewc_data.1", like="weights"),
        Kept("path_integrals", FLAT_TABLE, "syn_data.cum_trajectory", like="weights"),
    )
    _SETTINGS = ("si_lambda", "eps", "excluded_parameters", "max_importance")
    _BINDING = ("excluded_parameters",)
    _CHANGES_WITHIN = True
    _FOR_ALL_PARAMETERS = True
    _NEEDS_SHAPES = True
    _ON_MODEL_DEVICE = False  # Avalanche computes its path integrals on the CPU

    def __init__(
        self,
        si_lambda: float | Sequence[float],
        eps: float = 0.0000001,
        excluded_parameters: Sequence[str] | None = None,
        device: Any = "as_strategy",
        *,
        max_importance: float | None = 0.001,
    ):
        """Create the plugin.

        :param si_lambda: strength of the penalty; a sequence gives one per experience.
        :param eps: damping of the importances of weights that hardly move (the paper's xi).
        :param excluded_parameters: names of parameters to leave free.
        :param device: where the penalty is computed.
        :param max_importance: limit of the importances; the default is Avalanche's. For the
            paper's form write None together with ``eps=0.1``.
        """
        super().__init__(si_lambda, eps, excluded_parameters, device)
        self.max_importance = max_importance
        self.ewc_data: Any = [{}, {}]  # Avalanche has a tuple, which takes no other tables

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Take the reference weights, as a copy."""
        self._make_room(strategy.model)
        allowed = self.not_excluded_parameters(strategy.model, self.excluded_parameters)
        self._allowed = {name for name, _ in allowed}
        super().before_training_exp(strategy, **kwargs)
        _own(self.ewc_data[0])

    def before_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Take the weights before the step, as a copy."""
        super().before_training_iteration(strategy, **kwargs)
        for name, parameter in self._followed(strategy.model):
            self.syn_data["old_theta"][name].data.copy_(_flat(parameter))

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the penalty."""
        self._add_penalty(strategy, self._strength(strategy) / 2)

    def _tables(self, strategy: SupervisedTemplate) -> list[tuple[Table, Table]]:
        references, importances = self.ewc_data
        return [(importances, references)]

    def _penalised(self, strategy: SupervisedTemplate) -> Iterator[tuple[str, Tensor]]:
        device = self.device(strategy)
        return ((name, p.to(device).flatten()) for name, p in self._followed(strategy.model))

    def _followed(self, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in model.named_parameters():
            if name in self._allowed and parameter.requires_grad:
                yield name, parameter

    def _strength(self, strategy: SupervisedTemplate) -> float:
        return self.si_lambda[min(strategy.clock.train_exp_counter, len(self.si_lambda) - 1)]

    @torch.no_grad()
    def after_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the step to the path integral, without the penalty's part of the gradient."""
        strength = self._strength(strategy)
        references, importances = self.ewc_data
        for name, parameter in self._followed(strategy.model):
            old = self.syn_data["old_theta"][name].data
            self.syn_data["new_theta"][name].data = new = _flat(parameter)
            gradient = _flat(parameter.grad).to(old.dtype)
            distance = old - references[name].data
            own = torch.addcmul(gradient, importances[name].data, distance, value=-strength)
            self.syn_data["trajectory"][name].data.addcmul_(own, new - old)

    @torch.no_grad()
    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Set the importances: the path integrals so far, none of them negative."""
        super().after_training_exp(strategy, **kwargs)
        for name, importance in self.ewc_data[1].items():
            integral = -self.syn_data["cum_trajectory"][name].data
            importance.data = integral.clamp(min=0, max=self.max_importance)
        _own(self.ewc_data[0])
        self._finished(strategy)

    def _make_room(self, model: nn.Module) -> None:
        """Make tables for parameters that are new or have grown, in their precision."""
        for name, parameter in self.allowed_parameters(model, self.excluded_parameters):
            dtype = _precision(parameter)
            for table in (*self.ewc_data, *self.syn_data.values()):
                old = table[name].data if name in table else torch.zeros(0)
                grown = functional.pad(old.to(dtype), (0, parameter.numel() - old.numel()))
                table[name] = ParamData(name, init_tensor=grown)

    def _restored(self) -> None:
        super()._restored()
        # The others live within an experience; Avalanche wants to find them by name.
        integrals = self.syn_data["cum_trajectory"]
        self.syn_data |= {
            kind: {name: ParamData(name, entry.shape) for name, entry in integrals.items()}
            for kind in ("old_theta", "new_theta", "grad", "trajectory")
        }


def _own(snapshot: dict[str, ParamData]) -> None:
    for entry in snapshot.values():
        entry.data = entry.data.to(_precision(entry.data), copy=True)


def _flat(values: Any) -> Tensor:
    return values.detach().cpu().flatten()


def _precision(weights: Tensor) -> torch.dtype:
    """In which to sum up: that of the weights, but at least float32."""
    return torch.promote_types(weights.dtype, torch.float32)
