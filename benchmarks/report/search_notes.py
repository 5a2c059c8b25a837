"""What a search for settings did, in words, for the notes below a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.report.comparing import Entry
from benchmarks.report.settings import difference_words, in_words
from benchmarks.runs.kept import Study
from benchmarks.runs.planning import SEARCHED_TRAINING
from benchmarks.runs.search import BRACKETED, EDGE, END

_UNSURE = {
    EDGE: "The tries ran out at the edge of what was tried",
    BRACKETED: "The tries ran out before all neighbours were tried",
    END: "The first or last value of a finite ladder was chosen",
}


def search_notes(
    tuning: Study, entries: Mapping[str, Entry], titles: Mapping[str, str]
) -> Iterator[str]:
    """The training, the tries, what was chosen, and how sure that is.

    :param tuning: the search.
    :param entries: the runs with the settings that it chose, by method.
    :param titles: what to call the methods.
    """
    searches = {titles[name]: tuning.chosen["methods"][name] for name in entries}
    words = {
        title: {name: in_words(name, one["settings"]) for name in one["settings"]}
        for title, one in searches.items()
    }
    yield _trained(entries)
    yield _tries(searches, tuning.chosen["seeds"])
    yield from _otherwise(tuning, entries)
    counted = [Counter(w[name] for w in words.values() if name in w) for name in SEARCHED_TRAINING]
    usual = [word for one in counted for word, _ in one.most_common(1)]
    rest = {title: [w for w in own.values() if w not in usual] for title, own in words.items()}
    yield f"Chosen, unless named: {', '.join(usual)}. {_listed(rest)}"
    for status, text in _UNSURE.items():
        unsure = {
            title: [
                words[title][name] for name, found in one["statuses"].items() if found == status
            ]
            for title, one in searches.items()
        }
        if any(unsure.values()):
            yield f"{text}: {_listed(unsure)}"
        elif status == EDGE:
            yield "No chosen value is at the edge of what was tried."


def _trained(entries: Mapping[str, Entry]) -> str:
    """How the runs trained, apart from what was searched for."""
    words = dict.fromkeys(
        in_words(name, entry.training)
        for entry in entries.values()
        for name in ("epochs", "batch_size", "precision", "experiences")
        if name in entry.training
    )
    return f"Training, for each task: {', '.join(words)}."


def _tries(searches: Mapping[str, Any], seeds: list[int]) -> str:
    allowed = " or ".join(map(str, sorted({one["tries_allowed"] for one in searches.values()})))
    used: dict[int, list[str]] = {}
    for title, one in searches.items():
        used.setdefault(one["tries"], []).append(title)
    counts = "; ".join(f"{n} by {', '.join(used[n])}" for n in sorted(used, reverse=True))
    number = ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, seeds))
    note = f"Tries: at most {allowed} for each method, with {number}. Used: {counts}."
    before = [one["tries_before"] for one in searches.values() if "tries_before" in one]
    if before:
        note += f" They begin at what another search chose in {min(before)} to {max(before)} tries."
    factors = sorted({one["give_up"] for one in searches.values() if "give_up" in one})
    if factors:
        tried = [candidate for one in searches.values() for candidate in one["candidates"]]
        early = sum(candidate.get("ended_early", False) for candidate in tried)
        times = " or ".join(f"{factor:g}" for factor in factors)
        note += (
            f" {early} of {len(tried)} tries ended early, with an average error so far of more "
            f"than {times} times that of the method's best try."
        )
    return note


def _otherwise(tuning: Study, entries: Mapping[str, Entry]) -> Iterator[str]:
    """How the search trained if not as the runs, apart from what it searched for."""
    words: dict[str, None] = {}
    for run in tuning.runs.values():
        if run.method in entries:
            tried, used = (
                {name: value for name, value in one.items() if name not in SEARCHED_TRAINING}
                for one in (run.training, entries[run.method].training)
            )
            words |= dict.fromkeys(difference_words(tried, [used]))
    if words:
        yield f"The tries, unlike the runs of this table, have {', '.join(words)}."


def _listed(words: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{title} ({', '.join(own)})" for title, own in words.items() if own) + "."
