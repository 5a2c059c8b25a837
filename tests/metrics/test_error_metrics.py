"""The error metrics against a replay of the event log, without a network."""

import copy
import doctest
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import dill
import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_dco.errors import SettingError
from avalanche_dco.metrics import (
    AverageError,
    BWTError,
    ErrorMatrix,
    FWIError,
    average_error,
    bwt_error,
    error_metrics,
    functional,
    fwi_error,
)

SAMPLES = 8
Event = tuple  # ("train", task) or ("eval", [(stream, task, wrong), ...])


@dataclass
class Experience:
    """What the metrics see of an Avalanche experience."""

    stream: str
    current_experience: int

    @property
    def origin_stream(self) -> Any:
        return SimpleNamespace(name=self.stream)

    @property
    def task_labels(self) -> list[int]:
        return [0]

    def logging(self) -> "Experience":
        return self


class EventPlayer:
    """Sends the callbacks of a run to an evaluator; the outputs have as many errors as told."""

    def __init__(self, *metrics: Any) -> None:
        self.evaluator = EvaluationPlugin(*metrics)
        self.clock = SimpleNamespace(train_iterations=0)
        self.experience: Experience | None = None
        self.is_eval = False

    def play(self, event: Event) -> dict[str, float]:
        """The stream-level values that this event emitted."""
        self.evaluator.reset_last_metrics()
        if event[0] == "train":
            self.experience = Experience("train", event[1])
            self.clock.train_iterations += 1
            self.evaluator.before_training_exp(self)
            self.evaluator.after_training_exp(self)
        else:
            self._eval(event[1])
        return self.evaluator.get_last_metrics()

    def _eval(self, experiences: list[tuple[str, int, int]]) -> None:
        self.is_eval = True
        self.evaluator._update_metrics_and_loggers(self, "before_eval")
        for stream, task, wrong in experiences:
            self.experience = Experience(stream, task)
            self.evaluator.before_eval_exp(self)
            truth = torch.zeros(SAMPLES, dtype=torch.long)
            predicted = (torch.arange(SAMPLES) < wrong).long()
            for half in (slice(0, 3), slice(3, SAMPLES)):
                self.mb_y = truth[half]
                self.mb_output = torch.nn.functional.one_hot(predicted[half], 2).float()
                self.evaluator.after_eval_iteration(self)
            self.evaluator.after_eval_exp(self)
        self.evaluator.after_eval(self)
        self.is_eval = False


def replay(events: list[Event], stream: str) -> dict[str, float]:
    """The three errors by definition, from the bare log of a run."""
    trainings = [i for i, event in enumerate(events) if event[0] == "train"]
    if not trainings:
        return {}

    def last_error(task: int, after: int) -> float:
        """Error in the last evaluation between one training and the next."""
        until = min([i for i in trainings if i > after], default=len(events))
        errors = [
            wrong / SAMPLES
            for kind, what in events[after:until]
            if kind == "eval"
            for name, evaluated, wrong in what
            if (name, evaluated) == (stream, task)
        ]
        return errors[-1] if errors else np.nan

    tasks = sorted({events[i][1] for i in trainings})
    now = np.array([last_error(task, trainings[-1]) for task in tasks])
    own = np.array(
        [last_error(task, max(i for i in trainings if events[i][1] == task)) for task in tasks]
    )
    values = {
        "AverageError": np.sum(now) / len(tasks),
        "FWIError": np.sum(own) / len(tasks),
        "BWTError": np.sum(now - own) / len(tasks),
    }
    return {
        f"{name}/eval_phase/{stream}_stream": value
        for name, value in values.items()
        if not np.isnan(value)
    }


TASKS = st.integers(0, 4)
TRAIN = st.tuples(st.just("train"), TASKS)
EVALUATED = st.tuples(st.sampled_from(["test", "valid"]), TASKS, st.integers(0, SAMPLES))
EVAL = st.tuples(st.just("eval"), st.lists(EVALUATED, max_size=10))


@st.composite
def whole_streams(draw: Any) -> list[Event]:
    """Every experience once, in any order, each time the whole test stream in any order."""
    tasks = list(range(draw(st.integers(1, 5))))
    events: list[Event] = []
    for task in draw(st.permutations(tasks)):
        errors = draw(st.lists(st.integers(0, SAMPLES), min_size=len(tasks), max_size=len(tasks)))
        order = draw(st.permutations(tasks))
        events.append(("train", task))
        events.append(("eval", [("test", j, errors[j]) for j in order]))
    return events


@pytest.mark.filterwarnings("ignore:.*stream. the average, FWI")
@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(TRAIN, EVAL), max_size=12))
def test_any_order_of_events_gives_what_a_replay_of_the_log_gives(events: list[Event]) -> None:
    player = EventPlayer(error_metrics())
    for index, event in enumerate(events):
        emitted = player.play(event)
        expected: dict[str, float] = {}
        if event[0] == "eval":
            for stream in {stream for stream, _, _ in event[1]}:
                expected |= replay(events[: index + 1], stream)
        assert emitted == pytest.approx(expected, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(whole_streams())
def test_random_matrices_in_random_orders(events: list[Event]) -> None:
    player = EventPlayer(error_metrics())
    for index, event in enumerate(events):
        emitted = player.play(event)
        if event[0] == "eval":
            assert len(emitted) == 3
            assert emitted == pytest.approx(replay(events[: index + 1], "test"), abs=1e-12)
            average, fwi, bwt = emitted.values()
            assert average == pytest.approx(fwi + bwt, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_the_functions_equal_loops_over_the_paper_s_sums(n: int, unseen: int, seed: int) -> None:
    e = np.random.default_rng(seed).uniform(size=(n, n + unseen))
    average = sum(e[n - 1, j] for j in range(n)) / n
    fwi = sum(e[j, j] for j in range(n)) / n
    bwt = sum(e[n - 1, j] - e[j, j] for j in range(n)) / n
    for matrix in (e, torch.from_numpy(e), e.tolist()):
        assert average_error(matrix) == pytest.approx(average, abs=1e-12)
        assert fwi_error(matrix) == pytest.approx(fwi, abs=1e-12)
        assert bwt_error(matrix) == pytest.approx(bwt, abs=1e-12)
    assert average_error(e) == pytest.approx(fwi_error(e) + bwt_error(e), abs=1e-12)


def test_functions_say_nan_where_a_cell_is_missing() -> None:
    e = [[0.1, np.nan], [np.nan, 0.3]]
    assert np.isnan(average_error(e))
    assert fwi_error(e) == pytest.approx(0.2)
    assert np.isnan(bwt_error(e))
    assert np.isnan(average_error(e, {}))
    assert average_error(e, {1: 1}) == pytest.approx(0.3)


def test_functions_refuse_what_is_no_error_matrix() -> None:
    with pytest.raises(SettingError, match="two dimensions"):
        average_error([0.1, 0.2])
    with pytest.raises(SettingError, match="learned_at="):
        fwi_error([[0.1], [0.2]])
    for learned_at in ({2: 0}, {0: 2}, {-1: 0}):
        with pytest.raises(SettingError, match="2 x 2"):
            bwt_error([[0.1, 0.2], [0.3, 0.4]], learned_at)


def test_docstring_examples() -> None:
    assert doctest.testmod(functional).failed == 0
    assert doctest.testmod(functional).attempted == 6  # an import and a call for each


def test_evaluation_before_training_emits_no_stream_value() -> None:
    player = EventPlayer(error_metrics(matrix=True))
    assert player.play(("eval", [("test", 0, 4), ("test", 1, 5)])) == {
        "ErrorMatrix/eval_phase/test_stream/Task000/Exp000": 0.5,
        "ErrorMatrix/eval_phase/test_stream/Task000/Exp001": 0.625,
    }
    player.play(("train", 0))
    emitted = player.play(("eval", [("test", 0, 2), ("test", 1, 5)]))
    assert emitted["AverageError/eval_phase/test_stream"] == 0.25
    assert emitted["FWIError/eval_phase/test_stream"] == 0.25
    matrix = emitted["ErrorMatrix/eval_phase/test_stream"].matrix
    assert matrix.tolist() == [[0.25, 0.625]]


def test_evaluation_in_two_parts_counts_as_one() -> None:
    player = EventPlayer(error_metrics())
    player.play(("train", 0))
    player.play(("eval", [("test", 0, 1)]))
    player.play(("train", 1))
    with pytest.warns(UserWarning, match="Not evaluated since the last training: experiences .0."):
        assert "AverageError/eval_phase/test_stream" not in player.play(("eval", [("test", 1, 3)]))
    emitted = player.play(("eval", [("test", 0, 5)]))
    assert emitted["AverageError/eval_phase/test_stream"] == 0.5
    assert emitted["FWIError/eval_phase/test_stream"] == 0.25
    assert emitted["BWTError/eval_phase/test_stream"] == 0.25


def test_a_missed_evaluation_right_after_training_is_warned_of_once() -> None:
    player = EventPlayer(error_metrics())
    player.play(("train", 0))
    player.play(("train", 1))
    whole = ("eval", [("test", 0, 4), ("test", 1, 2)])
    with pytest.warns(UserWarning, match=r"right after their own training: \[0\]"):
        assert player.play(whole) == {"AverageError/eval_phase/test_stream": 0.375}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        player.play(whole)


def test_trained_twice_the_latest_training_counts() -> None:
    player = EventPlayer(error_metrics(matrix=True))
    for task, errors in ((0, [2, 8]), (1, [6, 1]), (0, [3, 4])):
        player.play(("train", task))
        emitted = player.play(("eval", [("test", j, wrong) for j, wrong in enumerate(errors)]))
    assert emitted["AverageError/eval_phase/test_stream"] == pytest.approx((3 + 4) / 16)
    assert emitted["FWIError/eval_phase/test_stream"] == pytest.approx((3 + 1) / 16)
    assert emitted["BWTError/eval_phase/test_stream"] == pytest.approx(3 / 16)
    value = emitted["ErrorMatrix/eval_phase/test_stream"]
    assert (8 * value.matrix).tolist() == [[2, 8], [6, 1], [3, 4]]
    assert value.learned_at == {0: 2, 1: 1}


def test_the_last_evaluation_before_the_next_training_wins() -> None:
    player = EventPlayer(error_metrics())
    player.play(("train", 0))
    player.play(("eval", [("test", 0, 7)]))
    emitted = player.play(("eval", [("test", 0, 2)]))
    assert emitted["FWIError/eval_phase/test_stream"] == 0.25
    assert emitted["BWTError/eval_phase/test_stream"] == 0.0


def test_streams_with_the_same_ids_are_kept_apart() -> None:
    player = EventPlayer(error_metrics())
    player.play(("train", 0))
    emitted = player.play(("eval", [("test", 0, 2), ("valid", 0, 6)]))
    assert emitted["AverageError/eval_phase/test_stream"] == 0.25
    assert emitted["AverageError/eval_phase/valid_stream"] == 0.75
    assert set(player.play(("eval", [("valid", 0, 6)]))) == {
        f"{name}/eval_phase/valid_stream" for name in ("AverageError", "FWIError", "BWTError")
    }


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({}, ["AverageError", "FWIError", "BWTError"]),
        ({"matrix": True}, ["AverageError", "FWIError", "BWTError", "ErrorMatrix"]),
        ({"average": False, "fwi": False}, ["BWTError"]),
        ({"average": False, "bwt": False, "matrix": True}, ["FWIError", "ErrorMatrix"]),
        ({"average": False, "fwi": False, "bwt": False}, []),
    ],
)
def test_only_what_is_asked_for_is_given(flags: dict[str, bool], names: list[str]) -> None:
    assert [str(metric) for metric in error_metrics(**flags)] == names


EVENTS: list[Event] = [
    ("train", 0),
    ("eval", [("test", 0, 1), ("test", 1, 8)]),
    ("train", 1),
    ("eval", [("test", 0, 4), ("test", 1, 2)]),
]
EXPECTED = {"AverageError": 6 / 16, "FWIError": 3 / 16, "BWTError": 3 / 16}


@pytest.mark.parametrize("metric", [AverageError, FWIError, BWTError])
def test_each_metric_works_alone(metric: type) -> None:
    player = EventPlayer(metric())
    for event in EVENTS:
        emitted = player.play(event)
    name = str(metric())
    assert emitted == {f"{name}/eval_phase/test_stream": pytest.approx(EXPECTED[name])}


def test_a_part_of_the_list_works_too() -> None:
    player = EventPlayer(error_metrics()[1:])
    for event in EVENTS:
        emitted = player.play(event)
    assert emitted == {
        f"{name}/eval_phase/test_stream": pytest.approx(EXPECTED[name])
        for name in ("FWIError", "BWTError")
    }


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda e: dill.loads(dill.dumps(e))])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_copy_goes_on_where_the_original_was(clone: Any, cut: int) -> None:
    player = EventPlayer(error_metrics(matrix=True))
    for event in EVENTS[:cut]:
        player.play(event)
    original, player.evaluator = player.evaluator, clone(player.evaluator)
    for event in EVENTS[cut:]:
        emitted = player.play(event)
    for name, value in EXPECTED.items():
        assert emitted[f"{name}/eval_phase/test_stream"] == pytest.approx(value)
    untouched = original.metrics[0].recorder
    assert untouched.progress.step == sum(event[0] == "train" for event in EVENTS[:cut])


def test_a_copy_of_one_metric_of_the_list_works() -> None:
    metrics = error_metrics()
    player = EventPlayer(metrics)
    player.play(EVENTS[0])
    player.play(EVENTS[1])
    player.evaluator.metrics = [copy.deepcopy(metrics[2])]
    player.play(EVENTS[2])
    assert player.play(EVENTS[3]) == {"BWTError/eval_phase/test_stream": pytest.approx(3 / 16)}


def test_reset_forgets_the_run() -> None:
    metrics = error_metrics()
    player = EventPlayer(metrics)
    for event in EVENTS:
        player.play(event)
    assert metrics[0].result() == {"test": pytest.approx(6 / 16)}
    metrics[0].reset()
    assert [metric.result() for metric in metrics] == [{}, {}, {}]
    player.play(("train", 1))
    emitted = player.play(("eval", [("test", 1, 4)]))
    assert emitted["AverageError/eval_phase/test_stream"] == 0.5


def test_an_experience_without_samples_leaves_its_cell_empty() -> None:
    player = EventPlayer(ErrorMatrix(), AverageError())
    player.play(("train", 0))
    player.experience = Experience("test", 0)
    for callback in ("before_eval", "before_eval_exp", "after_eval_exp", "after_eval"):
        player.evaluator._update_metrics_and_loggers(player, callback)
    assert player.evaluator.get_last_metrics() == {}


def test_the_matrix_has_a_form_for_every_logger() -> None:
    player = EventPlayer(ErrorMatrix())
    player.play(("train", 1))
    value = player.play(("eval", [("test", 1, 4)]))["ErrorMatrix/eval_phase/test_stream"]
    assert str(value).split("\n")[1:] == [
        "  training    exp 0    exp 1",
        "         1        -   0.5000",
    ]
    assert repr(value) == "ErrorMatrixValue([[nan, 0.5]])"
    assert value.best_supported_value(torch.Tensor, float).tolist()[0][1] == 0.5
    assert value.best_supported_value(float, int) is None
    picture = np.asarray(value.image())
    assert picture.shape[2] == 3
    assert picture.std() > 0
