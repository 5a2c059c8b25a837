"""One run to make, and all that determines its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from avalanche_dco.errors import SettingError
from avalanche_dco.persistence.files import checksum
from benchmarks.runs.training import Training
from benchmarks.streams.catalogue import Data

Split = Literal["test", "validation"]
ENDED_AFTER = "ended_after"
"""In an outcome: the experiences learned by a run that was not worth finishing."""


@dataclass(frozen=True)
class Job:
    """One run to make.

    :param protocol: the benchmark whose stream, network and settings are used.
    :param benchmark: what results call it; differs from the protocol where a file took the place of
        the data.
    :param preset: name of the preset that the settings started from.
    :param training: how the network is trained.
    :param settings: every argument of the method, with its value.
    :param split: what is evaluated: the test data, or a part of the training data held out.
    :param hashes: SHA-256 of the data, by file.
    :param give_up_above: the average error, in %, above which it is not worth finishing; None to
        finish whatever comes. It changes no number, so a finished run serves for any.
    """

    protocol: str
    benchmark: str
    method: str
    seed: int
    preset: str
    training: Training
    settings: Mapping[str, Any]
    split: Split = "test"
    data: Data = field(default_factory=Data)
    hashes: Mapping[str, str] = field(default_factory=dict)
    give_up_above: float | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """All that determines the result, as JSON has it."""
        identity = {
            "benchmark": self.benchmark,
            "method": self.method,
            "seed": self.seed,
            "training": self.training.as_json(),
            "settings": dict(self.settings),
            "split": self.split,
            "data": dict(self.hashes),
        }
        return json.loads(json.dumps(identity))

    @property
    def config(self) -> dict[str, Any]:
        """What a run's folder says about it, without the :class:`RunOptions`."""
        config = self.identity | {"preset": self.preset, "protocol": self.protocol}
        if self.data.npz is not None:
            name = self.data.npz.name
            config["npz"] = {"name": name, "sha256": self.hashes[name]}
        return config

    @property
    def folder_name(self) -> str:
        """Benchmark, method, seed and a hash of the configuration."""
        return folder_name(self.identity)

    def is_answered_by(self, outcome: Mapping[str, Any]) -> bool:
        """Whether a run that ended early, for another limit, ends early for this one too."""
        if ENDED_AFTER not in outcome:
            return True
        return self.give_up_above is not None and outcome["average"] > self.give_up_above

    @property
    def title(self) -> str:
        """A few words for progress and messages."""
        held_out = " (validation)" if self.split == "validation" else ""
        return f"{self.benchmark}: {self.method}, seed {self.seed}{held_out}"


def folder_name(identity: Mapping[str, Any]) -> str:
    """The name of a run's folder."""
    digest = checksum([json.dumps(_with_floats(identity), sort_keys=True).encode()])[:8]
    return f"{identity['benchmark']}-{identity['method']}-seed{identity['seed']}-{digest}"


def _with_floats(value: Any) -> Any:
    """The same with every number a float: 100 and 100.0 are one setting."""
    if isinstance(value, Mapping):
        return {name: _with_floats(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_floats(part) for part in value]
    try:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    except OverflowError as error:
        raise SettingError("a setting is a whole number of more than 300 digits.") from error
