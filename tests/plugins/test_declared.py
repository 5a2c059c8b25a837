"""Arguments that are declared once: constructor, signature, checks and docstring follow."""

import copy
import inspect
from typing import Literal

import pytest
import torch
from avalanche.core import SupervisedPlugin
from torch import nn

from avalanche_dco import (
    DCO,
    GPM,
    DCOComp,
    DCOCompPlugin,
    DCOKron,
    DCOKronPlugin,
    DCOPlugin,
    GPMPlugin,
)
from avalanche_dco.errors import SettingError, StateError
from avalanche_dco.plugins.support.settings import (
    AUTHORS,
    OURS,
    PAPER,
    DeclaredSettings,
    authors,
    paper,
    setting,
)

PLUGINS = {DCO: DCOPlugin, DCOComp: DCOCompPlugin, DCOKron: DCOKronPlugin, GPM: GPMPlugin}


class Declares(DeclaredSettings, SupervisedPlugin):
    """A plugin."""

    size: int = setting(
        default=3, at_least=1, at_most=9, kw_only=False, published=paper(3), meaning="size of it."
    )
    share: float | None = setting(
        default=0.5,
        above=0,
        at_most=1,
        none="all",
        binding=True,
        published=authors(0.5, split_mnist=0.25),
        meaning="share of it; it matters.",
    )
    kind: Literal["a", "b"] = setting(
        default="a", meaning="kind of it.", choices={"a": "the first", "b": "the second"}
    )
    function: object = setting(
        default=len, meaning="function.", accepts=callable, expected="a function", recorded=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.doubled = 2 * self.size


class Inherits(Declares):
    """Another."""

    size: int = Declares.SETTINGS["size"].but(default=4)
    more: bool = setting(default=False, meaning="more.", choices={True: "yes", False: "no"})


def test_arguments_become_attributes_by_name_and_by_place():
    assert (Declares(5).size, Declares(size=5).doubled, Declares().share) == (5, 10, 0.5)
    assert vars(Inherits(share=None))["share"] is None
    assert (Inherits().size, Inherits().more, Inherits.size, Declares.size) == (4, False, 4, 3)
    assert copy.deepcopy(Declares(7)).doubled == 14


def test_signature_and_docstring():
    parameters = inspect.signature(Inherits).parameters
    assert list(parameters) == ["size", "share", "kind", "function", "more"]
    assert parameters["size"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert parameters["more"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["share"].annotation == float | None
    assert parameters["size"].default == 4
    assert inspect.getdoc(Inherits).startswith("Another.\n\n:param size: size of it.\n")
    assert ":param kind: kind of it. ``'a'``: the first. ``'b'``: the second." in Inherits.__doc__
    assert ":param share: share of it; it matters. None for all." in Declares.__doc__


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 0}, "size=0 must be a whole number of at least 1 and at most 9: it is the size"),
        ({"size": 2.5}, "size=2.5 must be a whole number"),
        ({"size": True}, "size=True must be"),
        ({"size": None}, "size=None must be"),
        (
            {"share": 0},
            r"share=0 must be a number above 0 and at most 1: it is the share of",
        ),
        ({"kind": "c"}, r"kind='c' must be 'a' \(the first\) or 'b' \(the second\)"),
        ({"function": 3}, "function=3 must be a function"),
        ({"more": 1}, "more=1 must be True"),
    ],
)
def test_values_out_of_range_are_refused(given, message):
    with pytest.raises(SettingError, match=f"^{message}"):
        Inherits(**given)


def test_unknown_arguments_name_the_nearest():
    with pytest.raises(TypeError, match=r"Declares has no argument 'shar'; did you mean 'share'\?"):
        Declares(shar=1)
    with pytest.raises(TypeError, match="no argument 'x'; it has size, share, kind, function"):
        Declares(x=1)
    with pytest.raises(TypeError, match="DCO has no argument 'thta'; did you mean 'theta'"):
        DCO(thta=1)
    with pytest.raises(TypeError, match="multiple values"):
        Declares(1, size=2)
    with pytest.raises(TypeError, match="too many positional"):
        Declares(1, 0.5)


def test_sources():
    assert [Inherits.SETTINGS[n].source for n in ("size", "share", "kind")] == [OURS, AUTHORS, OURS]
    assert Declares.SETTINGS["size"].source == PAPER
    assert Inherits.published() == {"size": 3, "share": 0.5}
    assert Inherits.published("split-mnist") == {"size": 3, "share": 0.25}


def test_states_record_plain_settings_and_are_bound_by_some():
    assert Inherits._SETTINGS == ("size", "share", "kind", "more")
    assert Inherits._BINDING == ("share",)


@pytest.mark.parametrize("plugin", PLUGINS.values())
def test_states_of_every_plugin_record_its_settings(plugin):
    recorded = {name for name, one in plugin.SETTINGS.items() if one.recorded}
    assert plugin().state_dict()["settings"].keys() == recorded != set()


def test_a_state_of_dco_is_bound_by_couple_layers():
    state = DCOPlugin(directions="sampled", couple_layers=True).state_dict()
    with pytest.raises(StateError, match="made with couple_layers=True, and this DCOPlugin has"):
        DCOPlugin(couple_layers=False).load_state_dict(state)


def test_arguments_by_place_go_before_inherited_ones_by_name():
    assert next(iter(inspect.signature(GPMPlugin).parameters)) == "threshold"
    assert (GPMPlugin(0.9).threshold, GPMPlugin(0.9).layers) == (0.9, None)


def test_a_constructor_of_ones_own_is_left_alone():
    class Own(Declares):
        def __init__(self, other):
            super().__init__(size=2)
            self.other = other

    assert (Own(1).other, Own(1).size, str(inspect.signature(Own))) == (1, 2, "(other)")


@pytest.mark.parametrize("strategy", PLUGINS)
def test_every_declared_default_is_in_range_and_documented(strategy):
    plugin = PLUGINS[strategy]
    for name, one in plugin.SETTINGS.items():
        one.check(one.default)
        for known in one.published.values():
            one.check(known.value)
        assert f":param {name}: " in plugin.__doc__
        assert f":param {name}: " in strategy.__doc__


@pytest.mark.parametrize("strategy", PLUGINS)
def test_strategies_have_the_arguments_of_their_plugin_and_of_the_template(strategy):
    parameters = inspect.signature(strategy).parameters
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    for name, one in PLUGINS[strategy].SETTINGS.items():
        assert parameters[name].default == one.default
    model, other = nn.Linear(2, 2), SupervisedPlugin()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    last = list(PLUGINS[strategy].SETTINGS)[1]
    given = {last: PLUGINS[strategy].SETTINGS[last].kind(0.25) or 4}
    made = strategy(
        model=model, optimizer=optimizer, train_mb_size=7, plugins=[other], evaluator=None, **given
    )
    (plugin,) = (p for p in made.plugins if isinstance(p, PLUGINS[strategy]))
    assert getattr(plugin, last) == given[last]
    first = made.plugins.index(plugin) < made.plugins.index(other)
    assert first is (strategy in (DCO, DCOComp))
    assert (made.train_mb_size, made.eval_mb_size) == (7, 7)


def test_a_strategy_can_be_inherited_from():
    class Plain(DCO):
        pass

    class Own(DCO):
        def __init__(self, *, extra, **arguments):
            super().__init__(**arguments)
            self.extra = extra

    model = nn.Linear(2, 2)
    given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "k": 5}
    for made in (Plain(**given), Own(extra=1, **given)):
        assert [p.k for p in made.plugins if isinstance(p, DCOPlugin)] == [5]
