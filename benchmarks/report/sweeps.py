"""Sweeps: entries of a comparison that differ in one setting only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.report.comparing import Comparison, Entry
from benchmarks.report.settings import difference_words, is_number, key_of

SWEPT = ("theta", "k")
"""The settings whose sweeps are shown."""


@dataclass(frozen=True)
class Sweep:
    """Entries of one method that differ in one setting only.

    :param setting: its name.
    :param method: name of the method.
    :param label: the method, and what tells this sweep from its others.
    :param points: value and entry, by value.
    """

    setting: str
    method: str
    label: str
    points: Sequence[tuple[float, Entry]]


def sweeps(comparison: Comparison, setting: str) -> list[Sweep]:
    """The methods of which several entries differ in nothing but this setting.

    :param comparison: where to look.
    :param setting: name of the setting.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in comparison.entries:
        if is_number(entry.settings.get(setting)):
            others = {name: value for name, value in entry.settings.items() if name != setting}
            groups.setdefault(key_of((entry.method, entry.training, others)), []).append(entry)
    several = [group for group in groups.values() if len(group) > 1]
    found = []
    for group in several:
        first = group[0]
        rivals = [
            {name: value for name, value in other[0].settings.items() if name != setting}
            | {"training": other[0].training}
            for other in several
            if other[0].method == first.method
        ]
        own = {name: value for name, value in first.settings.items() if name != setting}
        parts = difference_words(own | {"training": first.training}, rivals)
        points = sorted(((float(one.settings[setting]), one) for one in group), key=lambda p: p[0])
        label = f"{first.method} ({', '.join(parts)})" if parts else first.method
        found.append(Sweep(setting, first.method, label, points))
    return found
