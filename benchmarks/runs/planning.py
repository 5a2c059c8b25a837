"""From what a user asks for to the runs that have to be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from avalanche_dco.errors import SettingError
from benchmarks.methods import DIRECTION_CONSTRAINED, get_method
from benchmarks.presets import PRESETS
from benchmarks.runs.cost import COUNTED_SETTINGS, COUNTED_TRAINING
from benchmarks.runs.jobs import Job, Split
from benchmarks.runs.search import Choice, Ladder
from benchmarks.runs.training import Settings, Training, divided
from benchmarks.runs.values import check_values, with_derived
from benchmarks.streams.catalogue import TASKS, Data, data_hashes, provide
from benchmarks.streams.cifar import EXPERIENCES

SEARCHED_TRAINING: Mapping[str, Ladder | Choice] = {
    "lr": Ladder(0.01),
    "later_lr_factor": Choice((1.0, 0.1)),
    "weight_decay": Choice((0.0, 0.001)),
}
"""What a search tunes of the training, for every method and benchmark from the same start."""


@dataclass(frozen=True)
class Assignment:
    """A value given on the command line.

    :param method: the method it is for; None for all.
    :param value: its value; for a grid all values to try.
    """

    method: str | None
    name: str
    value: Any


@dataclass(frozen=True)
class Request:
    """What a user asks for; see the command line's help.

    :param settings: changes to the methods' settings.
    :param chosen: settings that were chosen on a validation split, by method.
    :param match_compute: whether baselines get as many gradient evaluations as DCO.
    """

    benchmark: str
    methods: Sequence[str]
    preset: str = "paper"
    data: Data = field(default_factory=Data)
    training: Sequence[Assignment] = ()
    settings: Sequence[Assignment] = ()
    grids: Sequence[Assignment] = ()
    chosen: Mapping[str, Settings] | None = None
    match_compute: bool = False


class Plan:
    """Makes jobs; everything is checked here, before the first of them runs."""

    def __init__(self, request: Request):
        self.request = request
        self._preset = PRESETS[request.preset][request.benchmark]
        self._check_names()
        provide(request.benchmark, request.data)
        self._hashes = data_hashes(request.benchmark, request.data)
        self.benchmark = label(request.benchmark, request.data, self._hashes)

    def with_chosen(self, chosen: Mapping[str, Settings]) -> Plan:
        """The same with settings that were chosen."""
        plan = object.__new__(Plan)
        vars(plan).update(vars(self))
        plan.request = replace(self.request, chosen={**(self.request.chosen or {}), **chosen})
        return plan

    def job(
        self,
        method: str,
        seed: int,
        tried: Settings | None = None,
        split: Split = "test",
        give_up_above: float | None = None,
    ) -> Job:
        """One run."""
        training, settings = self._resolved(method, tried or {})
        return Job(
            protocol=self.request.benchmark,
            benchmark=self.benchmark,
            method=method,
            seed=seed,
            preset=self.request.preset,
            training=training,
            settings=settings,
            split=split,
            data=self.request.data,
            hashes=self._hashes,
            give_up_above=give_up_above,
        )

    def grid(self, method: str) -> dict[str, tuple[Any, ...]]:
        """The values to try for a method: those given, else the preset's, else the method's own.

        What the command line sets to one value is not tried.
        """
        own = self._preset.grids.get(method) or get_method(method).grid
        set_to_one = self._set_to_one(method)
        grid = {name: tuple(values) for name, values in own.items() if name not in set_to_one}
        return grid | self.given_grid(method)

    def coordinates(self, method: str, start: Settings | None = None) -> dict[str, Ladder | Choice]:
        """What a search tunes for a method: its strength, then the training.

        What the command line sets to one value is not tuned, nor is what has no effect: a method
        that is trained once has no later learning rate.

        :param start: values to start from, instead of the ladders' own.
        """
        start = start or {}
        known = get_method(method)
        without = {"later_lr_factor"} if known.whole_stream else set()
        without |= self._set_to_one(method)
        searched = {**known.ladders, **SEARCHED_TRAINING}
        return {
            name: values.starting_at(start[name]) if name in start else values
            for name, values in searched.items()
            if name not in without
        }

    def given_grid(self, method: str) -> dict[str, tuple[Any, ...]]:
        """The values to try that the command line has for a method."""
        has = get_method(method).arguments.keys() | set(Training.names())
        return {
            given.name: tuple(given.value)
            for given in self.request.grids
            if given.method == method or (given.method is None and given.name in has)
        }

    def combinations(self, grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
        """Every combination of a grid's values."""
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def open_names(self, method: str) -> list[str]:
        """Settings of a method that have to be chosen, because nobody has set them."""
        return sorted(get_method(method).grid.keys() - self._settings_so_far(method).keys())

    def _resolved(self, name: str, tried: Settings) -> tuple[Training, dict[str, Any]]:
        training_changes, settings = divided({**self._settings_so_far(name), **tried})
        method = get_method(name)
        resolved = method.resolved(settings)
        if method.plugin is not None:
            if name not in DIRECTION_CONSTRAINED:  # these check all of their values themselves
                check_values(method, resolved)
            # Complains about values now, not in a process; a default that follows from other
            # settings is recorded as it is, so that a change is noticed.
            resolved = with_derived(method, resolved)
        training = self._preset.training.changed(training_changes)
        if self.request.match_compute and name not in DIRECTION_CONSTRAINED:
            training = replace(training, matched_to=self._counted_settings(training))
        return training, resolved

    def _settings_so_far(self, method: str) -> dict[str, Any]:
        """Values of training and method: the preset's, the chosen ones, the command line's."""
        return {
            **self._preset.methods.get(method, {}),
            **(self.request.chosen or {}).get(method, {}),
            **self._given(method, self.request.training),
            **self._given(method, self.request.settings),
        }

    def _given(self, method: str, assignments: Sequence[Assignment]) -> dict[str, Any]:
        """What the command line has for a method; its own values go before those for all."""
        for_all = {given.name: given.value for given in assignments if given.method is None}
        return for_all | {
            given.name: given.value for given in assignments if given.method == method
        }

    def _set_to_one(self, method: str) -> set[str]:
        """Names of the settings and of the training that the command line has for a method."""
        return set(self._given(method, (*self.request.settings, *self.request.training)))

    def _counted_settings(self, training: Training) -> dict[str, int]:
        """What DCO's gradient evaluations depend on; of its training, what differs from this."""
        changes, own = divided(self._settings_so_far("dco"))
        known = get_method("dco").arguments
        settings = get_method("dco").resolved({n: own[n] for n in own if n in known})
        trained = self._preset.training.changed(changes)
        if settings["autoencoder_tolerance"] is not None:
            raise SettingError(
                "--match-compute has to know in advance how many gradients DCO evaluates, but with "
                f"autoencoder_tolerance={settings['autoencoder_tolerance']} it stops when it has "
                "learned enough. Leave autoencoder_tolerance out."
            )
        return {name: settings[name] for name in COUNTED_SETTINGS} | {
            name: getattr(trained, name)
            for name in COUNTED_TRAINING
            if getattr(trained, name) != getattr(training, name)
        }

    def _check_names(self) -> None:
        for option, assignments in (
            ("--set", self.request.settings),
            ("--training", self.request.training),
            ("--grid", self.request.grids),
        ):
            for given in assignments:
                if given.method is not None and given.method not in self.request.methods:
                    raise SettingError(
                        f"{option} {given.method}.{given.name}: {given.method} is not among "
                        f"--methods {' '.join(self.request.methods)}."
                    )
        for given in self.request.training:
            self._preset.training.changed({given.name: given.value})
        for given in self.request.settings:
            if given.name in Training.names():
                raise SettingError(
                    f"--set {given.name}={given.value}: that is a setting of the training; write "
                    f"--training {given.name}={given.value}."
                )
        for method in self.request.methods:
            self._refuse_twice(method)
        for given in self.request.grids:
            self._check_grid(given, [given.method] if given.method else list(self.request.methods))

    def _refuse_twice(self, method: str) -> None:
        for option, assignments in (
            ("--set", self.request.settings),
            ("--training", self.request.training),
        ):
            twice = self.given_grid(method).keys() & self._given(method, assignments).keys()
            if twice:
                raise SettingError(
                    f"{method}: {', '.join(sorted(twice))} is given by --grid and by {option}; "
                    "write one of them."
                )

    def _check_grid(self, given: Assignment, methods: Sequence[str]) -> None:
        counted = (*COUNTED_SETTINGS, *COUNTED_TRAINING)
        if self.request.match_compute and given.method in (None, "dco") and given.name in counted:
            raise SettingError(
                f"--grid {given.name} with --match-compute: baselines get the gradient evaluations "
                f"of one DCO, and these depend on {given.name}. Give DCO one value, with --set or "
                "--training; a grid for one baseline is written METHOD.NAME=V1,V2."
            )
        known = {*Training.names(), *(n for name in methods for n in get_method(name).arguments)}
        if given.name not in known:
            raise SettingError(
                f"--grid {given.name}: none of {', '.join(methods)} has such a setting; there are "
                f"{sorted(known)}."
            )


def label(name: str, data: Data, hashes: dict[str, str]) -> str:
    """What results are called: the benchmark, or the file that took its data's place.

    The number of experiences tells apart the benchmarks that one file can be split for.
    """
    like = TASKS[name].arrays_like
    if data.npz is None or like is None:
        return name
    return f"split{EXPERIENCES[like]}-{data.npz.name}-{hashes[data.npz.name][:8]}"
