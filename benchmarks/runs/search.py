"""Choose values of several settings in few tries: one setting after the other, in steps.

A ladder has values in order, a choice has values without one. The search tries the neighbours on a
ladder and walks on while the error falls. It returns to the ladders until none of them has a better
neighbour, then tries the choices, and begins again if one of them has helped. If nothing can be
trained at the start, it first goes down the first ladder until something can. What is searched for
is not known here:

search = Search({"lr": Ladder(0.01), "weight_decay": Choice((0, 0.001))}, tries=12)
while (settings := search.asked) is not None:
    search.answer(error_of(settings))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import inf, isnan
from typing import Any

from avalanche_dco.errors import SettingError

Position = tuple[int, ...]
"""Steps from the start, one number per setting."""

INTERIOR = "interior"
LEVEL = "level"
END = "end"
ALL_TRIED = "all tried"
BRACKETED = "bracketed"
EDGE = "edge"
STATUSES: Mapping[str, str] = {
    INTERIOR: "both neighbours have been tried, with the same other settings, and are worse",
    LEVEL: "both neighbours have been tried and none is better, but one is as good",
    END: "the first or last value of its ladder; its only neighbour has been tried and is no "
    "better",
    ALL_TRIED: "a choice, and all other values have been tried with the same other settings",
    BRACKETED: "inside of what has been tried, but its neighbours only with other values of other "
    "settings: the tries ran out",
    EDGE: "at the edge of what has been tried: the tries ran out",
}
"""How sure a chosen value is, and what that means."""


@dataclass(frozen=True)
class Ladder:
    """Values in order, from which a search goes up and down.

    :param start: the value that is tried first.
    :param values: all values in order; with none the ladder is ..., 0.3, 1, 3, 10, 30, ... and has
        no end in either direction.
    """

    start: Any
    values: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.values and self.start not in self.values:
            raise SettingError(f"a ladder of {self.values} cannot start at {self.start}.")
        if not self.values and _digit(self.start) not in (1, 3):
            raise SettingError(
                f"a ladder without end has the values ..., 0.3, 1, 3, 10, 30, ...; it cannot start "
                f"at {self.start}."
            )

    def starting_at(self, value: Any) -> Ladder:
        """The same, begun at another value."""
        return replace(self, start=tuple(value) if isinstance(value, list) else value)

    def at(self, step: int) -> Any:
        """The value some steps above the start."""
        if self.values:
            return self.values[self.values.index(self.start) + step]
        exponent, half = divmod(2 * _exponent(self.start) + (_digit(self.start) == 3) + step, 2)
        return float(f"{3 if half else 1}e{exponent}")

    def has(self, step: int) -> bool:
        """Whether the ladder goes that far."""
        if not self.values:
            return True
        return 0 <= self.values.index(self.start) + step < len(self.values)

    def others(self, step: int) -> list[int]:
        """The steps whose values have to be no better for this one to be chosen: the next ones."""
        return [other for other in (step + 1, step - 1) if self.has(other)]


@dataclass(frozen=True)
class Choice:
    """Values without an order; the first is tried first."""

    values: tuple[Any, ...]

    def starting_at(self, value: Any) -> Choice:
        """The same, with one of the values before the others."""
        if value not in self.values:
            raise SettingError(f"a choice of {self.values} cannot start at {value}.")
        return Choice((value, *(other for other in self.values if other != value)))

    def at(self, step: int) -> Any:
        """One of the values."""
        return self.values[step]

    def others(self, step: int) -> list[int]:
        """The same for a choice: all other values."""
        return [other for other in range(len(self.values)) if other != step]


class Search:
    """Asks for one combination of settings after the other; see the module.

    :param coordinates: what each setting may be, the most important ones first.
    :param tries: how many combinations may be tried.
    """

    def __init__(self, coordinates: Mapping[str, Ladder | Choice], tries: int):
        if tries < 1:
            raise SettingError(f"a search needs at least one try, not {tries}.")
        self._coordinates = dict(coordinates)
        self.tries = tries
        self._errors: dict[Position, float] = {}
        self._walk = self._descend()
        self._asked: Position | None = next(self._walk)

    @property
    def asked(self) -> dict[str, Any] | None:
        """The combination to try next; None if the search has ended."""
        return None if self._asked is None else self._settings(self._asked)

    def answer(self, error: float | None) -> None:
        """Say how good the combination that was asked for is.

        :param error: the lower the better; None if it cannot be told, which is worse than any.
        """
        if self._asked is None:
            raise SettingError("the search has ended; there is nothing to answer.")
        self._errors[self._asked] = inf if error is None or isnan(error) else error
        self._asked = next(self._walk, None)

    @property
    def least_error(self) -> float | None:
        """That of the best combination so far; None if there is no error yet."""
        least = min(self._errors.values(), default=inf)
        return None if least == inf else least

    @property
    def best(self) -> dict[str, Any]:
        """The best combination so far; of equally good ones the first."""
        return self._settings(self._best)

    def statuses(self) -> dict[str, str]:
        """How sure the chosen value of each setting is, in words of :data:`STATUSES`."""
        return {name: self._status(axis) for axis, name in enumerate(self._coordinates)}

    @property
    def _best(self) -> Position:
        return min(self._errors, key=self._errors.__getitem__)

    def _settings(self, position: Position) -> dict[str, Any]:
        pairs = zip(self._coordinates.items(), position, strict=True)
        return {name: values.at(step) for (name, values), step in pairs}

    def _axes(self, kind: type) -> list[int]:
        all_values = enumerate(self._coordinates.values())
        return [axis for axis, values in all_values if isinstance(values, kind)]

    def _values(self, axis: int) -> Ladder | Choice:
        return list(self._coordinates.values())[axis]

    # ---------------------------------------------------------------------------------- the search

    def _descend(self) -> Iterator[Position]:
        """Combinations to try, each once; an answer has to be there when the next is asked for."""
        yield (0,) * len(self._coordinates)
        yield from self._retreat()
        before = None
        while before != self._best:
            before = self._best
            yield from self._settle(self._axes(Ladder))
            for axis in self._axes(Choice):
                yield from self._line(axis)

    def _retreat(self) -> Iterator[Position]:
        """Smaller and smaller values on the first ladder, until something can be trained."""
        start, step = (0,) * len(self._coordinates), -1
        for axis in self._axes(Ladder)[:1]:
            ladder = self._values(axis)
            assert isinstance(ladder, Ladder)
            while self.least_error is None and ladder.has(step) and len(self._errors) < self.tries:
                yield _moved(start, axis, step)
                step -= 1

    def _settle(self, axes: Sequence[int]) -> Iterator[Position]:
        """One ladder after the other until none has a better neighbour."""
        before = None
        while before != self._best:
            before = self._best
            for axis in axes:
                yield from self._line(axis)

    def _line(self, axis: int) -> Iterator[Position]:
        """Neighbours of the best combination, walking on while it gets better."""
        before = None
        while before != self._best:
            before = self._best
            for step in self._values(axis).others(before[axis]):
                position = _moved(before, axis, step)
                if position not in self._errors and len(self._errors) < self.tries:
                    yield position
                if self._best != before:
                    break

    # ---------------------------------------------------------------------------- how sure it is

    def _status(self, axis: int) -> str:
        best, values = self._best, self._values(axis)
        others = values.others(best[axis])
        seen = [self._errors.get(_moved(best, axis, step)) for step in others]
        if None not in seen:
            if isinstance(values, Choice):
                return ALL_TRIED
            if len(others) < 2:
                return END
            return LEVEL if self._errors[best] in seen else INTERIOR
        steps = {position[axis] for position in self._errors}
        if isinstance(values, Choice):
            return BRACKETED if steps.issuperset(others) else EDGE
        sides = {step > best[axis] for step in steps - {best[axis]}}
        return BRACKETED if sides.issuperset(step > best[axis] for step in others) else EDGE


def _moved(position: Position, axis: int, step: int) -> Position:
    return (*position[:axis], step, *position[axis + 1 :])


def _digit(value: float) -> int | None:
    """The only digit of a positive number; None if it has several."""
    digits = Decimal(str(value)).normalize().as_tuple().digits
    return digits[0] if len(digits) == 1 and value > 0 else None


def _exponent(value: float) -> int:
    return Decimal(str(value)).adjusted()
