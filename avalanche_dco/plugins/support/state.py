"""What a plugin remembers, as plain tensors, numbers, strings, lists and dictionaries.

A state can be saved with ``torch.save`` and read with ``torch.load(..., weights_only=True)``: no
code runs when a file of someone else is opened. It says which plugin, settings, model and progress
it belongs to, and carries a checksum of itself.
"""

from __future__ import annotations

import warnings
from typing import Any

from avalanche.training.plugins.clock import Clock
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_dco.core.checked import entries, is_count, is_shape, require
from avalanche_dco.errors import ModelError, StateError
from avalanche_dco.plugins.support.isolation import difference, grows_by_itself, shapes_of
from avalanche_dco.plugins.support.kept import Kept, Plain, checksum, moved, plain, tensors_in

FORMAT = 1
"""Version of the states; another one is refused."""

_KIND = "avalanche_dco plugin state"
_ENTRIES = ("kind", "format", "plugin", "settings", "parameters", "clock", "memory", "checksum")


class PluginState:
    """Adds ``state_dict``, ``load_state_dict`` and ``memory_bytes`` to a plugin.

    A class that uses it declares what it keeps in ``_KEEPS``, and calls :meth:`_finished` at the
    end of its ``after_training_exp``.
    """

    _KEEPS: tuple[Kept, ...] = ()
    """What is kept between experiences."""

    _SETTINGS: tuple[str, ...] = ()
    """Attributes that a state records."""
    _BINDING: tuple[str, ...] = ()
    """Those of them without which the memory cannot be used: they must be the same."""
    _CHANGES_WITHIN = False
    """Whether the memory also changes before an experience has ended."""
    _ON_MODEL_DEVICE = True
    """Whether the memory has to be where the model is."""
    _FOR_ALL_PARAMETERS = False
    """Whether the memory is valid only while the model keeps all of its parameters."""

    # Class attributes stand in for an __init__, which Avalanche's plugins do not pass on.
    _parameters: dict[str, list[int]] | None = None
    _clock: dict[str, int] | None = None
    _loaded = False
    _within = False

    # ------------------------------------------------------------------------- for the user

    @property
    def memory_bytes(self) -> int:
        """Bytes kept between experiences."""
        held = [(kept.form, kept.get(self)) for kept in self._KEEPS]
        tensors = [t for form, value in held if value is not None for t in form.tensors(value)]
        # What several entries share counts once.
        return sum({(t.data_ptr(), t.nbytes): t.nbytes for t in tensors}.values())

    def state_dict(self) -> Plain:
        """What the plugin has learned up to the last finished experience.

        :return: tensors, numbers, strings, lists and dictionaries only; the tensors are the
            plugin's own, not copies.
        """
        if self._within and self._CHANGES_WITHIN:
            raise StateError(
                f"{type(self).__name__} is in the middle of an experience, or was interrupted "
                "there, and what it remembers changes with every step. Take its state after "
                "strategy.train(...) has returned, or resume from the last checkpoint."
            )
        state: Plain = {
            "kind": _KIND,
            "format": FORMAT,
            "plugin": type(self).__name__,
            "settings": self._settings(),
            "parameters": self._parameters,
            "clock": self._clock,
            "memory": None if self._clock is None else self._memory(),
        }
        return state | {"checksum": checksum(state)}

    def load_state_dict(self, state: Plain, model: nn.Module | None = None) -> None:
        """Take over a state; the plugin is left as it is if the state does not fit.

        The tensors go to the model's device when training starts, and the strategy's clock is
        then set to the number of experiences that the state knows.

        :param state: what :meth:`state_dict` gave, in this process or another.
        :param model: the model that is going to be trained, to have it compared with the state
            at once; otherwise that is done when training starts.
        """
        self._refuse_other(state)
        if model is not None and state["parameters"] is not None:
            _refuse_other_model(type(self).__name__, state["parameters"], model)
        if state["memory"] is not None:
            self._set_memory(state["memory"], state["parameters"])
        elif self._clock is not None:
            raise StateError(
                f"The state is that of a {type(self).__name__} that has learned nothing yet, and "
                "this one has. Make a new plugin instead of loading it."
            )
        self._parameters, self._clock = state["parameters"], state["clock"]
        self._loaded, self._within = True, False

    # ---------------------------------------------------------------------- for the plugins

    def before_training(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Fit a state that was loaded to its strategy; warn of one from another run."""
        if self._parameters is not None:
            if self._loaded:
                _refuse_other_model(type(self).__name__, self._parameters, strategy.model)
                self._set_clock(strategy)
                self._loaded = False
            else:
                self._warn_of_another_run(strategy)
                if self._FOR_ALL_PARAMETERS:
                    self._refuse_changed_model(self._parameters, strategy.model)
            self._move_memory(strategy.model)
        super().before_training(strategy, *args, **kwargs)  # type: ignore[misc]

    def before_train_dataset_adaptation(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Note that an experience has begun; there is no earlier callback."""
        self._within = True
        super().before_train_dataset_adaptation(  # type: ignore[misc]
            strategy, *args, **kwargs
        )

    def _finished(self, strategy: SupervisedTemplate, **kept: Any) -> None:
        """Note that the memory is now that of one more experience.

        :param kept: attributes to set with it. An interrupt finds all of them set, or none.
        """
        counted = {name: n for name, n in vars(strategy.clock).items() if isinstance(n, int)}
        # The clock counts after all plugins.
        clock = counted | {"train_exp_counter": counted["train_exp_counter"] + 1}
        vars(self).update(kept, _parameters=shapes_of(strategy.model), _clock=clock, _within=False)

    def _memory(self) -> Plain:
        """What is kept, as plain data."""
        values = ((kept, kept.get(self)) for kept in self._written())
        return {
            kept.name: None if value is None else kept.form.plain(value) for kept, value in values
        }

    def _set_memory(self, memory: Any, parameters: dict[str, list[int]]) -> None:
        """Take over what :meth:`_memory` gave; all of it is read before any of it is assigned."""
        entries(memory, (kept.name for kept in self._written()), "the memory")
        values = [kept.read(memory, parameters) for kept in self._written()]
        for kept, value in zip(self._written(), values, strict=True):
            kept.put(self, value)
        self._restored()

    def _written(self) -> list[Kept]:
        return [kept for kept in self._KEEPS if not kept.derived]

    def _restored(self) -> None:
        """Make what follows from the memory that was taken over."""

    def _settings(self) -> Plain:
        return {name: plain(getattr(self, name)) for name in self._SETTINGS}

    def _set_clock(self, strategy: SupervisedTemplate) -> None:
        assert self._clock is not None
        clock, wanted = strategy.clock, self._clock["train_exp_counter"]
        if clock.train_exp_counter == clock.train_iterations == 0:
            vars(clock).update({name: n for name, n in self._clock.items() if name in vars(clock)})
        elif clock.train_exp_counter != wanted:
            raise StateError(
                f"The state of {type(self).__name__} knows {wanted} experiences, but this strategy "
                f"has trained {clock.train_exp_counter}. Load it into a plugin of a strategy that "
                "has not trained yet, or has trained the same experiences."
            )

    def _warn_of_another_run(self, strategy: SupervisedTemplate) -> None:
        if strategy.clock.train_exp_counter == strategy.clock.train_iterations == 0:
            mine = type(self).__name__
            warnings.warn(
                f"This {mine} has learned in another strategy already, and this strategy has not "
                "trained yet: what it remembers of the other run will be mixed up with this one. "
                "Make a new plugin for every run. To continue with the model of the other run, let "
                "the plugin load its own state first, plugin.load_state_dict(plugin.state_dict()): "
                "it then sets this strategy's clock.",
                stacklevel=2,
            )

    def _refuse_changed_model(self, parameters: dict[str, list[int]], model: nn.Module) -> None:
        change = difference(
            parameters, shapes_of(model), may_grow=True, when=("after the last experience", "now")
        )
        if change:
            raise ModelError(
                f"The model has changed since the last experience: {change}. What "
                f"{type(self).__name__} remembers no longer applies. Between experiences a model "
                "may gain parameters, or grow them, but not lose or reshape any."
            )

    def _move_memory(self, model: nn.Module) -> None:
        some = next(model.parameters(), None)
        if some is None or not self._ON_MODEL_DEVICE:
            return
        memory = self._memory()
        if any(tensor.device != some.device for tensor in tensors_in(memory)):
            assert self._parameters is not None
            self._set_memory(moved(memory, some.device), self._parameters)

    def _refuse_other(self, state: Any) -> None:
        mine = type(self).__name__
        if not isinstance(state, dict) or state.get("kind") != _KIND:
            raise StateError(
                f"This is not the state of a plugin of avalanche_dco. Give {mine}.load_state_dict "
                "what the state_dict of another one returned."
            )
        if state.get("format") != FORMAT:
            raise StateError(
                f"The state has format {state.get('format')!r}, and this version of avalanche_dco "
                f"reads {FORMAT}. Use the version that wrote it."
            )
        content = {name: value for name, value in state.items() if name != "checksum"}
        try:
            sound = tuple(state) == _ENTRIES and checksum(content) == state["checksum"]
        except RuntimeError as error:  # of torch or Python: a sparse tensor, lists without end
            raise StateError(
                "The state contains something other than plain data (dense tensors, numbers, "
                f"strings, lists and dictionaries): {error}. Load what state_dict returned."
            ) from error
        if not sound:
            raise StateError(
                "The state does not have the checksum that it was saved with: some of it has "
                "changed. Use an unchanged copy."
            )
        if state["plugin"] != mine:
            raise StateError(
                f"The state is that of {state['plugin']}, and this is {mine}. Load it into a "
                f"{state['plugin']}."
            )
        settings = self._settings()
        made_with = dict(
            zip(settings, entries(state["settings"], settings, "'settings'"), strict=True)
        )
        for name in self._BINDING:
            there, here = made_with[name], settings[name]
            if type(there) is not type(here) or there != here:
                raise StateError(
                    f"The state was made with {name}={there!r}, and this {mine} has "
                    f"{name}={here!r}. Make the plugin with the same setting."
                )
        parameters, clock = state["parameters"], state["clock"]
        if parameters is clock is state["memory"] is None:
            return  # nothing learned yet
        require(
            isinstance(parameters, dict)
            and all(isinstance(name, str) and is_shape(parameters[name]) for name in parameters),
            "'parameters' have to map names to shapes",
        )
        counters = entries(clock, vars(Clock()), "'clock'")
        require(all(map(is_count, counters)), "'clock' has to be whole numbers of at least 0")
        require(state["memory"] is not None, "it has experiences but no memory of them")


def _refuse_other_model(plugin: str, parameters: dict[str, list[int]], model: nn.Module) -> None:
    change = difference(
        parameters,
        shapes_of(model),
        may_grow=grows_by_itself(model),
        when=("in the state", "in this model"),
    )
    if change:
        raise StateError(
            f"The state of {plugin} belongs to another model: {change}. Build the model as it "
            "was and load its own state before you train; only a model with Avalanche's dynamic "
            "modules, such as IncrementalClassifier, may have grown since."
        )
