"""SGP and OWM: the formulas against explicit matrices, and the plugins inside Avalanche."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor, nn

from avalanche_dco.baselines import GPMPlugin, OWMPlugin, SGPPlugin
from avalanche_dco.baselines.gradient_projection import (
    basis_importances,
    complement,
    extended_basis,
    project_out,
    shrunk_projector,
)
from avalanche_dco.baselines.owm import _means
from avalanche_dco.baselines.projection import ProjectionPlugin
from avalanche_dco.core.layers import as_matrix, groups_of, input_vectors
from avalanche_dco.errors import ModelError, SettingError
from avalanche_dco.metrics import error_metrics
from benchmarks.streams.digits import permuted_digits
from tests.core.test_layers import LAYERS
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

PLUGINS: dict[str, Callable[..., ProjectionPlugin]] = {
    "sgp": lambda **settings: SGPPlugin(0.95, **settings),
    "owm": lambda **settings: OWMPlugin(1.0, **settings),
}


def matrices(model: nn.Module, names: Any) -> dict[str, Tensor]:
    layers = {name: model.get_submodule(name) for name in names}
    return {
        name: as_matrix(layer.weight.detach(), layer.bias, groups=groups_of(layer)).clone()
        for name, layer in layers.items()
    }


def moment(vectors: Tensor) -> Tensor:
    return vectors.mT @ vectors


class TestFormulas:
    def test_importances_of_a_first_basis_come_from_its_singular_values(self) -> None:
        data = torch.randn(1, 30, 6, dtype=torch.float64) * 0.5 ** torch.arange(6)
        basis = extended_basis(torch.zeros(1, 6, 0, dtype=torch.float64), data, 0.999)
        sigma = torch.linalg.svdvals(data[0])[: basis.shape[2]]
        for alpha in (0.0, 1.0, 10.0):
            expected = (alpha + 1) * sigma / (alpha * sigma + sigma.max())
            torch.testing.assert_close(basis_importances(basis, data, alpha)[0, 0], expected)

    def test_importances_of_old_vectors_are_the_papers_surrogates(self) -> None:
        """sqrt(sum_j (m_i . u_j)^2 s_j^2) over the singular vectors of the projected inputs."""
        old = torch.linalg.qr(torch.randn(1, 8, 3, dtype=torch.float64)).Q
        data = torch.randn(1, 20, 8, dtype=torch.float64)
        basis = extended_basis(old, data, 0.9)
        U, s, _ = torch.linalg.svd(old[0] @ old[0].mT @ data[0].mT, full_matrices=False)
        surrogates = ((old[0].mT @ U).square() @ s.square()).sqrt()
        rest = data[0] - data[0] @ old[0] @ old[0].mT
        new = torch.linalg.svdvals(rest)[: basis.shape[2] - 3]
        sigma = torch.cat([surrogates, new])
        expected = 4 * sigma / (3 * sigma + sigma.max())
        torch.testing.assert_close(basis_importances(basis, data, 3.0)[0, 0], expected)

    def test_scaled_columns_leave_one_minus_the_importance(self) -> None:
        basis = torch.linalg.qr(torch.randn(2, 6, 3, dtype=torch.float64)).Q
        importances = torch.rand(2, 1, 3, dtype=torch.float64)
        matrix = torch.randn(2, 4, 6, dtype=torch.float64)
        diagonal = torch.diag_embed(importances[:, 0])
        expected = matrix - matrix @ basis @ diagonal @ basis.mT
        torch.testing.assert_close(project_out(matrix, basis * importances.sqrt()), expected)
        torch.testing.assert_close(matrix @ complement(basis * importances.sqrt()), expected)

    def test_no_input_at_all_has_no_importance(self) -> None:
        basis = torch.eye(4, dtype=torch.float64)[None, :, :2]
        assert basis_importances(basis, torch.zeros(1, 5, 4), 1.0).tolist() == [[[0.0, 0.0]]]
        assert basis_importances(basis[:, :, :0], torch.zeros(1, 5, 4), 1.0).shape == (1, 1, 0)

    @pytest.mark.parametrize("inputs", [3, 20])
    def test_the_projector_is_that_of_the_recursion(self, inputs: int) -> None:
        X = torch.randn(2, inputs, 6, dtype=torch.float64)
        alphas = 0.1 + torch.rand(inputs, dtype=torch.float64)
        start = torch.randn(2, 6, 6, dtype=torch.float64)
        start = start @ start.mT
        expected = start.clone()
        for group in range(2):
            P = expected[group]
            for x, alpha in zip(X[group], alphas, strict=True):
                k = P @ x / (alpha + x @ P @ x)
                P -= torch.outer(k, x @ P)
        found = shrunk_projector(start, moment(X / alphas.sqrt()[:, None]))
        torch.testing.assert_close(found, expected)

    def test_the_projector_is_that_of_the_recursion_after_several_experiences(self) -> None:
        found = expected = torch.eye(6, dtype=torch.float64).repeat(2, 1, 1)
        for inputs in (4, 1, 15):
            X = torch.randn(2, inputs, 6, dtype=torch.float64)
            found = shrunk_projector(found, moment(X))
            for x in X.unsqueeze(3).unbind(1):
                k = expected @ x / (1 + x.mT @ expected @ x)
                expected = expected - k @ (x.mT @ expected)
        torch.testing.assert_close(found, expected)

    def test_a_tiny_projector_stays_positive_and_symmetric(self) -> None:
        """Also in the single precision it is kept in, where its least eigenvalues are rounding."""
        directions = torch.linalg.qr(torch.randn(20, 6, dtype=torch.float64)).Q.mT
        scales = torch.logspace(2, 4, 6, dtype=torch.float64)
        P = torch.eye(20)[None]
        for _ in range(3):
            X = torch.randn(1, 30, 6, dtype=torch.float64) * scales @ directions
            exact = shrunk_projector(P, moment(X))
            torch.testing.assert_close(exact, exact.mT, rtol=0, atol=1e-15)
            assert torch.linalg.eigvalsh(exact).min() > -1e-15
            P = exact.float()
        assert torch.linalg.eigvalsh(exact).sum() == pytest.approx(14, abs=1e-3)

    def test_the_projector_has_a_closed_form(self) -> None:
        X = torch.randn(1, 15, 5, dtype=torch.float64)
        identity = torch.eye(5, dtype=torch.float64)
        expected = torch.linalg.inv(identity + X[0].mT @ X[0])
        torch.testing.assert_close(shrunk_projector(identity[None], moment(X))[0], expected)


@pytest.mark.parametrize("method", PLUGINS)
@pytest.mark.parametrize("make_model", [mlp, convolutional])
def test_steps_of_plain_sgd_are_confined_gradient_steps(
    method: str, make_model: Callable[[], nn.Module]
) -> None:
    """As published, where the optimizer has no memory: the gradient is confined."""
    torch.manual_seed(1)
    model, plugin = make_model(), PLUGINS[method]()
    strategy = naive(model, plugin, optimizer=torch.optim.SGD(model.parameters(), lr=0.05))
    strategy.train(PERMUTED[0])
    kept = copy.deepcopy(plugin._by_layer)
    before, steps = matrices(model, kept), []

    def remember(*_: Any) -> None:
        gradients = {
            name: as_matrix(layer.weight.grad, None if layer.bias is None else layer.bias.grad,
                            groups=groups_of(layer)).clone()
            for name, layer in ((name, model.get_submodule(name)) for name in kept)
        }  # fmt: skip
        steps.append(gradients)

    strategy.optimizer.register_step_pre_hook(remember)
    strategy.train(PERMUTED[1])
    assert len(steps) > 3
    after = matrices(model, kept)
    for name, M in kept.items():
        total = -0.05 * sum(gradients[name] for gradients in steps)
        allowed = total @ M if method == "owm" else total - total @ M @ M.mT
        torch.testing.assert_close(after[name] - before[name], allowed, rtol=1e-3, atol=1e-5)
        assert (total - allowed).abs().max() > 1e-3, "something is held back"


def test_owm_is_made_of_the_means_of_batches() -> None:
    torch.manual_seed(1)
    model, plugin = mlp(), OWMPlugin(2.0, alpha_decay=0.25, passes=1, mean_of=10**6)
    naive(model, plugin).train(PERMUTED[0])
    x = torch.stack([PERMUTED[0].dataset[i][0] for i in range(len(PERMUTED[0].dataset))]).double()
    mean = input_vectors(model[0].double(), x, bias=True).mean(1)  # all samples are one batch
    expected = torch.eye(65, dtype=torch.float64) - mean.mT @ mean / (0.5 + mean @ mean.mT)
    torch.testing.assert_close(plugin.projectors["0"][0].double(), expected, rtol=1e-4, atol=1e-6)


def test_positions_have_means_of_their_own_and_other_inputs_have_one() -> None:
    layer = nn.Linear(2, 1, bias=False)
    for shape in ((2, 3, 2), (6, 2)):  # two samples with three positions each
        inputs = torch.arange(12.0).reshape(shape)
        assert _means(layer, inputs, 2).tolist() == [[[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]]
        assert _means(layer, inputs, 4).tolist() == [[[5.0, 6.0]]]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5])
def test_means_before_unfolding_are_those_of_the_vectors(kind: str, samples: int) -> None:
    layer, shape = LAYERS[kind]
    inputs = torch.randn(shape, dtype=torch.float64)
    vectors = input_vectors(layer, inputs, bias=layer.bias is not None)
    groups, n, width = vectors.shape
    positions = 1 if n % samples else n // samples
    expected = vectors.reshape(groups, -1, positions, width).mean(1)
    torch.testing.assert_close(_means(layer, inputs, samples), expected)


def test_alpha_decays_over_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[float] = []
    batches = 2 * -(-len(PERMUTED[0].dataset) // 64)
    directions = iter(torch.eye(65, dtype=torch.float64))  # one batch along each, as many as needed

    def listen(projector: Tensor, moment: Tensor) -> Tensor:
        scales.extend(moment[0].diagonal()[:batches].reciprocal().tolist())
        assert not moment[0].diagonal()[batches:].any()
        return projector

    monkeypatch.setattr(
        "avalanche_dco.baselines.owm._means", lambda *_: next(directions)[None, None]
    )
    monkeypatch.setattr("avalanche_dco.baselines.owm.shrunk_projector", listen)
    trained(mlp, OWMPlugin(8.0, alpha_decay=0.25, layers=["0"]), PERMUTED[:1], train_epochs=2)
    assert scales == sorted(scales, reverse=True)
    assert scales[0] == pytest.approx(8.0 * 0.25 ** (1 / batches))
    assert scales[-1] == pytest.approx(2.0)


def test_importances_add_up_to_one_at_most() -> None:
    plugin = SGPPlugin(0.9, alpha=1.0)
    strategy = naive(mlp(), plugin)
    strategy.train(PERMUTED[0])
    first = plugin.bases["0"].square().sum(1)[0]
    assert first.max() == pytest.approx(1.0)
    assert 0 < first.min() < 0.9
    strategy.train(PERMUTED[1])
    second = plugin.bases["0"].square().sum(1)[0]
    assert (second[: len(first)] >= first - 1e-6).all()
    assert second.max() <= 1 + 1e-6
    gram = plugin.bases["0"][0].mT @ plugin.bases["0"][0]
    assert (gram - gram.diagonal().diag()).abs().max() < 1e-5, "orthogonal"


def test_sgp_with_a_large_alpha_is_gpm() -> None:
    sgp = trained(mlp, SGPPlugin(0.9, alpha=1e9), PERMUTED[:2]).model
    gpm = trained(mlp, GPMPlugin(0.9), PERMUTED[:2]).model
    for one, other in zip(sgp.parameters(), gpm.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("plugin", [GPMPlugin(1.0), SGPPlugin(1.0), GPMPlugin(0.5)])
def test_wide_and_narrow_bases_confine_alike(plugin: GPMPlugin) -> None:
    strategy = trained(mlp, plugin, PERMUTED[:1])
    plugin.before_training_exp(strategy)
    wide = {name for name, basis in plugin.bases.items() if basis.shape[2] > basis.shape[1] / 2}
    assert wide == plugin._complements.keys()
    assert wide == (set(plugin.bases) if plugin.threshold == 1 else set())
    for name, basis in plugin.bases.items():
        change = torch.randn(1, 5, basis.shape[1])
        torch.testing.assert_close(plugin._allowed(name, change), project_out(change, basis))


@pytest.mark.parametrize("method", PLUGINS)
def test_the_first_experience_is_trained_as_without_it(method: str) -> None:
    plain = trained(mlp, None, PERMUTED[:1])
    assert same_weights(trained(mlp, PLUGINS[method](), PERMUTED[:1]), plain)


@pytest.mark.parametrize("method", PLUGINS)
def test_it_forgets_less_than_naive(method: str) -> None:
    stream = permuted_digits(3)

    def run(*plugins: ProjectionPlugin) -> tuple[float, float]:
        torch.manual_seed(1)
        evaluator = EvaluationPlugin(error_metrics(), loggers=[])
        strategy = naive(mlp(width=50), *plugins, train_epochs=5, evaluator=evaluator)
        for experience in stream.train_stream:
            strategy.train(experience)
            last = strategy.eval(stream.test_stream)
        return (
            last["AverageError/eval_phase/test_stream"],
            last["BWTError/eval_phase/test_stream"],
        )

    (error, forgotten), (naive_error, naive_forgotten) = run(PLUGINS[method]()), run()
    assert forgotten < naive_forgotten / 2
    assert error < naive_error


@pytest.mark.parametrize("method", PLUGINS)
@pytest.mark.parametrize("project_head", [True, False])
def test_heads_that_grow_or_belong_to_tasks(method: str, project_head: bool) -> None:
    plugin = PLUGINS[method](project_head=project_head)
    strategy = trained(GrowingMLP, plugin, SPLIT)
    assert strategy.model.classifier.classifier.out_features == 6
    assert ("classifier.classifier" in plugin._by_layer) == project_head
    trained(MultiHeadMLP, plugin := PLUGINS[method](project_head=project_head), SPLIT)
    heads = [name for name in plugin._by_layer if name.startswith("classifier")]
    assert len(heads) == (3 if project_head else 0)


def test_a_layer_called_twice_has_a_mean_for_each_call() -> None:
    plugin = OWMPlugin(1e-9, alpha_decay=1.0, passes=1, mean_of=10**6)
    trained(CalledTwice, plugin, PERMUTED[:1])
    shrunk = 65 - torch.linalg.eigvalsh(plugin.projectors["same"][0]).sum()
    assert shrunk == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("method", PLUGINS)
def test_what_is_kept_is_counted(method: str) -> None:
    plugin = PLUGINS[method](layers=["0"])
    assert plugin.memory_bytes == 0
    trained(mlp, plugin, PERMUTED[:2])
    (kept,) = plugin._by_layer.values()
    assert plugin.memory_bytes == 4 * kept.numel() > 0
    if method == "owm":
        assert kept.shape == (1, 65, 65)


@pytest.mark.parametrize("method", PLUGINS)
def test_a_layer_that_changed_is_named(method: str) -> None:
    strategy = trained(mlp, PLUGINS[method](), PERMUTED[:1])
    strategy.model[3] = nn.Linear(20, 10, bias=False)
    with pytest.raises(ModelError, match="'3' now has 20 inputs, but its basis has 21"):
        strategy.train(PERMUTED[1])


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        (SGPPlugin, {"alpha": -1.0}),
        (SGPPlugin, {"threshold": 2.0}),
        (OWMPlugin, {"alpha": 0.0}),
        (OWMPlugin, {"alpha_decay": 0.0}),
        (OWMPlugin, {"alpha_decay": 1.5}),
        (OWMPlugin, {"passes": 0}),
        (OWMPlugin, {"mean_of": 0}),
    ],
)
def test_settings_out_of_range(plugin: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        plugin(**settings)
