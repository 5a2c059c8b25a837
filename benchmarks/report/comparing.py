"""Put runs side by side: which belong together, what differs, means over seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from avalanche_dco.persistence.files import checksum
from benchmarks.methods import BOUND, METHODS, REPLAY
from benchmarks.report.paper_numbers import TABLE_1
from benchmarks.report.reading import TEST, Found
from benchmarks.report.settings import (
    PROPOSED,
    changed_settings,
    default_settings,
    difference_words,
    is_number,
    key_of,
)
from benchmarks.report.statistics import DECIMALS, Statistic, statistic
from benchmarks.runs.records import Run

REFERENCE = "dco"
"""The method that the others' differences are taken to."""

_SHORT_DIGEST = 12


@dataclass(frozen=True)
class Entry:
    """One line of a comparison: the runs that differ by seed only.

    :param label: the method, and what tells it from the comparison's other entries.
    :param training: how the network was trained.
    :param settings: settings of the method, defaults among them.
    """

    label: str
    method: str
    training: dict[str, Any]
    settings: dict[str, Any]
    runs: Sequence[Run]

    @property
    def mark(self) -> str:
        """``bound``, ``replay`` or nothing; who has all data is not compared for keeping some."""
        marks = METHODS[self.method].marks if self.method in METHODS else frozenset()
        return next((mark for mark in (BOUND, REPLAY) if mark in marks), "")

    def by_seed(self, key: str) -> dict[int, float]:
        """The finite values of one figure of the outcome."""
        values = {run.seed: run.outcome.get(key, math.nan) for run in self.runs}
        return {seed: value for seed, value in values.items() if math.isfinite(value)}

    def statistic(self, key: str) -> Statistic:
        """Mean and standard deviation over seeds, and the number of seeds."""
        return statistic(self.by_seed(key).values())

    def paired(self, other: Entry, key: str) -> Statistic:
        """Mean difference to another entry on common seeds, and its standard deviation."""
        mine, theirs = self.by_seed(key), other.by_seed(key)
        common = sorted(mine.keys() & theirs.keys())
        return statistic(mine[seed] - theirs[seed] for seed in common)

    def difference(self, other: Entry, key: str) -> Statistic:
        """Mean difference to another entry on common seeds, and its standard error."""
        mean, spread, count = self.paired(other, key)
        return Statistic(mean, spread / math.sqrt(max(count, 1)), count)


@dataclass(frozen=True)
class Comparison:
    """Runs on the same data.

    Presets do not divide them: a baseline's run serves every preset that trains it alike.

    :param npz: file and hash of the user's arrays, or nothing.
    :param split: ``test`` or ``validation``.
    :param data: hashes of the data, as stored.
    :param training: how the proposed methods were trained, or else most of its runs.
    :param entries: what is compared, in the order of the methods' table.
    :param which_data: what tells it from another comparison of the same name on other data.
    """

    benchmark: str
    npz: str
    split: str
    data: Any
    training: dict[str, Any]
    entries: Sequence[Entry]
    which_data: str = ""

    @property
    def title(self) -> str:
        """What it is called in headings."""
        file, _, digest = self.npz.rpartition(" ")
        named = self.benchmark
        if self.npz and (file or digest) not in named:
            named += f" on {file} {digest[:_SHORT_DIGEST]}" if file else f" on {digest}"
        return named + self.which_data + ("" if self.split == TEST else f" ({self.split} split)")

    @property
    def runs(self) -> list[Run]:
        """The runs of all entries."""
        return [run for entry in self.entries for run in entry.runs]

    @property
    def published(self) -> str:
        """The name under which the paper may have numbers; empty for own arrays or validation."""
        return self.benchmark if not self.npz and self.split == TEST else ""

    @property
    def reference(self) -> Entry | None:
        """What differences are taken to: most seeds, common training, nearest to the defaults."""
        candidates = [entry for entry in self.entries if entry.method == REFERENCE]
        return min(
            candidates,
            key=lambda entry: (
                -len(entry.by_seed("average")),
                key_of(entry.training) != key_of(self.training),
                len(changed_settings(entry.method, entry.settings)),
            ),
            default=None,
        )

    def best(self, key: str) -> list[Entry]:
        """The lowest mean among methods without marks, and what looks the same in a table.

        :param key: which error; nothing is the best of fewer than two.
        """
        means = [(round(e.statistic(key)[0], DECIMALS), e) for e in self.entries if not e.mark]
        finite = [(mean, entry) for mean, entry in means if math.isfinite(mean)]
        lowest = min((mean for mean, _ in finite), default=math.nan)
        return [entry for mean, entry in finite if mean == lowest] if len(finite) > 1 else []


def compare(found: Found) -> list[Comparison]:
    """Sort runs into comparisons; a run that is there twice is counted once, and named.

    :param found: what was read; copies are added to its problems.
    """
    groups: dict[str, list[Run]] = {}
    for run in found.runs:
        identity = (run.benchmark, run.npz, run.split, run.config["data"])
        groups.setdefault(key_of(identity), []).append(run)
    comparisons = [_comparison(runs, found) for runs in groups.values()]
    names = Counter(one.title for one in comparisons)
    comparisons = [
        replace(one, which_data=_data_words(one.data)) if names[one.title] > 1 else one
        for one in comparisons
    ]
    return sorted(comparisons, key=lambda one: (one.split != TEST, one.title))


def _data_words(data: Any) -> str:
    return f", data {checksum([key_of(data).encode()])[:_SHORT_DIGEST]}"


def _comparison(runs: list[Run], found: Found) -> Comparison:
    exemplary = [run for run in runs if run.method in PROPOSED] or runs
    commonest = Counter(key_of(run.training) for run in exemplary).most_common(1)[0][0]
    training = next(run.training for run in runs if key_of(run.training) == commonest)
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        identity = key_of((run.method, run.training, default_settings(run.method) | run.settings))
        first = groups.setdefault(identity, {}).setdefault(run.seed, run)
        if first is not run:
            found.problems.append((run.name, f"not counted: the same run as {first.name}"))
    entries = [
        Entry(
            "", run.method, run.training, default_settings(run.method) | run.settings,
            [one for _, one in sorted(seeds.items())],
        )
        for seeds in groups.values()
        for run in [next(iter(seeds.values()))]
    ]  # fmt: skip
    entries.sort(key=lambda entry: _order(entry, training))
    first = runs[0]
    return Comparison(
        first.benchmark, first.npz, first.split, first.config["data"],
        training, _labelled(entries, training),
    )  # fmt: skip


def _order(entry: Entry, training: Mapping[str, Any]) -> tuple[Any, ...]:
    """Those without marks first, by method, the settings of a method by size."""
    values = [
        (name, float(value) if is_number(value) else math.inf, str(value))
        for name, value in sorted(entry.settings.items())
    ]
    trained_otherwise = [] if key_of(entry.training) == key_of(training) else [str(entry.training)]
    place = method_order(entry.method)
    return entry.mark != "", entry.mark == BOUND, place, trained_otherwise, values


def method_order(method: str) -> tuple[int, int, str]:
    """Where a method stands: the paper's baselines, others, and last what the paper proposes."""
    printed = list(dict.fromkeys(name for column in TABLE_1.values() for name in column))
    names = list(METHODS)
    kind = 2 if method in PROPOSED else 0 if method in printed else 1
    known = [*printed, *names]
    return kind, known.index(method) if method in known else len(known), method


def _labelled(entries: list[Entry], training: Mapping[str, Any]) -> list[Entry]:
    labels: list[str] = []
    for entry in entries:
        siblings = [other.settings for other in entries if other.method == entry.method]
        parts = [
            *difference_words(entry.training, [training]),
            *difference_words(entry.settings, siblings),
        ]
        label = f"{entry.method} ({', '.join(parts)})" if parts else entry.method
        copies = sum(other == label or other.startswith(f"{label} #") for other in labels)
        labels.append(f"{label} #{copies + 1}" if copies else label)
    return [replace(entry, label=label) for label, entry in zip(labels, entries, strict=True)]


SWEPT = ("theta", "k")
"""The settings whose sweeps are shown."""


@dataclass(frozen=True)
class Sweep:
    """Entries of one method that differ in one setting only.

    :param label: the method, and what tells this sweep from its others.
    :param points: value and entry, by value.
    """

    setting: str
    method: str
    label: str
    points: Sequence[tuple[float, Entry]]


def sweeps(comparison: Comparison, setting: str) -> list[Sweep]:
    """The methods of which several entries differ in nothing but this setting."""

    def others(entry: Entry) -> dict[str, Any]:
        own = {name: value for name, value in entry.settings.items() if name != setting}
        return own | {"training": entry.training}

    groups: dict[str, list[Entry]] = {}
    for entry in comparison.entries:
        if is_number(entry.settings.get(setting)):
            groups.setdefault(key_of((entry.method, others(entry))), []).append(entry)
    several = [group for group in groups.values() if len(group) > 1]
    found = []
    for first, *rest in several:
        rivals = [others(other) for other, *_ in several if other.method == first.method]
        parts = difference_words(others(first), rivals)
        label = f"{first.method} ({', '.join(parts)})" if parts else first.method
        points = sorted(
            ((float(one.settings[setting]), one) for one in (first, *rest)), key=lambda p: p[0]
        )
        found.append(Sweep(setting, first.method, label, points))
    return found
