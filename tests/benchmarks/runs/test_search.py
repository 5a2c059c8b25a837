"""The search: few tries, none twice, the best value if there is one, and how sure it is."""

from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avalanche_dco.errors import SettingError
from benchmarks.methods import METHODS
from benchmarks.runs.planning import SEARCHED_TRAINING
from benchmarks.runs.search import (
    ALL_TRIED,
    BRACKETED,
    EDGE,
    END,
    INTERIOR,
    LEVEL,
    STATUSES,
    Choice,
    Ladder,
    Search,
)
from benchmarks.runs.values import with_derived

NUMBERS = tuple(range(9))
FIVE = Ladder(5, tuple(range(1, 10)))


def searched(coordinates, error_of, tries=1000):
    """Answer until nothing is asked for; the search and what it asked for, in order."""
    search, asked = Search(coordinates, tries), []
    while (settings := search.asked) is not None:
        asked.append(settings)
        assert len(asked) <= tries
        search.answer(error_of(settings))
    return search, asked


def distance_from(**best):
    """An error that falls towards one combination."""
    return lambda settings: sum(abs(settings[name] - value) for name, value in best.items())


# ------------------------------------------------------------------------------------- the ladders


def test_a_ladder_without_end_goes_on_in_both_directions():
    ladder = Ladder(10)
    assert [ladder.at(step) for step in range(-5, 4)] == [
        0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300,
    ]  # fmt: skip
    assert Ladder(0.003).at(1) == 0.01
    assert Ladder(0.003).at(-1) == 0.001
    assert ladder.has(1000)
    assert ladder.has(-1000)


@given(st.sampled_from([1, 3]), st.integers(-8, 8), st.integers(-12, 12))
def test_a_ladder_may_start_at_any_of_its_steps(digit, exponent, step):
    ladder = Ladder(float(f"{digit}e{exponent}"))
    assert ladder.at(0) == ladder.start
    assert Ladder(ladder.at(step)).at(-step) == ladder.start
    assert 3 * (1 - 1e-9) <= ladder.at(step + 1) / ladder.at(step) <= 10 / 3 * (1 + 1e-9)


def test_a_ladder_of_values_ends():
    ladder = Ladder(0.95, (0.9, 0.95, (0.95, 0.99)))
    assert [ladder.has(step) for step in (-2, -1, 0, 1, 2)] == [False, True, True, True, False]
    assert ladder.at(1) == (0.95, 0.99)


@pytest.mark.parametrize("start", [2, 13, 0, -1, 0.05])
def test_a_ladder_starts_at_one_of_its_steps(start):
    with pytest.raises(SettingError, match="cannot start"):
        Ladder(start)
    with pytest.raises(SettingError, match="cannot start"):
        Ladder(start, (100, 200))


# -------------------------------------------------------------------------------------- the search


@given(st.integers(-8, 8), st.integers(-8, 8), st.sampled_from([0, 1]), st.sampled_from("abc"))
def test_enough_tries_find_the_best_of_a_bowl(strength, lr, decay, word):
    coordinates = {
        "strength": Ladder(100),
        "lr": Ladder(0.01),
        "decay": Choice((0, 1)),
        "word": Choice(("a", "b", "c")),
    }
    best = {
        "strength": Ladder(100).at(strength),
        "lr": Ladder(0.01).at(lr),
        "decay": decay,
        "word": word,
    }

    def error_of(settings):
        on_ladders = sum(
            abs(_steps(settings[name]) - _steps(best[name])) for name in ("strength", "lr")
        )
        return on_ladders + (settings["decay"] != decay) + (settings["word"] != word)

    search, _ = searched(coordinates, error_of)
    assert search.best == best
    assert search.statuses() == {
        "strength": INTERIOR, "lr": INTERIOR, "decay": ALL_TRIED, "word": ALL_TRIED,
    }  # fmt: skip


def _steps(value):
    """The place on the ladder ..., 1, 3, 10, ..., counted from 1."""
    return next(step for step in range(-60, 60) if Ladder(1).at(step) == value)


@given(st.integers(0, 8), st.integers(0, 8), st.integers(-7, 7))
def test_a_valley_across_two_ladders_is_followed(x, y, slope):
    """Where the best value of one depends on the other, the search returns to both."""

    def error_of(settings):
        along, across = settings["x"] - x, settings["y"] - y
        return along**2 + across**2 + slope / 4 * along * across

    coordinates = {"x": Ladder(4, NUMBERS), "y": Ladder(4, NUMBERS)}
    search, asked = searched(coordinates, error_of)
    found = error_of(search.best)
    neighbours = [
        {**search.best, name: search.best[name] + step}
        for name in "xy"
        for step in (-1, 1)
        if search.best[name] + step in NUMBERS
    ]
    assert all(error_of(one) >= found for one in neighbours)
    assert all(one in asked for one in neighbours)


@given(
    st.dictionaries(
        st.tuples(st.integers(-3, 3), st.integers(0, 4), st.integers(0, 1)),
        st.one_of(st.none(), st.floats(0, 10), st.just(nan)),
    ),
    st.integers(1, 15),
)
def test_never_more_than_allowed_and_never_twice(errors, tries):
    """Whatever the errors are; those that are not named are as good as 5."""
    coordinates = {
        "a": Ladder(1),
        "b": Ladder(2, (0, 1, 2, 3, 4)),
        "c": Choice((0, 1)),
    }

    def error_of(settings):
        return errors.get((_steps(settings["a"]), settings["b"], settings["c"]), 5.0)

    def comparable(settings):
        error = error_of(settings)
        return inf if error is None or isnan(error) else error

    search, asked = searched(coordinates, error_of, tries)
    assert 1 <= len(asked) <= tries
    assert len({tuple(one.values()) for one in asked}) == len(asked)
    assert comparable(search.best) == min(map(comparable, asked))
    statuses = search.statuses()
    assert statuses.keys() == coordinates.keys()
    assert set(statuses.values()) <= STATUSES.keys()
    if len(asked) < tries:  # it has ended by itself
        assert not {EDGE, BRACKETED} & set(statuses.values())
    _, more = searched(coordinates, error_of, tries + 3)
    assert more[: len(asked)] == asked  # more tries continue the search


def test_the_order_of_the_tries():
    coordinates = {
        "strength": FIVE,
        "lr": Ladder(3, (1, 2, 3, 4)),
        "decay": Choice((0, 1)),
    }
    _, asked = searched(coordinates, distance_from(strength=6, lr=2, decay=0))
    assert [tuple(one.values()) for one in asked] == [
        (5, 3, 0), (6, 3, 0), (7, 3, 0),  # the strength: up while it gets better
        (6, 4, 0), (6, 2, 0), (6, 1, 0),  # the learning rate: up is worse, down
        (7, 2, 0), (5, 2, 0),  # it has moved: the strength again
        (6, 2, 1),
    ]  # fmt: skip


def test_the_ladders_are_looked_at_again_after_a_choice_has_helped():
    coordinates = {"strength": FIVE, "decay": Choice((0, 1))}

    def error_of(settings):
        return abs(settings["strength"] - (7 if settings["decay"] else 5)) - 3 * settings["decay"]

    search, asked = searched(coordinates, error_of)
    assert search.best == {"strength": 7, "decay": 1}
    assert search.statuses() == {"strength": INTERIOR, "decay": ALL_TRIED}
    assert {"strength": 7, "decay": 0} in asked


# -------------------------------------------------------------------------------------- the edges


@pytest.mark.parametrize(
    ("best", "tries", "status"),
    [
        (5, 3, INTERIOR),
        (5, 2, EDGE),  # below it nothing has been tried
        (9, 4, EDGE),  # 8 is the best so far
        (9, 5, END),
        (1, 6, END),
        (1, 5, EDGE),
        (2, 6, INTERIOR),
    ],
)
def test_the_status_of_a_value_on_a_ladder(best, tries, status):
    search, asked = searched({"x": FIVE}, distance_from(x=best), tries)
    assert search.statuses() == {"x": status}
    assert len(asked) == tries


def test_a_neighbour_that_is_as_good():
    search, _ = searched({"x": FIVE}, lambda settings: max(settings["x"], 4))
    assert search.best == {"x": 4}
    assert search.statuses() == {"x": LEVEL}


def test_values_whose_neighbours_were_tried_with_other_settings():
    coordinates = {"x": FIVE, "y": Ladder(3, (1, 2, 3)), "z": Choice((0, 1))}
    error_of = distance_from(x=5, y=2, z=0)
    search, _ = searched(coordinates, error_of, tries=4)
    assert search.best == {"x": 5, "y": 2, "z": 0}
    assert search.statuses() == {"x": BRACKETED, "y": EDGE, "z": EDGE}


def test_a_choice_that_was_tried_with_other_settings():
    coordinates = {"x": Ladder(1, (1, 2)), "z": Choice((0, 1))}

    def error_of(settings):  # better with 1, and then better still with 2
        return {(1, 0): 3, (2, 0): 4, (1, 1): 2, (2, 1): 1}[settings["x"], settings["z"]]

    search, _ = searched(coordinates, error_of, tries=4)
    assert search.statuses() == {"x": END, "z": ALL_TRIED}
    search, _ = searched(coordinates, error_of, tries=3)
    assert search.statuses() == {"x": BRACKETED, "z": ALL_TRIED}


def test_what_cannot_be_trained_is_worse_than_any():
    errors = {4: 90.0, 5: None, 6: nan}
    search, asked = searched({"x": FIVE}, lambda settings: errors.get(settings["x"], 95.0))
    assert [one["x"] for one in asked] == [5, 4, 3]
    assert search.best == {"x": 4}
    errors = {5: 90.0, 6: None, 4: nan}
    search, asked = searched({"x": FIVE}, lambda settings: errors[settings["x"]])
    assert [one["x"] for one in asked] == [5, 6, 4]
    assert search.best == {"x": 5}
    assert search.statuses() == {"x": INTERIOR}


def test_a_search_retreats_from_where_nothing_can_be_trained():
    def error_of(settings):
        return None if settings["strength"] * settings["lr"] > 0.3 else distance(settings)

    distance = distance_from(strength=10, lr=0.01)
    coordinates = {"strength": Ladder(1000), "lr": Ladder(0.03), "decay": Choice((0, 1))}
    search, asked = searched(coordinates, error_of)
    assert [one["strength"] for one in asked[:5]] == [1000, 300, 100, 30, 10]
    assert {one["lr"] for one in asked[:5]} == {0.03}
    assert (search.best["strength"], search.best["lr"]) == (10, 0.01)
    search, asked = searched(coordinates, lambda settings: None, tries=7)
    assert len(asked) == 7
    ending = {"x": Ladder(3, (1, 2, 3, 4)), "decay": Choice((0, 1))}
    assert search.least_error is None
    assert [one["x"] for one in searched(ending, lambda settings: None)[1][:3]] == [3, 2, 1]


def test_a_search_for_nothing_tries_once():
    search, asked = searched({}, lambda settings: 1.0)
    assert asked == [{}]
    assert search.statuses() == {}


def test_misuse_is_refused():
    with pytest.raises(SettingError, match="at least one try"):
        Search({"x": FIVE}, 0)
    search, _ = searched({"x": FIVE}, distance_from(x=5))
    with pytest.raises(SettingError, match="has ended"):
        search.answer(1.0)
    with pytest.raises(SettingError, match="cannot start at 3"):
        Choice((1, 2)).starting_at(3)


# ------------------------------------------------------------------------------ what is declared


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_method_declares_ladders_of_its_own_arguments(method):
    assert method.ladders.keys() <= method.arguments.keys()
    assert method.grid.keys() <= method.ladders.keys()  # or a search would leave it open
    assert not method.ladders.keys() & SEARCHED_TRAINING.keys()


@pytest.mark.parametrize("name", ["dco", "dco-comp", "dco-kron", "gpm", "sgp", "owm"])
def test_searches_start_from_the_plugins_defaults(name):
    method = METHODS[name]
    defaults = with_derived(method, method.arguments)
    assert {arg: ladder.start for arg, ladder in method.ladders.items()} == {
        arg: defaults[arg] for arg in method.ladders
    }
