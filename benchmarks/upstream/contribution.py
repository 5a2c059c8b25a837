"""DCO, DCO-COMP and DCO-KRON as modules of Avalanche: what is taken over, and what is not."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.upstream import wrappers
from benchmarks.upstream.constructors import with_constructors
from benchmarks.upstream.edits import Edit, edited, methods_of, unified_diff
from benchmarks.upstream.fixes import REPOSITORY, TEMPLATES, test_module
from benchmarks.upstream.layout import laid_out
from benchmarks.upstream.modules import Target, composed
from benchmarks.upstream.needed import Needed
from benchmarks.upstream.omissions import LEFT_OUT, WITHOUT
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


def _target(path: str, doc: str, *sources: str, explained: bool = False) -> Target:
    names = tuple(f"avalanche_dco.{source}" for source in sources)
    modules = tuple(name for name in names if not name.endswith("."))
    return Target(path, names, doc, explained=modules if explained else ())


TARGETS = (
    Target(
        "avalanche/training/plugins/dco.py",
        tuple(f"{_PLUGINS}.{name}" for name in ("base", "dco", "dco_comp")),
        "Direction-Constrained Optimization: DCO and DCO-COMP.",
        ("DCOPlugin", "DCOCompPlugin"),
    ),
    Target(
        "avalanche/training/plugins/dco_kron.py",
        (f"{_PLUGINS}.dco_kron",),
        "Direction-Constrained Optimization with directions in closed form: DCO-KRON.",
        ("DCOKronPlugin",),
    ),
    _target(
        f"{_HELPERS}/strategies.py",
        "Strategies' data and state, as DCO uses them.",
        "plugins.support.",
    ),
    _target(
        f"{_HELPERS}/steps.py",
        "Steps 1 to 3 of DCO's Algorithm 1 on a strategy's model.",
        *(
            f"plugins.support.{name}"
            for name in (
                "direction_settings",
                "penalised_training",
                "push",
                "direction_learning",
            )
        ),
    ),
    _target(
        f"{_HELPERS}/learning.py",
        "Directions, and how they are fitted to gradients.",
        *("core.factors", "core.directions", "core.autoencoder", "core.cone"),
        explained=True,
    ),
    _target(
        f"{_HELPERS}/sampled.py",
        "Directions that are gradients of single samples.",
        *("core.", "core.sampled"),
        explained=True,
    ),
    _target(
        f"{_HELPERS}/penalty.py",
        "The penalty of moving along directions.",
        *("core.penalty", "core.implicit_step"),
        explained=True,
    ),
    _target(
        f"{_HELPERS}/compression.py",
        "The directions of many tasks in constant memory.",
        *("core.compression", "core.compression_loss", "core.compressed_tasks"),
        "core.eigendirections",
        explained=True,
    ),
    _target(
        f"{_HELPERS}/kronecker.py",
        "Directions in closed form.",
        *("core.layers", "core.kronecker", "core.curvature", "core.damping"),
        explained=True,
    ),
)

_base = methods_of("DirectionConstrainedPlugin")
EDITS = {
    f"{_PLUGINS}.dco_kron": (
        Edit(
            "DCOKronPlugin.after_training_exp",
            "Expr",
            "self.curvature = curvature",
            ("_finished",),
        ),
    ),
    f"{_PLUGINS}.base": (
        _base("before_training_exp", "If", "", ("max_bytes",)),
        _base(
            "before_training_exp",
            "Assign",
            "self._constrained(strategy)",
            ("constrained", "_constrained"),
        ),
        _base(
            "after_training_exp",
            "Expr",
            "if active:\n    vars(self).update(self._push_and_learn(strategy, **kwargs))",
            ("_finished",),
        ),
    ),
    f"{_SUPPORT}.direction_settings": (
        Edit("DirectionSettings._set_up", "If", "", ("_refuse_without_effect",)),
    ),
    f"{_PLUGINS}.dco_comp": (Edit("DCOCompPlugin._set_up", "If", "", ("_refuse_without_effect",)),),
    f"{_SUPPORT}.push": (
        Edit(
            "push_into_cone",
            "Call",
            '"They do not move in step 2 beyond rounding."',
            ("_why_no_direction",),
        ),
    ),
    # Avalanche's strategies are defined after its plugins, hence by name.
    f"{_SUPPORT}.compatibility": (
        Edit(
            "",
            "Assign",
            '_REPLAY_BESIDE_THE_LOADER = {"GenerativeReplayPlugin", "MIRPlugin", "AR1", "DER", '
            '"ER_ACE", "ER_AML"}',
            ("_REPLAY_BESIDE_THE_LOADER", "MIRPlugin"),
        ),
        Edit(
            "replay_beside_the_loader",
            "Call",
            "_REPLAY_BESIDE_THE_LOADER & {cls.__name__ for cls in type(part).__mro__}",
            ("isinstance", "_REPLAY_BESIDE_THE_LOADER"),
        ),
        Edit(
            "DefaultStrength._set_up",
            "Expr",
            'getattr(super(), "_set_up", lambda: None)()',
            ("super", "_set_up"),
        ),
    ),
    f"{_CORE}.kronecker": (
        Edit("bias_of", "Return", 'return weight[: -len("weight")] + "bias"', ("removesuffix",)),
    ),
}

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


IN_INIT = {
    "training/plugins/__init__.py": Edit(
        "",
        "ImportFrom",
        "<found>\nfrom .dco import DCOCompPlugin, DCOPlugin\nfrom .dco_kron import DCOKronPlugin",
        ("RARPlugin",),
    ),
    "training/supervised/__init__.py": Edit(
        "", "ImportFrom", "<found>\nfrom .dco import DCO, DCOComp, DCOKron", ("MER",)
    ),
}


def contributed() -> dict[str, str]:
    """The new files by their paths."""
    library = Library(
        REPOSITORY,
        ("avalanche_dco",),
        edits=EDITS,
        instead=dict.fromkeys(LEFT_OUT),
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
    patch = [unified_diff("", text, path) for path, text in sorted(contributed().items())]
    for path, edit in IN_INIT.items():
        before = (avalanche / path).read_text()
        name = f"avalanche/{path}"
        patch.append(unified_diff(before, edited(before, [edit], name), name))
    return "".join(patch)


def _in_avalanches_words(source: str) -> str:
    for sentence, instead in TEXTS:
        source = re.sub(sentence, instead, source, flags=re.DOTALL)
    return source


def _prepared(name: str, source: str) -> str:
    source = _in_avalanches_words(source)
    return with_constructors(name, source, WITHOUT) if name.startswith(_PLUGINS) else source
