"""What of DCO is not offered to Avalanche, and why."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.upstream.sources import Name

_SUPPORT = "avalanche_dco.plugins.support"


@dataclass(frozen=True)
class Omission:
    """One thing that is left out.

    :param what: what a user does without.
    :param definitions: classes, which are no longer inherited from, and functions, which are no
        longer called.
    :param members: members and settings of classes, ``Class.member``.
    """

    what: str
    why: str
    definitions: tuple[Name, ...] = ()
    members: tuple[str, ...] = ()


OMISSIONS = (
    Omission(
        "`state_dict`, `load_state_dict` and `memory_bytes` of the plugins",
        "Avalanche saves a strategy as a whole, see the patch for its checkpoints",
        (Name(f"{_SUPPORT}.state", "PluginState"),),
        (
            "DirectionConstrainedPlugin._ON_MODEL_DEVICE",
            "DCOPlugin._KEEPS",
            "DCOCompPlugin._KEEPS",
            "DCOCompPlugin._restored",
            "DCOKronPlugin._KEEPS",
            "Curvature.state",
            "Directions.state",
            "Penalty.state",
            "CompressedTasks.state",
        ),
    ),
    Omission(
        "`max_bytes`, the warning before memory grows beyond a limit",
        "needs `memory_bytes`",
        members=(
            "DirectionSettings.max_bytes",
            "DirectionConstrainedPlugin._THRIFTIER",
            "DirectionConstrainedPlugin._bytes_expected",
            "DirectionConstrainedPlugin._targets_each",
            "DirectionConstrainedPlugin._warn_of_memory",
            "DCOPlugin._THRIFTIER",
            "DCOPlugin._bytes_expected",
            "DCOCompPlugin._bytes_expected",
            "DCOCompPlugin._bytes_in_closed_form",
        ),
    ),
    Omission(
        "checks of inputs, labels and weights, with the number of the experience",
        "not special to DCO; Avalanche leaves them to torch",
        (
            Name(f"{_SUPPORT}.checks", "InputChecks"),
            Name(f"{_SUPPORT}.checks", "naming_experience"),
            Name(f"{_SUPPORT}.checks", "refuse_broken"),
        ),
    ),
    Omission(
        "errors for `SparseAdam`, for two DCO plugins and for `FromScratchTraining`",
        "Avalanche does not check combinations of plugins",
        (
            Name(f"{_SUPPORT}.compatibility", "refuse_other_plugins"),
            Name(f"{_SUPPORT}.compatibility", "refuse_sparse_optimizer"),
        ),
        ("DCOKronPlugin.before_training",),
    ),
    Omission(
        "errors for settings of the training of directions where they are not trained",
        "needs the declared defaults; such settings have no effect",
    ),
    Omission(
        "the cause in the warning that weights do not move in step 2",
        "forty lines for one sentence",
    ),
    Omission(
        "the capacity meter's view of the directions (`prohibited`)",
        "needs this package's metrics",
        members=("DirectionConstrainedPlugin.prohibited", "DCOKronPlugin.prohibited"),
    ),
    Omission(
        "declared settings: sources of defaults, types and the nearest name in errors",
        "written out as signatures, docstrings and assertions, as Avalanche's plugins have them",
        (Name(f"{_SUPPORT}.settings", "DeclaredSettings"),),
    ),
    Omission(
        "error classes of their own",
        "`ValueError` and `RuntimeError` instead",
        (Name("avalanche_dco.errors", "DCOError"),),
    ),
    Omission(
        "GPM, the corrected baselines as classes, metrics, loggers, plots, landscape, benchmarks",
        "not DCO; defects of Avalanche's own classes are mended by the patches",
    ),
)

LEFT_OUT = frozenset(name for omission in OMISSIONS for name in omission.definitions)
WITHOUT = frozenset(member for omission in OMISSIONS for member in omission.members)
