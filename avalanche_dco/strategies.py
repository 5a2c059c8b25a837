"""Ready-made strategies: Avalanche's template with one plugin of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch.nn import CrossEntropyLoss, Module
from torch.optim import Optimizer

from avalanche_dco.baselines.gpm import GPMPlugin
from avalanche_dco.core.compression import Loss, Start
from avalanche_dco.plugins.base import (
    DirectionConstrainedPlugin,
    GradientSource,
    ParameterFilter,
)
from avalanche_dco.plugins.dco import DCOPlugin
from avalanche_dco.plugins.dco_comp import DCOCompPlugin
from avalanche_dco.plugins.dco_kron import DCOKronPlugin
from avalanche_dco.plugins.support.penalised_training import PenaltyStep

__all__ = ["DCO", "GPM", "DCOComp", "DCOKron"]


class DCO(SupervisedTemplate):
    """Direction-Constrained Optimization strategy.

    See :class:`avalanche_dco.DCOPlugin` for details. This strategy does not use task identities.
    """

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        criterion: Any = CrossEntropyLoss(),  # noqa: B008 (stateless, as in Avalanche's own)
        k: int = 1000,
        dco_lambda: float = 100.0,
        gamma_1: float = 0.0,
        gamma_2: float = 0.1,
        push_epochs: int = 10,
        averaged_points: int = 16,
        theta: float = 0.2,
        gradients_per_update: int = 128,
        tau: int = 2,
        rho: float = 100.0,
        autoencoder_lr: float = 1e-2,
        autoencoder_updates: int = 200,
        autoencoder_tolerance: float | None = None,
        trajectory_lr: float = 1e-3,
        penalty_step: PenaltyStep = "implicit",
        max_penalty_grad_norm: float | None = 20.0,
        move_unused: bool = False,
        couple_layers: bool = True,
        gradient_source: GradientSource = "criterion",
        parameter_filter: ParameterFilter | None = None,
        max_bytes: float | None = None,
        train_mb_size: int = 1,
        train_epochs: int = 1,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[SupervisedPlugin] | None = None,
        evaluator: EvaluationPlugin | Callable[[], EvaluationPlugin] = default_evaluator,
        eval_every: int = -1,
        **base_kwargs: Any,
    ):
        """Init.

        :param model: The model.
        :param optimizer: The optimizer to use.
        :param criterion: The loss criterion to use.
        :param k: number of directions to learn per experience; for this and all the settings up
            to ``max_bytes`` see :class:`avalanche_dco.DCOPlugin`.
        :param train_mb_size: The train minibatch size. Defaults to 1.
        :param train_epochs: The number of training epochs. Defaults to 1.
        :param eval_mb_size: The eval minibatch size. Defaults to 1.
        :param device: The device to use. Defaults to cpu.
        :param plugins: Plugins to be added. Defaults to None.
        :param evaluator: (optional) instance of EvaluationPlugin for logging and metric
            computations.
        :param eval_every: the frequency of the calls to `eval` inside the training loop. -1
            disables the evaluation. 0 means `eval` is called only at the end of the learning
            experience, after the push into the cone.
        :param base_kwargs: any additional :class:`~avalanche.training.BaseTemplate` constructor
            arguments.
        """
        dco = self._make_plugin(
            k,
            dco_lambda=dco_lambda,
            gamma_1=gamma_1,
            gamma_2=gamma_2,
            push_epochs=push_epochs,
            averaged_points=averaged_points,
            theta=theta,
            gradients_per_update=gradients_per_update,
            tau=tau,
            rho=rho,
            autoencoder_lr=autoencoder_lr,
            autoencoder_updates=autoencoder_updates,
            autoencoder_tolerance=autoencoder_tolerance,
            trajectory_lr=trajectory_lr,
            penalty_step=penalty_step,
            max_penalty_grad_norm=max_penalty_grad_norm,
            move_unused=move_unused,
            couple_layers=couple_layers,
            gradient_source=gradient_source,
            parameter_filter=parameter_filter,
            max_bytes=max_bytes,
        )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=[dco, *(plugins or [])],  # others that look at the weights see x*
            evaluator=evaluator,
            eval_every=eval_every,
            **base_kwargs,
        )

    def _make_plugin(self, k: int, **settings: Any) -> DirectionConstrainedPlugin:
        return DCOPlugin(k, **settings)


class DCOComp(DCO):
    """Compressed Direction-Constrained Optimization strategy (DCO-COMP).

    See :class:`avalanche_dco.DCOCompPlugin` for details. This strategy does not use task
    identities.
    """

    def __init__(
        self,
        *,
        k: int = 1000,
        new_task_k: int | None = None,
        compression_updates: int = 50,
        compression_lr: float = 2e-2,
        compression_start: Start = "previous",
        compression_loss: Loss = "gradients",
        **dco_kwargs: Any,
    ):
        """Init.

        :param k: number of directions to keep for all experiences together; for this and the
            following settings see :class:`avalanche_dco.DCOCompPlugin`.
        :param dco_kwargs: model, optimizer and all other arguments of
            :class:`avalanche_dco.DCO`.
        """
        self._compression: dict[str, Any] = {
            "new_task_k": new_task_k,
            "compression_updates": compression_updates,
            "compression_lr": compression_lr,
            "compression_start": compression_start,
            "compression_loss": compression_loss,
        }
        super().__init__(k=k, **dco_kwargs)

    def _make_plugin(self, k: int, **settings: Any) -> DirectionConstrainedPlugin:
        return DCOCompPlugin(k, **self._compression, **settings)


class DCOKron(SupervisedTemplate):
    """Direction-Constrained Optimization strategy with directions in closed form (DCO-KRON).

    See :class:`avalanche_dco.DCOKronPlugin` for details. This strategy does not use task
    identities.
    """

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        criterion: Any = CrossEntropyLoss(),  # noqa: B008 (stateless, as in Avalanche's own)
        dco_lambda: float = 100.0,
        samples: int = 1000,
        negligible: float = 0.02,
        damp_every: int = 8,
        parameter_filter: ParameterFilter | None = None,
        plugins: Sequence[SupervisedPlugin] | None = None,
        **base_kwargs: Any,
    ):
        """Init.

        :param model: The model.
        :param optimizer: The optimizer to use.
        :param criterion: The loss criterion to use.
        :param dco_lambda: strength of the penalty; for this and the following settings see
            :class:`avalanche_dco.DCOKronPlugin`.
        :param plugins: Plugins to be added. Defaults to None.
        :param base_kwargs: any additional
            :class:`~avalanche.training.templates.SupervisedTemplate` constructor arguments.
        """
        kron = DCOKronPlugin(
            dco_lambda,
            samples=samples,
            negligible=negligible,
            damp_every=damp_every,
            parameter_filter=parameter_filter,
        )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            plugins=[*(plugins or ()), kron],
            **base_kwargs,
        )


class GPM(SupervisedTemplate):
    """Gradient Projection Memory (Saha, Garg and Roy, ICLR 2021).

    To use it inside another strategy, pass :class:`~avalanche_dco.baselines.gpm.GPMPlugin` as one
    of its plugins.
    """

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        criterion: Any = CrossEntropyLoss(),  # noqa: B008 (stateless, as in Avalanche's own)
        threshold: float | Sequence[float] = (0.95, 0.99),
        threshold_growth: float = 0.0,
        samples: int = 300,
        layers: Sequence[str] | None = None,
        project_head: bool = True,
        train_mb_size: int = 1,
        train_epochs: int = 1,
        eval_mb_size: int | None = 1,
        device: str | torch.device = "cpu",
        plugins: Sequence[SupervisedPlugin] | None = None,
        evaluator: EvaluationPlugin | Callable[[], EvaluationPlugin] | None = default_evaluator,
        eval_every: int = -1,
        **base_kwargs: Any,
    ):
        """Create the strategy.

        :param model: PyTorch model.
        :param optimizer: PyTorch optimizer; any will do, see the plugin.
        :param criterion: loss function.
        :param threshold: share of the energy of a layer's inputs that its basis has to hold; one
            value, or one per layer in the order of the calls (the last holds for all further).
        :param threshold_growth: added to the threshold with each experience, up to 1.
        :param samples: size of the random subset on which the inputs are collected.
        :param layers: names (``fnmatch`` patterns) of the layers to project; None for all.
        :param project_head: True for a head that all experiences share, False for one per task.
        :param train_mb_size: mini-batch size for training.
        :param train_epochs: number of training epochs.
        :param eval_mb_size: mini-batch size for eval.
        :param device: PyTorch device to run the model.
        :param plugins: (optional) list of further plugins.
        :param evaluator: (optional) instance of EvaluationPlugin for logging and metrics.
        :param eval_every: the frequency of the calls to `eval` inside the training loop.
        :param base_kwargs: any additional :class:`~avalanche.training.BaseTemplate` arguments.
        """
        gpm = GPMPlugin(
            threshold,
            threshold_growth=threshold_growth,
            samples=samples,
            layers=layers,
            project_head=project_head,
        )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=[*(plugins or ()), gpm],
            evaluator=evaluator,
            eval_every=eval_every,
            **base_kwargs,
        )
