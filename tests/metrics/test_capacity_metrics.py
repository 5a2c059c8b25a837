"""The capacity meter in runs: what it measures, when, and that it leaves no trace."""

import importlib
import random
import re
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.logging import TextLogger
from avalanche.models import IncrementalClassifier
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_dco import DCO, DCOCompPlugin, DCOKronPlugin, DCOPlugin
from avalanche_dco.core.span import DirectionSpan
from avalanche_dco.errors import SettingError
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import Capacity, DirectionMemory, capacity_metrics
from avalanche_dco.models import MLP
from avalanche_dco.plots import plot_capacity, plot_free_directions
from benchmarks.streams.digits import permuted_digits
from tests.plugins.test_isolation import fingerprint
from tests.support.learning import (
    QUICK,
    blobs,
    naive,
    small_mlp,
    split_blobs,
    stream,
    train,
    weights_of,
)
from tests.support.problems import explicit_matrix, flat

# The function of the same name hides the module from a plain import.
METER = importlib.import_module("avalanche_dco.metrics.capacity_metrics")
PLACE = "train_phase/train_stream/Task000/Exp"


def measured(benchmark, plugin=None, model=None, metrics=None, **arguments):
    """Train with the meter; the plugin, and all values by metric, in order."""
    plugin = plugin or DCOPlugin(**QUICK)
    evaluator = EvaluationPlugin(metrics or capacity_metrics(), loggers=[])
    train(model or small_mlp(), benchmark, [plugin], evaluator=evaluator, **arguments)
    return plugin, _by_metric(evaluator)


def _by_metric(evaluator):
    values = {}
    for name, (_, curve) in evaluator.get_all_metrics().items():
        if not name.startswith("DCO_"):  # the plugin's own
            values.setdefault(name.split("/")[0], []).extend(curve)
    return values


class TestDCOKron:
    def test_all_values_reach_the_logger_and_the_figure(self):
        logger, plugin = PandasLogger(), DCOKronPlugin()
        evaluator = EvaluationPlugin(capacity_metrics(), loggers=[logger])
        train(small_mlp(), blobs(3), [plugin], evaluator=evaluator)
        frame = logger.to_frame()
        values = {name: rows["value"].tolist() for name, rows in frame.groupby("metric")}
        assert values["CapacityStart"][0] == 0
        assert all(0 < share < 1 for share in values["CapacityStart"][1:])
        assert values["DirectionMemory"] == [plugin.memory_bytes] * 3
        assert values["DCO_FreeDirections/0.weight"][-1] == plugin.free_shares["0.weight"]
        (axes,) = plot_free_directions(frame).axes
        drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
        assert drawn == {
            "0.weight": values["DCO_FreeDirections/0.weight"],
            "2.weight": values["DCO_FreeDirections/2.weight"],
        }

    def test_more_of_a_task_that_comes_again_is_damped_than_of_another(self):
        benchmark = permuted_digits(2)
        metric = Capacity()
        torch.manual_seed(0)
        strategy = naive(
            MLP(64, hidden_size=32),
            [DCOKronPlugin()],
            evaluator=EvaluationPlugin([metric], loggers=[]),
            optimizer=lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        )
        first, second = benchmark.train_stream
        strategy.train(first)
        strategy.train(second)
        other = metric.result()["CapacityStart"]
        strategy.train(first)
        assert metric.result()["CapacityStart"] > max(0.9, 1.2 * other)

    def test_a_frame_without_it(self):
        logger = PandasLogger()
        evaluator = EvaluationPlugin(capacity_metrics(), loggers=[logger])
        train(small_mlp(), blobs(1), [DCOPlugin(**QUICK)], evaluator=evaluator)
        with pytest.raises(SettingError, match="no DCO_FreeDirections"):
            plot_free_directions(logger.to_frame())


class TestValues:
    def test_it_is_0_before_the_first_task_and_between_0_and_1_after_it(self):
        _, values = measured(blobs(4))
        for metric in ("CapacityStart", "CapacityEnd"):
            first, *others = values[metric]
            assert first == 0.0
            assert len(others) == 3
            assert all(0 < share <= 1 for share in others)

    def test_it_is_near_1_when_the_same_task_comes_again_and_not_for_another(self):
        benchmark = permuted_digits(2)
        plugin = DCOPlugin.paper(
            k=300, gradients_per_update=16, autoencoder_updates=100, push_epochs=2
        )
        metrics = capacity_metrics()
        torch.manual_seed(0)
        model = MLP(64, hidden_size=32)
        strategy = naive(
            model,
            [plugin],
            evaluator=EvaluationPlugin(metrics, loggers=[]),
            optimizer=lambda p: torch.optim.SGD(p, lr=0.003, momentum=0.9),
            train_mb_size=32,
            train_epochs=8,
        )
        shares = []
        for number in (0, 0, 1):
            strategy.train(benchmark.train_stream[number])
            shares.append(metrics[0].result())
        first, again, other = shares
        assert first == {"CapacityStart": 0.0, "CapacityEnd": 0.0}
        assert again["CapacityStart"] > 0.9
        assert again["CapacityEnd"] > 0.9
        assert other["CapacityStart"] < 0.7

    def test_it_agrees_with_an_explicit_orthonormal_projection_of_the_same_gradients(
        self, monkeypatch
    ):
        seen = []
        original = METER._gradients

        def recorded(strategy, batches):
            seen.append([])
            for gradient in original(strategy, batches):
                seen[-1].append(flat(gradient))
                yield gradient

        monkeypatch.setattr(METER, "_gradients", recorded)
        known = []

        class Remembers(DCOPlugin):
            def before_training_exp(self, strategy, **kwargs):
                super().before_training_exp(strategy, **kwargs)
                known.append(None if self.penalty is None else self.penalty.directions)

        benchmark = stream(*_in_double(blobs(3)))
        _, values = measured(
            benchmark, Remembers(**QUICK, couple_layers=True), small_mlp().double()
        )
        # The first experience has no directions behind it, so that none of its gradients is read.
        assert known[0] is None
        assert len(seen) == 4
        for experience in (1, 2):
            # At the end, too, the directions are those from before the experience.
            Q = torch.linalg.qr(explicit_matrix(known[experience])).Q
            for metric, gradients in zip(
                ("CapacityStart", "CapacityEnd"), seen[2 * experience - 2 :], strict=False
            ):
                explicit = [((Q.T @ g).square().sum() / g.square().sum()).item() for g in gradients]
                mean = sum(explicit) / len(explicit)
                assert values[metric][experience] == pytest.approx(mean, abs=1e-8)

    def test_the_end_is_measured_at_the_weights_that_the_experience_leaves_behind(
        self, monkeypatch
    ):
        at = []
        original = METER._gradients

        def recorded(strategy, batches):
            at.append(weights_of(strategy.model))
            return original(strategy, batches)

        monkeypatch.setattr(METER, "_gradients", recorded)
        model = small_mlp()
        measured(blobs(2), model=model)
        start, end = at[-2], at[-1]
        assert torch.equal(end, weights_of(model))
        assert not torch.equal(start, end)

    def test_memory_is_what_the_plugin_keeps(self):
        plugin, values = measured(blobs(3))
        assert values["DirectionMemory"][-1] == plugin.memory_bytes > 0
        one = values["DirectionMemory"][0]
        assert values["DirectionMemory"] == [one, 2 * one, 3 * one]

    def test_with_compression(self):
        plugin, values = measured(blobs(3), DCOCompPlugin(**QUICK))
        assert values["CapacityStart"][0] == 0.0
        assert all(0 < share <= 1 for share in values["CapacityStart"][1:])
        assert values["DirectionMemory"][-1] == plugin.memory_bytes

    def test_plugin_that_learns_no_directions(self):
        _, values = measured(blobs(2), DCOPlugin(**(QUICK | {"autoencoder_updates": 0})))
        assert values == {
            "CapacityStart": [0.0, 0.0],
            "CapacityEnd": [0.0, 0.0],
            "DirectionMemory": [0, 0],
        }

    def test_parameters_left_out_count_as_free(self):
        def only(name_of_last):
            plugin = DCOPlugin(**QUICK, parameter_filter=lambda name, _: name == name_of_last)
            return measured(blobs(2), plugin)[1]["CapacityStart"][1]

        # Three numbers, eight directions: all of their span, and yet not all of the gradient.
        assert 0 < only("2.bias") < 0.9

    def test_head_that_grows_and_frozen_parameters(self):
        class Growing(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
                self.head = IncrementalClassifier(8, initial_out_features=2)
                self.body[0].bias.requires_grad_(False)

            def forward(self, x):
                return self.head(self.body(x))

        _, values = measured(_without_tasks(split_blobs(3)), model=Growing())
        assert len(values["CapacityEnd"]) == 3
        assert all(0 < share < 1 for share in values["CapacityStart"][1:])


class TestBatches:
    @pytest.mark.parametrize(
        ("batches", "batch_size", "expected"),
        [(2, 16, 2), (16, 16, 3), (16, 20, 2), (4, 1000, 1)],
        ids=["as many as asked for", "as many as there are", "full ones only", "one small one"],
    )
    def test_number_and_size_and_no_sample_twice(self, monkeypatch, batches, batch_size, expected):
        read = []
        original = METER.criterion_gradients

        def recorded(strategy, batch, parameters):
            read.append(batch[0])
            return original(strategy, batch, parameters)

        monkeypatch.setattr(METER, "criterion_gradients", recorded)
        metrics = capacity_metrics(end=False, batches=batches)
        measured(blobs(2, samples=48), metrics=metrics, train_mb_size=batch_size)
        assert [len(batch) for batch in read] == [min(batch_size, 48)] * expected
        assert len(torch.cat(read).unique(dim=0)) == expected * min(batch_size, 48)

    @pytest.mark.parametrize("batches", [0, -1, 2.5, None])
    def test_a_number_that_makes_no_sense_is_refused(self, batches):
        with pytest.raises(SettingError, match="batches"):
            capacity_metrics(batches=batches)


class TestNoTrace:
    @staticmethod
    def _model():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), small_mlp(8))

    @pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam], ids=["sgd", "adam"])
    def test_runs_with_and_without_it_end_in_the_same_weights_bit_for_bit(self, make):
        def run(metrics):
            model = self._model()
            random.seed(1), np.random.seed(1)
            train(
                model,
                blobs(3),
                [DCOPlugin(**QUICK)],
                evaluator=EvaluationPlugin(metrics, loggers=[]),
                optimizer=lambda p: make(p, lr=0.05),
            )
            state = [value.tolist() for value in model.state_dict().values()]
            return state, torch.rand(3).tolist(), random.random(), np.random.rand()

        assert run(capacity_metrics()) == run([])

    def test_nothing_of_the_strategy_is_changed_by_measuring(self):
        metric = Capacity()

        class Measures(SupervisedPlugin):
            """Calls the metric as the evaluator does, between two looks at the strategy."""

            def _look(self, strategy, callback):
                def seen():
                    random.seed(5), np.random.seed(5)
                    at = fingerprint(strategy), weights_of(strategy.model).tolist()
                    random.seed(5), np.random.seed(5)
                    return at, torch.get_rng_state().tolist()

                before = seen()
                experience = strategy.experience
                strategy.experience = experience.logging()
                getattr(metric, callback)(strategy)
                strategy.experience = experience
                assert seen() == before

            def after_training_iteration(self, strategy, **kwargs):
                self._look(strategy, "before_training_exp")  # with a batch, a loss and gradients

            def after_training_exp(self, strategy, **kwargs):
                self._look(strategy, "after_training_exp")

        strategy = naive(self._model(), [DCOPlugin(**QUICK), Measures()])
        for experience in blobs(2).train_stream:
            strategy.train(experience)
        assert 0 < metric.result()["CapacityEnd"] < 1

    def test_the_span_is_made_once_per_experience_and_let_go_of(self, monkeypatch):
        made = []

        class Counted(DirectionSpan):
            def __init__(self, directions, *, couple_layers):
                made.append((directions.k, couple_layers))
                super().__init__(directions, couple_layers=couple_layers)

        monkeypatch.setattr("avalanche_dco.plugins.base.DirectionSpan", Counted)
        metrics = capacity_metrics()
        measured(blobs(3), DCOPlugin(**QUICK, couple_layers=True), metrics=metrics)
        assert made == [(8, True), (16, True)]
        assert metrics[0]._span is None

        train(
            small_mlp(),
            blobs(2),
            [DCOPlugin(**QUICK, couple_layers=False)],
            evaluator=EvaluationPlugin(capacity_metrics(), loggers=[]),
        )
        assert made[2:] == [(8, False)]

    def test_without_the_end_the_span_does_not_outlive_the_start(self):
        metrics = capacity_metrics(end=False)

        class Looks(SupervisedPlugin):
            def before_training_epoch(self, strategy, **kwargs):
                assert metrics[0]._span is None

        train(
            small_mlp(),
            blobs(2),
            [DCOPlugin(**QUICK), Looks()],
            evaluator=EvaluationPlugin(metrics, loggers=[]),
        )
        assert metrics[0].result()["CapacityStart"] > 0


class TestInLoggers:
    def test_names_and_positions(self):
        evaluator = EvaluationPlugin(capacity_metrics(), loggers=[])
        strategy = train(small_mlp(), blobs(2), [DCOPlugin(**QUICK)], evaluator=evaluator)
        curves = strategy.evaluator.get_all_metrics()
        for metric, iterations in {
            "CapacityStart": 6,  # two epochs of three batches before it
            "CapacityEnd": 12,
            "DirectionMemory": 12,
        }.items():
            xs, values = curves[f"{metric}/{PLACE}001"]
            assert xs == [iterations]
            assert isinstance(values[0], int | float)

    def test_text_and_pandas_loggers_and_the_plot_show_them(self):
        text, log = StringIO(), PandasLogger()
        evaluator = EvaluationPlugin(capacity_metrics(), loggers=[TextLogger(text), log])
        benchmark = blobs(3)
        strategy = train(small_mlp(), benchmark, [DCOPlugin(**QUICK)], evaluator=evaluator)
        strategy.eval(benchmark.test_stream)  # Avalanche's text loggers print when this ends
        values = _by_metric(evaluator)
        assert f"DirectionMemory/{PLACE}002 = {values['DirectionMemory'][2]}" in text.getvalue()
        assert f"CapacityEnd/{PLACE}002 = {values['CapacityEnd'][2]:.4f}" in text.getvalue()
        frame = log.to_frame()
        starts = frame[frame["metric"] == "CapacityStart"]
        assert starts["value"].tolist() == values["CapacityStart"]
        assert starts["trained"].tolist() == [1, 2, 3]
        share, memory = plot_capacity(frame).axes
        assert [line.get_ydata().tolist() for line in share.lines] == [
            values["CapacityStart"],
            values["CapacityEnd"],
        ]
        assert memory.lines[0].get_ydata() == pytest.approx(
            np.array(values["DirectionMemory"]) / 2**20
        )

    @pytest.mark.parametrize("chosen", ["start", "end", "memory"])
    def test_each_can_be_had_alone(self, chosen):
        names = {"start": "CapacityStart", "end": "CapacityEnd", "memory": "DirectionMemory"}
        wanted = {name: name == chosen for name in names}
        _, values = measured(blobs(2), metrics=capacity_metrics(**wanted))
        assert set(values) == {names[chosen]}

    def test_results_and_reset(self):
        capacity, memory = Capacity(), DirectionMemory()
        assert capacity.result() == {}
        assert memory.result() is None
        plugin, values = measured(blobs(2), metrics=[capacity, memory])
        assert capacity.result()["CapacityEnd"] == values["CapacityEnd"][1]
        assert memory.result() == plugin.memory_bytes
        capacity.reset(), memory.reset()
        assert capacity.result() == {}
        assert memory.result() is None


class TestErrors:
    @pytest.mark.parametrize("metric", [Capacity, DirectionMemory])
    def test_no_plugin_to_measure(self, metric):
        model = small_mlp()
        before = weights_of(model)
        with pytest.raises(SettingError, match=r"no plugin.*plugins=\[DCOPlugin\(\)\]"):
            train(model, blobs(1), evaluator=EvaluationPlugin(metric(), loggers=[]))
        assert torch.equal(weights_of(model), before)

    def test_two_plugins_to_measure(self):
        model = small_mlp()
        strategy = DCO(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            plugins=[DCOPlugin(**QUICK)],
            evaluator=EvaluationPlugin(capacity_metrics(), loggers=[]),
        )
        before = weights_of(model)
        with pytest.raises(SettingError, match=r"2 plugins .*\(DCOPlugin, DCOPlugin\)"):
            strategy.train(blobs(1).train_stream[0])
        assert torch.equal(weights_of(model), before)


def _in_double(benchmark):
    inputs = [
        torch.stack([sample[0] for sample in experience.dataset]).double()
        for experience in benchmark.train_stream
    ]
    labels = [
        torch.tensor([sample[1] for sample in experience.dataset])
        for experience in benchmark.train_stream
    ]
    return inputs, labels


def _without_tasks(benchmark):
    inputs, labels = _in_double(benchmark)
    return stream([x.float() for x in inputs], labels)


def test_the_example_in_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parent.parent.parent / "docs" / "capacity.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(compile(example, str(page), "exec"), names)
    shares = names["logger"].to_frame().query("metric == 'CapacityStart'")["value"]
    assert len(shares) == 3
    assert (tmp_path / "capacity.png").exists()
