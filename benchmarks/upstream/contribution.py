"""DCO, DCO-COMP and DCO-KRON as modules of Avalanche: what is taken over, and what is not."""

from __future__ import annotations

import re
from pathlib import Path

from avalanche_dco.errors import DCOError
from benchmarks.upstream import wrappers
from benchmarks.upstream.constructors import with_constructors
from benchmarks.upstream.layout import laid_out
from benchmarks.upstream.modules import Target, composed
from benchmarks.upstream.needed import Needed
from benchmarks.upstream.omissions import LEFT_OUT, WITHOUT
from benchmarks.upstream.patches import (
    REPOSITORY,
    TEMPLATES,
    new_file,
    stored_patch,
    test_module,
)
from benchmarks.upstream.sources import Library, Name

_PLUGINS = "avalanche_dco.plugins"
_SUPPORT = "avalanche_dco.plugins.support"
_CORE = "avalanche_dco.core"

ENTRIES = (
    Name(f"{_PLUGINS}.dco", "DCOPlugin"),
    Name(f"{_PLUGINS}.dco_comp", "DCOCompPlugin"),
    Name(f"{_PLUGINS}.dco_kron", "DCOKronPlugin"),
)

_HELPERS = "avalanche/training/directions"


TARGETS = tuple(
    Target(path, tuple(f"avalanche_dco.{source}" for source in sources), doc, **options)
    for path, doc, sources, options in (
        (
            "avalanche/training/plugins/dco.py",
            "Direction-Constrained Optimization: DCO and DCO-COMP.",
            ("plugins.base", "plugins.dco", "plugins.dco_comp"),
            {"exported": ("DCOPlugin", "DCOCompPlugin")},
        ),
        (
            "avalanche/training/plugins/dco_kron.py",
            "Direction-Constrained Optimization with directions in closed form: DCO-KRON.",
            ("plugins.dco_kron",),
            {"exported": ("DCOKronPlugin",)},
        ),
        (
            f"{_HELPERS}/strategies.py",
            "Strategies' data and state, as DCO uses them.",
            ("plugins.support.",),
            {},
        ),
        (
            f"{_HELPERS}/steps.py",
            "Steps 1 to 3 of DCO's Algorithm 1 on a strategy's model.",
            (
                "plugins.support.direction_settings",
                "plugins.support.penalised_training",
                "plugins.support.push",
                "plugins.support.direction_learning",
            ),
            {},
        ),
        (
            f"{_HELPERS}/learning.py",
            "Directions, and how they are fitted to gradients.",
            ("core.factors", "core.directions", "core.autoencoder", "core.cone"),
            {"explained": True},
        ),
        (
            f"{_HELPERS}/sampled.py",
            "Directions that are gradients of single samples.",
            ("core.", "core.sampled"),
            {"explained": True},
        ),
        (
            f"{_HELPERS}/penalty.py",
            "The penalty of moving along directions.",
            ("core.paired", "core.penalty", "core.implicit_step"),
            {"explained": True},
        ),
        (
            f"{_HELPERS}/compression.py",
            "The directions of many tasks in constant memory.",
            (
                "core.compression",
                "core.compression_loss",
                "core.compressed_tasks",
                "core.eigendirections",
            ),
            {"explained": True},
        ),
        (
            f"{_HELPERS}/kronecker.py",
            "Directions in closed form.",
            ("core.layers", "core.kronecker", "core.curvature", "core.damping"),
            {"explained": True},
        ),
    )
)

REPLACED = {
    f"{_PLUGINS}.dco_kron": {
        "self._finished(strategy, curvature=curvature)": "self.curvature = curvature",
    },
    f"{_PLUGINS}.dco_comp": {
        """
        if self.directions == "eigen":
            self._refuse_without_effect(_OF_COMPRESSION, "directions in closed form")
""": "\n",
    },
    f"{_PLUGINS}.base": {
        "constrained = self._constrained(strategy)  #": "self._constrained(strategy)  #",
        """
            if self.max_bytes is not None:
                self._warn_of_memory(strategy, constrained, self.max_bytes)""": "",
        "self._finished(strategy, "
        "**(self._push_and_learn(strategy, **kwargs) if active else {}))": (
            "if active:\n            vars(self).update(self._push_and_learn(strategy, **kwargs))"
        ),
    },
    f"{_SUPPORT}.direction_settings": {
        """
        if self.directions != "trained":
            self._refuse_without_effect(_OF_TRAINING, "directions that are not trained")
""": "\n",
    },
    f"{_SUPPORT}.push": {
        "_why_no_direction(strategy.optimizer, parameters, ends))": (
            '"They do not move in step 2 beyond rounding.")'
        ),
    },
    # Avalanche's strategies are defined after its plugins, hence by name.
    f"{_SUPPORT}.compatibility": {
        "(GenerativeReplayPlugin, MIRPlugin, AR1, DER, ER_ACE, ER_AML)": (
            '{"GenerativeReplayPlugin", "MIRPlugin", "AR1", "DER", "ER_ACE", "ER_AML"}'
        ),
        "isinstance(part, _REPLAY_BESIDE_THE_LOADER)": (
            "_REPLAY_BESIDE_THE_LOADER & {cls.__name__ for cls in type(part).__mro__}"
        ),
        "super().__post_init__()  # type: ignore[misc]": (
            'getattr(super(), "_set_up", lambda: None)()'
        ),
    },
    f"{_CORE}.kronecker": {
        'weight.removesuffix("weight") + "bias"': 'weight[: -len("weight")] + "bias"',
    },
}
"""Code of this package, by module, and what Avalanche gets instead."""

TEXTS = (
    (r" The page \*Settings\*.*?(?=\n\n)", ""),
    (r";\s+:func:`\.plot_free_directions`.*?\.(?=\n)", "."),
    (
        r">>> from avalanche_dco import (\w+Plugin)\b",
        r">>> from avalanche.training.plugins import \1",
    ),
    (r">>> from avalanche_dco import (\w+)\b", r">>> from avalanche.training.supervised import \1"),
    (r">>> from avalanche_dco\.models import MLP", ">>> from avalanche.models import SimpleMLP"),
    (r"= MLP\(64, ", "= SimpleMLP(input_size=64, "),
)
"""Sentences of docstrings that only make sense in this package, and what is said instead."""

ERRORS = {
    "DataError": "ValueError",
    "GradientError": "RuntimeError",
    "ModelError": "RuntimeError",
    "SettingError": "ValueError",
}


def contributed() -> dict[str, str]:
    """The new files by their paths."""
    library = Library(
        REPOSITORY,
        ("avalanche_dco",),
        left_out=LEFT_OUT,
        without=WITHOUT,
        builtins={Name("avalanche_dco.errors", ours): known for ours, known in ERRORS.items()},
        prepared=_prepared,
    )
    templates = REPOSITORY / TEMPLATES.replace(".", "/")
    tests = "tests/training/test_dco.py"
    return {
        **composed(Needed(library, ENTRIES), TARGETS),
        f"{_HELPERS}/__init__.py": '"""What the plugins of DCO are made of."""\n',
        wrappers.PATH: _in_avalanches_words(wrappers.strategy_wrappers(WITHOUT)),
        tests: test_module(
            tests, "test_dco", "DCOPluginsTest", "DCOStrategiesTest", "DCOMathematicsTest"
        ),
        "examples/dco.py": laid_out((templates / "example.py").read_text()),
        "docs/dco.rst": (templates / "documentation.rst").read_text(),
    }


def contribution(avalanche: Path) -> str:
    """The patch with all of it."""
    new = [new_file(path, text) for path, text in sorted(contributed().items())]
    return "".join([*new, stored_patch("exports", avalanche)])


def _in_avalanches_words(source: str) -> str:
    for sentence, instead in TEXTS:
        source = re.sub(sentence, instead, source, flags=re.DOTALL)
    return source


def _prepared(name: str, source: str) -> str:
    for ours, instead in REPLACED.get(name, {}).items():
        if source.count(ours) != 1:
            raise DCOError(
                f"{name} has this text {source.count(ours)} times, and Avalanche gets another one "
                f"in its place: {ours.strip()!r}. Adapt REPLACED of {__name__}."
            )
        source = source.replace(ours, instead)
    source = _in_avalanches_words(source)
    return with_constructors(name, source, WITHOUT) if name.startswith(_PLUGINS) else source
