"""The loss landscape around a trained model: Section 3 of the paper, for any model and data.

Pure tensors and ``torch.nn``. The usual steps:

1. :func:`trajectory_spectrum` follows the optimizer after convergence and gives the averaged
   gradient and the eigenvectors of :math:`G G^T`, the largest eigenvalue first;
2. :class:`LossLandscape` evaluates the loss at many perturbed parameter vectors at once:
   :meth:`~LossLandscape.loss_on_plane` is the paper's f, :meth:`~LossLandscape.loss_in_subspace`
   its h, and :meth:`~LossLandscape.cone_boundary` returns how far the loss stays below a level.

The model is restored afterwards: parameters, buffers, gradients and modes.
"""

from avalanche_dco.landscape.spectrum import GradientSpectrum, gradient_spectrum
from avalanche_dco.landscape.surface import LossLandscape, SubspaceLoss
from avalanche_dco.landscape.trajectory import (
    FlatParameters,
    trajectory_gradients,
    trajectory_spectrum,
)

__all__ = [
    "FlatParameters",
    "GradientSpectrum",
    "LossLandscape",
    "SubspaceLoss",
    "gradient_spectrum",
    "trajectory_gradients",
    "trajectory_spectrum",
]
