"""Scaled Gradient Projection as an Avalanche plugin."""

from typing import Any

from avalanche.training.templates import SupervisedTemplate
from torch.nn import functional

from avalanche_dco.baselines.gpm import GPMPlugin
from avalanche_dco.baselines.gradient_projection import basis_importances
from avalanche_dco.plugins.support.settings import setting


class SGPPlugin(GPMPlugin):
    r"""Scaled Gradient Projection (Saha and Roy, AAAI 2023): GPM with graded importances.

    The bases are GPM's. Every basis vector has an importance between 0 and 1, and a layer may move
    along it by one minus its importance of what the optimizer wants; GPM forbids it. With the
    singular values :math:`\sigma_i` of an experience's inputs,

    .. math:: \lambda_i = \frac{(\alpha + 1) \sigma_i}{\alpha \sigma_i + \max_j \sigma_j}

    Importances add up over the experiences, to 1 at most.

    As in :class:`.GPMPlugin`, the change that the optimizer makes is confined, so that any
    optimizer may be used; here step by step, and not the gradient, which would be scaled twice.
    Its notes on biases, weight normalisation and unprotected parameters apply here too.

    >>> from avalanche_dco.baselines import SGPPlugin
    >>> plugin = SGPPlugin(threshold=0.97)
    """

    _IDEMPOTENT = False

    alpha: float = setting(
        default=10.0,
        meaning="weight of small singular values: 0 for importances in proportion to the singular "
        "values, the larger the more of them are near 1. The default is that of the authors' code "
        "for Split CIFAR-100.",
    )

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Extend the bases, and add what each vector means to this experience."""
        collected = self._collected(strategy)
        # Vector i has the norm sqrt(lambda_i): what is left of a change along it is 1 - lambda_i.
        orthonormal = {name: functional.normalize(b, dim=1) for name, b in self.bases.items()}
        extended = self._extended(strategy, orthonormal, collected)
        bases = dict(self.bases)
        for name, vectors in collected.items():
            importances = basis_importances(extended[name], vectors, self.alpha)
            if name in bases:
                earlier = bases[name].double().square().sum(1, keepdim=True)
                importances[:, :, : earlier.shape[2]] += earlier
            scales = importances.clamp(max=1.0).sqrt().to(extended[name])
            bases[name] = extended[name] * scales
        self._finished(strategy, bases=bases)
