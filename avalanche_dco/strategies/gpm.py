"""Gradient Projection Memory as a ready-made strategy."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch import nn
from torch.optim import Optimizer

from avalanche_dco.plugins.gpm import GPMPlugin


class GPM(SupervisedTemplate):
    """Gradient Projection Memory (Saha, Garg and Roy, ICLR 2021).

    To use it inside another strategy, pass :class:`~avalanche_dco.plugins.gpm.GPMPlugin` as one
    of its plugins.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Any = nn.CrossEntropyLoss(),  # noqa: B008 - stateless, as in Avalanche
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
