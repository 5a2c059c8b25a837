"""Every plugin on data and models that are not as they should be."""

from __future__ import annotations

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from torch import nn
from torch.utils.data import TensorDataset

from avalanche_dco import DCOCompPlugin, DCOPlugin
from avalanche_dco.errors import DataError, GradientError, ModelError, SettingError
from benchmarks.streams.tensors import tensor_dataset
from tests.support.checkpointed import PLUGINS, QUICK
from tests.support.learning import blobs, naive, small_mlp, stream, train, weights_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Plugin does not protect", "ignore:k=6 is less", "ignore:.*not pushed into the cone"
)

PROJECTIONS = ("gpm", "sgp", "owm")
METHODS = [name for name in PLUGINS if name not in ("dco-logits", "ewc-online")]
X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(32) % 3


def with_value(value: float) -> torch.Tensor:
    x = X.clone()
    x[5, 2] = value
    return x


def without_task_labels(*inputs: torch.Tensor):
    """A stream of plain classification data sets."""

    def dataset(x):
        samples = TensorDataset(x, Y)
        samples.targets = Y.tolist()
        return as_classification_dataset(samples)

    return benchmark_from_datasets(train=[dataset(x) for x in inputs])


def after_a_good_experience(method, x, y, model=None):
    """A strategy that has learned something, and the bad experience that comes next."""
    good, bad = stream([X, x], [Y, y]).train_stream
    strategy = naive(model or small_mlp(), [PLUGINS[method]()])
    strategy.train(good)
    return strategy, bad


def refused(strategy, experience, error, message):
    """The experience is refused and the plugin remembers what it did before."""
    plugin = strategy.plugins[0]
    before = plugin._memory(), plugin._clock
    with pytest.raises(error, match=message):
        strategy.train(experience)
    assert plugin._clock == before[1]
    assert plugin._memory().keys() == before[0].keys()


@pytest.mark.parametrize("method", METHODS)
class TestEveryPlugin:
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_inputs_that_are_not_numbers(self, method, value):
        strategy, bad = after_a_good_experience(method, with_value(value), Y)
        refused(strategy, bad, GradientError, "Experience 1: .*Sample 5 of its data has an input")

    @pytest.mark.parametrize(("shift", "label"), [(1, 3), (-1, -1)])
    def test_labels_out_of_range(self, method, shift, label):
        strategy, bad = after_a_good_experience(method, X, Y + shift)
        before = weights_of(strategy.model)
        message = rf"Experience 1: there are labels \[{label}\], but the model has 3 outputs"
        refused(strategy, bad, DataError, message)
        assert torch.equal(weights_of(strategy.model), before)

    def test_an_empty_experience(self, method):
        benchmark = benchmark_from_datasets(
            train=[tensor_dataset(X, Y), tensor_dataset(X[:0], Y[:0])]
        )
        strategy = naive(small_mlp(), [PLUGINS[method]()])
        good, empty = benchmark.train_stream
        strategy.train(good)
        refused(strategy, empty, DataError, "Experience 1 is empty.*Leave it out")

    @pytest.mark.parametrize("samples", [1, 5])
    def test_an_experience_of_one_sample_or_less_than_a_batch_is_learned(self, method, samples):
        strategy, short = after_a_good_experience(method, X[:samples], Y[:samples])
        before = weights_of(strategy.model)
        strategy.train(short)
        assert weights_of(strategy.model).isfinite().all()
        assert not torch.equal(weights_of(strategy.model), before)
        assert strategy.plugins[0].state_dict()["clock"]["train_exp_counter"] == 2

    @pytest.mark.filterwarnings("ignore:.*the gradients are zero")
    def test_gradients_of_nothing_leave_the_weights_alone(self, method):
        model = nn.Linear(6, 3, bias=False)
        before = weights_of(model)
        strategy = naive(model, [PLUGINS[method]()])
        for experience in stream([0 * X] * 3, [Y] * 3).train_stream:
            strategy.train(experience)
        torch.testing.assert_close(weights_of(model), before)

    @pytest.mark.parametrize(
        ("x", "y", "message"),
        [
            (X.double(), Y, r"inputs are torch.float64, the weights torch.float32.*x.float\(\)"),
            (X.byte(), Y, r"inputs are torch.uint8, the weights torch.float32.*x.float\(\)"),
            (X, Y.float(), r"labels are torch.float32.*y.long\(\)"),
            (X, Y.int(), r"labels are torch.int32.*y.long\(\)"),
        ],
    )
    def test_wrong_dtypes(self, method, x, y, message):
        strategy, bad = after_a_good_experience(method, x, y)
        refused(strategy, bad, DataError, f"Experience 1: the {message}")

    def test_a_benchmark_without_task_labels(self, method):
        good, again, bad = without_task_labels(X, X + 1, X.double()).train_stream
        assert not hasattr(good, "task_labels")
        strategy = naive(small_mlp(), [PLUGINS[method]()])
        strategy.train(good)
        state = strategy.plugins[0].state_dict()
        strategy.plugins[0] = PLUGINS[method]()
        strategy.plugins[0].load_state_dict(state, strategy.model)
        strategy.train(again)
        assert strategy.plugins[0].state_dict()["clock"]["train_exp_counter"] == 2
        refused(strategy, bad, DataError, "Experience 2: the inputs are torch.float64")

    def test_a_model_that_shrank(self, method):
        strategy, again = after_a_good_experience(method, X, Y)
        strategy.model[0], strategy.model[2] = nn.Linear(6, 4), nn.Linear(4, 3)
        if method == "a-gem":
            self._learns(strategy, again)
            return
        if method in PROJECTIONS:
            message = "'2' now has 5 inputs, but its basis has 9"
        else:
            message = r"'0\.weight' ha(d|s) shape .8, 6. (when its prohibited|after .*.4, 6. now)"
        refused(strategy, again, ModelError, message)

    def test_a_parameter_that_is_gone(self, method):
        strategy, again = after_a_good_experience(method, X, Y)
        strategy.model[2] = nn.Linear(8, 3, bias=False)
        if method == "a-gem":
            self._learns(strategy, again)
            return
        gone = "'2' now has 8 inputs, but its basis has 9" if method in PROJECTIONS else r"2\.bias"
        refused(strategy, again, ModelError, gone)

    def _learns(self, strategy, experience):
        """A-GEM keeps data, nothing about the model: any model will do."""
        before = weights_of(strategy.model)
        strategy.train(experience)
        assert not torch.equal(weights_of(strategy.model), before)


class Converting(nn.Linear):
    def forward(self, x):
        return super().forward(x.float())


@pytest.mark.parametrize("method", ["dco", "ewc"])
def test_an_embedding_takes_integers(method):
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(24, 3))
    tokens = torch.randint(10, X.shape)
    strategy = naive(model, [PLUGINS[method]()])
    before = weights_of(model)
    for experience in stream([tokens, tokens + 0], [Y, Y]).train_stream:
        strategy.train(experience)
    assert not torch.equal(weights_of(model), before)


def test_what_fails_in_any_precision_is_not_put_down_to_it():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 3))
    strategy = naive(model, [PLUGINS["dco"]()])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        strategy.train(stream([torch.randint(10, X.shape)], [Y]).train_stream[0])


def test_a_model_may_convert_its_inputs():
    torch.manual_seed(3)
    strategy, other = after_a_good_experience("dco", X.double(), Y, Converting(6, 3))
    strategy.train(other)
    assert strategy.clock.train_exp_counter == 2


def test_probabilities_and_ignored_labels_are_no_bad_labels():
    y = Y.clone()
    y[3] = -100
    train(small_mlp(), stream([X], [y]), [DCOPlugin(**QUICK)])
    probabilities = nn.functional.one_hot(Y, 3).float()
    strategy = naive(small_mlp(), [DCOPlugin(**QUICK)])
    strategy.mbatch = [X, probabilities, torch.zeros(32)]
    strategy.plugins[0]._check_labels(strategy, torch.zeros(32, 3))


def test_broken_weights_without_broken_inputs_name_the_learning_rate():
    strategy = naive(
        small_mlp(), [DCOPlugin(**QUICK)], optimizer=lambda p: torch.optim.SGD(p, lr=1e30)
    )
    with pytest.raises(GradientError, match="inputs are all finite: lower the learning rate"):
        strategy.train(blobs(1).train_stream[0])


@pytest.mark.parametrize("plugin", [DCOPlugin, DCOCompPlugin])
def test_more_directions_than_parameters_are_learned_with_finite_weights(plugin):
    settings = QUICK | {"k": 200}  # of 75 parameters
    strategy = train(small_mlp(), blobs(2), [plugin(**settings)])
    assert weights_of(strategy.model).isfinite().all()
    assert strategy.plugins[0].penalty.directions.k in (200, 400)


class TestMemoryGuard:
    def bytes_of(self, make, experiences):
        return train(small_mlp(), blobs(experiences), [make()]).plugins[0].memory_bytes

    @pytest.mark.parametrize(
        ("plugin", "remedy"),
        [(DCOPlugin, r"Use DCO-COMP.*or a k of"), (DCOCompPlugin, "Use a k of")],
    )
    @pytest.mark.filterwarnings("error:Experience")
    def test_it_warns_before_the_experience_that_would_exceed_it(self, plugin, remedy):
        settings = QUICK | {"k": 8}
        limit = self.bytes_of(lambda: plugin(**settings), 2)
        first, second = blobs(2).train_stream

        at_most = limit if plugin is DCOPlugin else 1.1 * limit
        below = naive(small_mlp(), [plugin(**settings, max_bytes=at_most)])
        below.train(first)  # a warning would be an error
        below.train(second)
        assert below.plugins[0].memory_bytes == limit

        above = naive(small_mlp(), [plugin(**settings)])
        above.train(first)
        above.plugins[0].max_bytes = limit - 1
        with pytest.raises(UserWarning, match=rf"Experience 1: .*may keep .* bytes.*{remedy}"):
            above.train(second)
        assert above.clock.train_iterations == 6  # those of the first

    def test_the_k_it_names_fits(self):
        limit = self.bytes_of(lambda: DCOPlugin(**QUICK), 1) // 2
        with pytest.warns(UserWarning, match="a k of at most 3 instead of 6"):
            train(small_mlp(), blobs(1), [DCOPlugin(**QUICK, max_bytes=limit)])
        assert self.bytes_of(lambda: DCOPlugin(**(QUICK | {"k": 3})), 1) <= limit

    def test_no_k_fits_any_more(self):
        plugin = DCOPlugin(**QUICK, max_bytes=1)
        with pytest.warns(UserWarning, match="a smaller k from the first experience on"):
            train(small_mlp(), blobs(1), [plugin])

    def test_a_limit_of_nothing_is_refused(self):
        with pytest.raises(SettingError, match="max_bytes=0 must be a number above 0"):
            DCOPlugin(max_bytes=0)
