"""The study that compares all methods on all streams, tuned alike.

The study ``comparison`` has the runs on test data, ``comparison-tuning/STREAM`` the search on
validation data that chose their settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from avalanche_dco.errors import DCOError
from benchmarks.report.comparing import Entry
from benchmarks.report.error_tables import read_entries
from benchmarks.report.reading import TEST
from benchmarks.report.settings import key_of
from benchmarks.runs.kept import Study, read_study, study_path
from benchmarks.runs.training import Training


class Stream(NamedTuple):
    """A stream to learn.

    :param about: its tasks and the network, in a sentence.
    :param benchmark: what its runs call it, if that is another name than here.
    """

    title: str
    about: str
    benchmark: str = ""


_MLP_256, _ONE_HEAD = "784-256-256-256-10", "orders of the pixels, one head"
STREAMS = {
    "split-mnist": Stream(
        "Split MNIST",
        "Five tasks of two classes, the task's two outputs of a ten-way layer; 784-100-100-100-10.",
    ),
    "permuted-mnist": Stream("Permuted MNIST, 5 tasks", f"Five {_ONE_HEAD}; {_MLP_256}."),
    "permuted-mnist-10": Stream("Permuted MNIST, 10 tasks", f"Ten {_ONE_HEAD}; 784-100-100-10."),
    "permuted-mnist-20": Stream("Permuted MNIST, 20 tasks", f"Twenty {_ONE_HEAD}; {_MLP_256}."),
    "mnist-fashion": Stream("MNIST → Fashion", f"Two tasks, one head; {_MLP_256}."),
    "fashion-mnist": Stream("Fashion → MNIST", f"Two tasks, one head; {_MLP_256}."),
    "cifar-10": Stream(
        "Split CIFAR-10",
        "Five tasks of two classes; the paper's convolutional network.",
        "split5-cifar10.npz-345496a3",
    ),
    "cifar-100-noisy": Stream(
        "CIFAR-100, noisy labels",
        "Ten tasks of ten classes, about 18 % of the training labels wrong; the same network.",
        "split10-cifar100_noisy.npz-d6908971",
    ),
}
STUDY, TUNING = "comparison", "comparison-tuning"


class Measured(NamedTuple):
    """What is known of a stream.

    :param entries: the runs with the chosen settings by method, the lowest error first.
    :param tuning: the runs of the search, and what it chose.
    """

    entries: Mapping[str, Entry]
    tuning: Study

    def point(self, method: str) -> tuple[float, float]:
        """Mean training time over Naive's, NaN if that is not known, and mean error."""
        entry, naive = self.entries[method], self.entries.get("naive")
        seconds = math.nan if naive is None else naive.statistic("seconds").mean
        return entry.statistic("seconds").mean / seconds, entry.statistic("average").mean


def measured_streams(results: Path) -> dict[str, Measured]:
    """The streams that have runs."""
    files = [study_path(STUDY, results), *sorted((results / TUNING).glob("*"))]
    return _read(results, tuple((one, one.stat().st_mtime_ns) for one in files if one.exists()))


@cache
def _read(results: Path, changed: tuple[Any, ...]) -> dict[str, Measured]:
    """The streams that have runs, read once for all tables of a page.

    :param changed: when the files were changed.
    """
    entries = [one for one in read_entries(results, [STUDY]) if one.runs[0].split == TEST]
    by_stream = {
        name: [one for one in entries if one.runs[0].benchmark == (stream.benchmark or name)]
        for name, stream in STREAMS.items()
    }
    return {stream: _tuned(results, stream, own) for stream, own in by_stream.items() if own}


def _tuned(results: Path, stream: str, entries: list[Entry]) -> Measured:
    """The entries of a stream that have the settings which were chosen for it."""
    path = study_path(f"{TUNING}/{stream}", results)
    tuning = read_study(path) if path.exists() else Study()
    methods = (tuning.chosen or {"methods": {}})["methods"]
    chosen = {name: one["settings"] for name, one in methods.items()}
    tuned = [one for one in entries if one.method in chosen and _has(one, chosen[one.method])]
    if sorted(one.method for one in tuned) != sorted({one.method for one in entries}):
        raise DCOError(
            f"the study {STUDY} needs one kind of runs of every method on {stream}, with the "
            f"settings that {TUNING}/{stream} chose. It has {', '.join(e.label for e in entries)}; "
            f"chosen are {chosen}. Keep that search, and the runs of `compare --chosen` with it."
        )
    tuned.sort(key=lambda entry: entry.statistic("average").mean)
    return Measured({entry.method: entry for entry in tuned}, tuning)


def _has(entry: Entry, settings: Mapping[str, Any]) -> bool:
    own = Training.defaults() | entry.training | entry.settings
    return all(key_of(own[name]) == key_of(value) for name, value in settings.items())
