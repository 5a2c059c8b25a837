"""Riemannian Walk that trains in train mode, with growing heads and short experiences."""

from typing import Any

from avalanche.training import plugins
from avalanche.training.utils import ParamData, copy_params_dict, zerolike_params_dict

from avalanche_dco.baselines.param_data import as_param_data, as_tensors
from avalanche_dco.model_state import modes_kept
from avalanche_dco.plugins.state import Plain, PluginState


class RWalkPlugin(PluginState, plugins.RWalkPlugin):
    """Avalanche's RWalk with three corrections.

    * Avalanche 0.6.0 puts the model into eval mode before every training iteration and leaves it
      there: dropout is off and batch normalisation frozen for the whole training.
    * Parameters that appear with an experience (the head of a new task) raise a ``KeyError``, and
      would never be given a score: its tables are made before the model is adapted, and scores are
      kept only for parameters of the first experience.
    * If no interval of ``delta_t`` iterations is complete at the end of an experience, all scores
      are zero and are divided by their maximum: the penalty is NaN. The interval that the end of
      the experience cuts short is counted instead; in Avalanche it is lost, or goes on into the
      next experience.
    """

    _SETTINGS = ("ewc_lambda", "ewc_alpha", "delta_t")
    _CHANGES_WITHIN = True
    _KEPT = ("iter_importance", "exp_importance", "exp_scores", "exp_params", "exp_penalties")

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Start the first interval of the experience, with the parameters it has by now."""
        self.checkpoint_loss = zerolike_params_dict(strategy.model)
        self.checkpoint_scores = zerolike_params_dict(strategy.model)
        self.checkpoint_params = copy_params_dict(strategy.model)

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Count the interval cut short, and give new parameters their first score."""
        self._update_score(strategy)
        if self.exp_scores is not None:
            for name, score in self.checkpoint_scores.items():
                if name not in self.exp_scores:
                    self.exp_scores[name] = ParamData(
                        name, init_tensor=score.data.clone(), device=score.device
                    )
        super().after_training_exp(strategy, *args, **kwargs)
        self._finished(strategy)

    def _update_grad(self, strategy: Any) -> None:
        with modes_kept(strategy.model):
            super()._update_grad(strategy)

    def _memory(self) -> Plain:
        return {name: as_tensors(getattr(self, name)) for name in self._KEPT}

    def _set_memory(self, memory: Plain) -> None:
        for name in self._KEPT:
            setattr(self, name, as_param_data(memory[name]))
