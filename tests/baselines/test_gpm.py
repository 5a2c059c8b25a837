"""GPM inside Avalanche: exact for any optimizer, and invisible to everything else."""

import copy
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune

from avalanche_dco import GPM
from avalanche_dco.baselines.effective_weights import effective_matrix, set_effective_matrix
from avalanche_dco.baselines.gpm import GPMPlugin
from avalanche_dco.core.layers import as_matrix, groups_of
from avalanche_dco.errors import ModelError, SettingError
from benchmarks.streams.digits import permuted_digits
from tests.support.small_runs import (
    PERMUTED,
    SPLIT,
    CalledTwice,
    GrowingMLP,
    MultiHeadMLP,
    convolutional,
    mlp,
    naive,
    same_weights,
    trained,
)


def bias_free() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 20, bias=False), nn.ReLU(), nn.Linear(20, 10, bias=False))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum and weight decay": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2
    ),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("make_model", [bias_free, mlp, convolutional])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_change_of_the_weights_times_any_basis_vector_is_zero(
    make_model: Callable[[], nn.Module], optimizer: str
) -> None:
    model, gpm = make_model(), GPMPlugin(0.9, samples=100)
    strategy = naive(model, gpm, optimizer=OPTIMIZERS[optimizer](model.parameters()))
    strategy.train(PERMUTED[0])
    for experience in PERMUTED[1:]:
        bases, before = copy.deepcopy(gpm.bases), copy.deepcopy(dict(model.named_modules()))
        strategy.train(experience)
        for name, basis in bases.items():
            old, new = before[name], model.get_submodule(name)
            change = as_matrix(new.weight, new.bias, groups=groups_of(new)) - as_matrix(
                old.weight, old.bias, groups=groups_of(old)
            )
            assert change.abs().max() > 1e-4, "the layer has learned something"
            assert (change @ basis).abs().max() < 1e-6


def test_the_answers_to_remembered_inputs_do_not_change() -> None:
    """With threshold 1 and all data remembered, an earlier experience is not forgotten at all."""
    model = nn.Sequential(nn.Linear(64, 30), nn.Tanh(), nn.Linear(30, 10))
    few = list(permuted_digits(2).train_stream)
    few_samples = few[0].dataset.subset(list(range(12)))
    gpm = GPMPlugin(1.0, samples=12)
    strategy = naive(model, gpm, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))
    few[0]._dataset = few_samples
    strategy.train(few[0])
    x = torch.stack([few_samples[i][0] for i in range(12)])
    answers = model(x).detach()
    strategy.train(few[1])
    torch.testing.assert_close(model(x).detach(), answers, atol=1e-4, rtol=1e-4)


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's: there is a new one
        return nn.utils.weight_norm(layer)


WEIGHT_NORMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "parametrization": parametrizations.weight_norm,
    "one norm for all": lambda layer: parametrizations.weight_norm(layer, dim=None),
    "hook": old_weight_norm,
}


def normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        norm(nn.Conv2d(1, 6, 3, bias=False)),
        nn.Tanh(),
        norm(nn.Conv2d(6, 4, 3, stride=2, groups=2)),
        nn.Tanh(),
        nn.Flatten(),
        norm(nn.Linear(16, 10)),
    )


def changes_of_outputs(
    norm: Callable[[nn.Module], nn.Module], plugin: GPMPlugin | None, optimizer: str
) -> tuple[float, float]:
    """What a second experience changes on the first one's data and on its own, relatively."""
    first, second = permuted_digits(2).train_stream
    first._dataset = first.dataset.subset(list(range(12)))
    torch.manual_seed(1)
    model = nn.Sequential(norm(nn.Linear(64, 30)), nn.Tanh(), norm(nn.Linear(30, 10)))
    plugins = [plugin] if plugin else []
    strategy = naive(model, *plugins, optimizer=OPTIMIZERS[optimizer](model.parameters()))
    strategy.train(first)
    old, new = (torch.stack([e.dataset[i][0] for i in range(12)]) for e in (first, second))
    before = [model(x).detach() for x in (old, new)]
    strategy.train(second)
    after = [model(x).detach() for x in (old, new)]
    on_old, on_new = ((b - a).norm() / a.norm() for a, b in zip(before, after, strict=True))
    return on_old.item(), on_new.item()


@pytest.mark.parametrize("norm", WEIGHT_NORMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_answers_of_weight_normed_layers_do_not_change(norm: str, optimizer: str) -> None:
    unprotected, _ = changes_of_outputs(WEIGHT_NORMS[norm], None, optimizer)
    protected, learned = changes_of_outputs(
        WEIGHT_NORMS[norm], GPMPlugin(1.0, samples=12), optimizer
    )
    assert unprotected > 0.2
    assert protected < 1e-5
    assert learned > 0.2


@pytest.mark.parametrize("norm", WEIGHT_NORMS)
def test_the_change_of_a_normed_weight_times_any_basis_vector_is_zero(norm: str) -> None:
    model, gpm = normed(WEIGHT_NORMS[norm]), GPMPlugin(0.9, samples=100)
    strategy = naive(model, gpm)
    strategy.train(PERMUTED[0])
    bases = copy.deepcopy(gpm.bases)
    before = {name: effective_matrix(model.get_submodule(name)).detach() for name in bases}
    strategy.train(PERMUTED[1])
    assert list(bases) == ["1", "3", "6"]
    for name, basis in bases.items():
        change = effective_matrix(model.get_submodule(name)).detach() - before[name]
        assert change.abs().max() > 1e-4
        assert (change @ basis).abs().max() < 1e-6


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def doubled(layer: nn.Module, tensor: str = "weight") -> nn.Module:
    return parametrize.register_parametrization(layer, tensor, Doubled())


class WithScale(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.scale = nn.Parameter(torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * super().forward(x)


def computed(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 20), nn.Tanh(), layer)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (
            lambda: parametrizations.spectral_norm(nn.Linear(20, 10)),
            r"'2': its weight is not a parameter, but computed from "
            r"\['parametrizations.weight.original'\]",
        ),
        (
            lambda: nn.utils.spectral_norm(nn.Linear(20, 10)),
            r"computed from \['weight_orig'\]",
        ),
        (lambda: doubled(nn.Linear(20, 10)), "its weight is not a parameter"),
        (lambda: doubled(nn.Linear(20, 10), "bias"), "its bias is not a parameter"),
        (
            lambda: doubled(parametrizations.weight_norm(nn.Linear(20, 10))),
            r"computed from \['parametrizations.weight.original0', ",
        ),
        (
            lambda: prune.l1_unstructured(nn.Linear(20, 10), "weight", amount=0.5),
            r"computed from \['weight_orig'\]",
        ),
        (lambda: WithScale(20, 10), r"beside weight and bias it trains \['scale'\]"),
    ],
)
def test_weights_that_cannot_be_projected_are_refused_before_training(
    layer: Callable[[], nn.Module], reason: str
) -> None:
    model = computed(layer())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ModelError, match=reason) as raised:
        naive(model, GPMPlugin()).train(PERMUTED[0])
    assert "with layers=['0']." in str(raised.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "GPM")  # what is left out on purpose is not warned of
        strategy = trained(lambda: computed(layer()), GPMPlugin(layers=["0"]), PERMUTED[:2])
    strategy.model[2].requires_grad_(False)
    naive(strategy.model, GPMPlugin()).train(PERMUTED[0])  # what is frozen needs no protection


def test_a_normed_weight_of_zero_stays_a_number() -> None:
    layer = parametrizations.weight_norm(nn.Linear(3, 2))
    original = layer.parametrizations.weight
    with torch.no_grad():
        original.original0.copy_(torch.tensor([[0.0], [-2.0]]))
        direction, matrix = original.original1.clone(), effective_matrix(layer)
        set_effective_matrix(layer, matrix)
        assert torch.equal(original.original1, direction), "nothing to change"
        matrix[0, 1] *= 2
        set_effective_matrix(layer, matrix)
    torch.testing.assert_close(original.original0.flatten(), torch.tensor([0.0, -4.0]))
    torch.testing.assert_close(original.original1, direction)
    torch.testing.assert_close(effective_matrix(layer), matrix)


def test_a_half_frozen_weight_norm_is_refused() -> None:
    strategy = trained(lambda: normed(parametrizations.weight_norm), GPMPlugin(), PERMUTED[:1])
    strategy.model[6].parametrizations.weight.original0.requires_grad_(False)
    with pytest.raises(ModelError, match=r"\['parametrizations.weight.original0'\] are frozen"):
        strategy.train(PERMUTED[1])


def test_projecting_gradients_alone_would_leak() -> None:
    """Why the update is projected too: without it, momentum and decay undo the projection."""

    class GradientsOnly(GPMPlugin):
        def after_update(self, strategy: Any, **kwargs: Any) -> None:
            pass

    for optimizer, leaks in (("sgd", False), ("momentum and weight decay", True), ("adam", True)):
        model, gpm = bias_free(), GradientsOnly(0.9)
        strategy = naive(model, gpm, optimizer=OPTIMIZERS[optimizer](model.parameters()))
        strategy.train(PERMUTED[0])
        basis, before = gpm.bases["0"], model[0].weight.detach().clone()
        strategy.train(PERMUTED[1])
        leaked = ((model[0].weight.detach() - before) @ basis[0]).abs().max().item()
        assert (leaked > 1e-3) == leaks


def test_the_first_experience_is_trained_as_without_gpm() -> None:
    plain = trained(mlp, None, PERMUTED[:1])
    assert same_weights(trained(mlp, GPMPlugin(), PERMUTED[:1]), plain)


class Watch(SupervisedPlugin):
    """Look at everything just before and just after the bases are extended."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        self.seen.append(
            (
                [module.training for module in strategy.model.modules()],
                copy.deepcopy(strategy.model.state_dict()),
                copy.deepcopy(strategy.optimizer.state_dict()["state"]),
                [strategy.mbatch, strategy.mb_output, strategy.loss, strategy.dataloader],
                torch.get_rng_state(),
                random.getstate(),
                np.random.get_state()[1].tolist(),
                [None if p.grad is None else p.grad.clone() for p in strategy.model.parameters()],
                sum(len(m._forward_pre_hooks) for m in strategy.model.modules()),
            )
        )


def test_collecting_leaves_everything_as_it_was() -> None:
    class FreezesStatistics(SupervisedPlugin):
        def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
            strategy.model[1].eval()

    model = nn.Sequential(nn.Linear(64, 20), nn.BatchNorm1d(20), nn.Dropout(0.5), nn.Linear(20, 10))
    before, after = Watch(), Watch()
    strategy = naive(model, FreezesStatistics(), before, GPMPlugin(), after)
    with pytest.warns(UserWarning, match=r"does not protect \['1.weight', '1.bias'\]"):
        strategy.train(PERMUTED[0])
    (modes, weights, optimizer, objects, *rest), other = before.seen[0], after.seen[0]
    assert modes == other[0] == [True, True, False, True, True]
    assert all(torch.equal(weights[name], other[1][name]) for name in weights)
    for key, state in optimizer.items():
        assert torch.equal(state["momentum_buffer"], other[2][key]["momentum_buffer"])
    assert all(a is b for a, b in zip(objects, other[3], strict=True))
    assert torch.equal(rest[0], other[4])
    assert rest[1:3] == list(other[5:7])
    assert all(torch.equal(a, b) for a, b in zip(rest[3], other[7], strict=True))
    assert rest[4] == other[8] == 0


def test_a_model_without_unprotected_parameters_gives_no_warning() -> None:
    for make_model, experiences in ((mlp, PERMUTED), (MultiHeadMLP, SPLIT)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trained(make_model, GPMPlugin(), experiences[:2])
        assert not [w for w in caught if "does not protect" in str(w.message)]


def test_memory_grows_with_the_bases() -> None:
    gpm = GPMPlugin(0.9)
    strategy = naive(bias_free(), gpm)
    assert gpm.memory_bytes == 0
    sizes = []
    for experience in PERMUTED:
        strategy.train(experience)
        sizes.append(gpm.memory_bytes)
    assert sizes == sorted(sizes)
    assert 0 < sizes[0] < sizes[-1]
    assert sizes[-1] == 4 * (64 * gpm.bases["0"].shape[2] + 20 * gpm.bases["2"].shape[2])


def ranks(gpm: GPMPlugin) -> dict[str, int]:
    return {name: basis.shape[2] for name, basis in gpm.bases.items()}


def test_thresholds_per_layer_and_their_growth() -> None:
    one, per_layer = GPMPlugin(0.9), GPMPlugin((0.5, 0.9))
    for gpm in (one, per_layer):
        trained(bias_free, gpm, PERMUTED[:1])
    assert ranks(per_layer)["0"] < ranks(one)["0"]
    assert ranks(per_layer)["2"] == ranks(one)["2"]
    constant = GPMPlugin(0.5)
    trained(bias_free, constant, PERMUTED)
    trained(bias_free, grown := GPMPlugin(0.5, threshold_growth=0.3), PERMUTED)
    assert ranks(grown)["0"] > ranks(constant)["0"]
    trained(bias_free, beyond := GPMPlugin(0.9, threshold_growth=0.3), PERMUTED[:2])
    assert ranks(beyond)["2"] <= 20, "a threshold beyond 1 counts as 1"


def test_layers_and_head_can_be_left_out() -> None:
    trained(mlp, everything := GPMPlugin(), PERMUTED[:1])
    trained(mlp, no_head := GPMPlugin(project_head=False), PERMUTED[:1])
    trained(mlp, chosen := GPMPlugin(layers=["3*"]), PERMUTED[:1])
    assert list(everything.bases) == ["0", "3"]
    assert list(no_head.bases) == ["0"]
    assert list(chosen.bases) == ["3"]


def test_each_tasks_own_head_is_the_head() -> None:
    trained(MultiHeadMLP, gpm := GPMPlugin(project_head=False), SPLIT)
    assert list(gpm.bases) == ["features.0"]


@pytest.mark.parametrize("project_head", [True, False])
def test_a_head_that_grows(project_head: bool) -> None:
    gpm = GPMPlugin(0.9, project_head=project_head)
    strategy = trained(GrowingMLP, gpm, SPLIT)
    assert strategy.model.classifier.classifier.out_features == 6
    assert ("classifier.classifier" in gpm.bases) == project_head


def test_a_layer_called_twice_remembers_both_inputs() -> None:
    gpm = GPMPlugin(1.0, samples=10)
    strategy = trained(CalledTwice, gpm, PERMUTED[:1])
    assert gpm.bases["same"].shape[2] == 20, "ten samples, two inputs each"
    assert strategy.model.head.weight.shape == (10, 64)


def test_tied_weights_are_refused_with_what_to_do() -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 10))
        model[2].weight = model[0].weight
        return model

    strategy = naive(model := tied(), GPMPlugin())
    before = model[3].weight.detach().clone()
    with pytest.raises(ModelError, match="call the same module twice"):
        strategy.train(PERMUTED[0])
    assert torch.equal(model[3].weight, before), "refused before anything is trained"
    trained(tied, gpm := GPMPlugin(layers=["3"]), PERMUTED[:1])
    assert list(gpm.bases) == ["3"]


def test_a_layer_used_without_being_called_is_warned_of() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(64, 20), nn.Linear(20, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(functional.linear(x, self.first.weight, self.first.bias).relu())

    with pytest.warns(UserWarning, match=r"does not protect \['first.weight', 'first.bias'\]"):
        trained(Functional, GPMPlugin(), PERMUTED[:1])


def test_frozen_layers_stay_frozen_and_half_frozen_ones_are_refused() -> None:
    def frozen() -> nn.Module:
        model = mlp()
        model[0].requires_grad_(False)
        return model

    torch.manual_seed(1)
    start = frozen()[0].weight.clone()
    strategy = trained(frozen, GPMPlugin(), PERMUTED[:2])
    assert torch.equal(strategy.model[0].weight, start)
    strategy.model[3].bias.requires_grad_(False)
    with pytest.raises(ModelError, match="freeze all or none"):
        strategy.train(PERMUTED[2])


def test_a_layer_that_vanishes_or_widens_is_named() -> None:
    strategy = trained(mlp, GPMPlugin(), PERMUTED[:1])
    strategy.model[3] = nn.Linear(20, 10, bias=False)
    with pytest.raises(ModelError, match="'3' now has 20 inputs, but its basis has 21"):
        strategy.train(PERMUTED[1])
    strategy = trained(mlp, GPMPlugin(), PERMUTED[:1])
    strategy.model[3] = nn.Sequential(nn.Linear(20, 10))
    with pytest.raises(ModelError, match="'3' has a basis but is no longer in the model"):
        strategy.train(PERMUTED[1])


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": 0.0},
        {"threshold": 1.1},
        {"threshold": ()},
        {"threshold": (0.9, -1)},
        {"threshold_growth": -0.1},
        {"samples": 0},
    ],
)
def test_settings_out_of_range(settings: dict) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        GPMPlugin(**settings)


def test_layers_that_match_nothing() -> None:
    with pytest.raises(ModelError, match="no Linear or convolution layer"):
        trained(mlp, GPMPlugin(layers=["typo"]), PERMUTED[:1])


def test_the_strategy_is_naive_with_the_plugin() -> None:
    by_plugin = trained(mlp, GPMPlugin(0.9), PERMUTED)
    torch.manual_seed(1)
    model = mlp()
    strategy = GPM(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        threshold=0.9,
        train_mb_size=64,
        evaluator=None,
    )
    strategy.train(PERMUTED)
    assert same_weights(strategy, by_plugin)


def test_the_plugin_can_be_pickled_between_experiences() -> None:
    trained(mlp, gpm := GPMPlugin(), PERMUTED[:1])
    copied = pickle.loads(pickle.dumps(gpm))
    assert all(torch.equal(copied.bases[name], basis) for name, basis in gpm.bases.items())
