"""The estimate of the outputs' curvature against per-sample autograd."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from avalanche_dco.core.curvature import CurvatureEstimator
from avalanche_dco.core.damping import DampedUpdate
from avalanche_dco.core.kronecker import Curvature, KroneckerFactors
from avalanche_dco.core.layers import as_matrix
from tests.support.problems import seeds


def estimate(model: nn.Module, inputs: torch.Tensor, batch: int = 4, seed: int = 0) -> Curvature:
    torch.manual_seed(seed)
    estimator = CurvatureEstimator(model, dict(model.named_parameters()))
    for part in inputs.split(batch):
        estimator.observe(lambda part=part: model(part), len(part))
    return estimator.finish()


def quadratic(factors: KroneckerFactors, change: torch.Tensor) -> torch.Tensor:
    """tr(S dW A dW^T), the squared change of the outputs by these factors."""
    return ((factors.S @ change @ factors.A) * change).sum()


def per_sample(model: nn.Module, inputs: torch.Tensor, batch: int = 4, seed: int = 0):
    """Gradients of sum_c e_c output_c for every sample, with the e of :func:`estimate`."""
    torch.manual_seed(seed)
    gradients = []
    parameters = list(model.parameters())
    for part in inputs.split(batch):
        first = not gradients
        e = torch.randn_like(model(part))
        if first:  # every layer draws one direction to see whether its calls explain it
            for layer in model.modules():
                if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                    size = layer.weight[0].numel() + (layer.bias is not None)
                    torch.randn(size, 1, dtype=torch.float64)
        for sample, weights in zip(part, e, strict=True):
            value = (model(sample[None])[0] * weights).sum()
            gradients.append(torch.autograd.grad(value, parameters))
    return gradients


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_factor_exactly(bias):
    """One position: a sample's gradient is delta a^T, so both factors follow from it."""
    model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Tanh(), nn.Linear(4, 2, bias=bias))
    model = model.double()
    inputs = torch.randn(12, 3, dtype=torch.float64)
    found = estimate(model, inputs).layers["0.weight"]
    vectors = functional.pad(inputs, (0, 1), value=1.0) if bias else inputs
    torch.testing.assert_close(found.A[0], vectors.T @ vectors / 12)
    S, trace = torch.zeros(4, 4, dtype=torch.float64), 0.0
    for gradient, a in zip(per_sample(model, inputs), vectors, strict=True):
        matrix = gradient[0] if not bias else torch.cat([gradient[0], gradient[1][:, None]], 1)
        delta = matrix @ a / (a @ a)
        S += torch.outer(delta, delta) / 12
        trace += matrix.square().sum() / 12
    torch.testing.assert_close(found.S[0], S * trace / (S.trace() * found.A[0].trace()))
    assert found.bias is bias


_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@st.composite
def layers(draw):
    """A layer of any kind, and the shape of its inputs."""
    bias = draw(st.booleans())
    dims = draw(st.integers(0, 3))
    if dims == 0:
        size = draw(st.integers(1, 4))
        positions = draw(st.sampled_from([(), (3,)]))
        return nn.Linear(size, draw(st.integers(1, 4)), bias=bias), (*positions, size)
    groups = draw(st.integers(1, 2))
    layer = _CONVOLUTIONS[dims](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
        stride=draw(st.integers(1, 2)),
        padding=draw(st.integers(0, 1)),
        dilation=draw(st.integers(1, 2)),
        groups=groups,
        bias=bias,
    )
    return layer, (layer.in_channels, *(draw(st.integers(3, 4)) for _ in range(dims)))


@given(layers(), seeds, st.sampled_from([0.0, 0.3, 10.0]))
def test_any_layer_against_per_sample_autograd_and_its_step_against_the_explicit_matrix(
    kind, seed, strength
):
    """Layers that several positions share have the sums over batches of G^T G and G G^T."""
    layer, shape = kind
    torch.manual_seed(seed)
    inputs = torch.randn(8, *shape, dtype=torch.float64)
    model = nn.Sequential(layer.double(), nn.Tanh())
    curvature = estimate(model, inputs)
    found = curvature.layers["0.weight"]
    bias, groups = layer.bias is not None, len(found.A)
    positions = _patches(layer, inputs[0]).shape[1]
    samples = [as_matrix(*one, groups=groups) for one in per_sample(model, inputs)]
    A, S, trace = 0.0, 0.0, 0.0
    if positions > 1:
        for G in torch.stack(samples).reshape(2, 4, *samples[0].shape).sum(1):  # batches of 4
            A, S = A + G.mT @ G, S + G @ G.mT
            trace = trace + G.square().sum((1, 2), keepdim=True)
    else:
        for G, x in zip(samples, inputs, strict=True):
            a = _patches(layer, x)
            a = functional.pad(a, (0, 1), value=1.0) if bias else a
            delta = G @ a.mT / a.square().sum((1, 2), keepdim=True)
            A, S = A + a.mT @ a, S + delta @ delta.mT
            trace = trace + G.square().sum((1, 2), keepdim=True)
    torch.testing.assert_close(found.A, A / 8)
    product = torch.kron(found.S[0], found.A[0]).trace()
    torch.testing.assert_close(product, trace[0, 0, 0] / 8)
    for mine, expected in zip(found.S, S, strict=True):
        torch.testing.assert_close(mine / mine.trace(), expected / expected.trace())

    parameters = dict(model.named_parameters())
    step = DampedUpdate(curvature, parameters, strength)
    updates = [torch.randn_like(p) for p in parameters.values()]
    before = [p.detach().clone() for p in parameters.values()]
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    step.before_update()
    with torch.no_grad():
        for parameter, update in zip(parameters.values(), updates, strict=True):
            parameter.add_(update)
    step.after_update()
    moved = [p.detach() - b for p, b in zip(parameters.values(), before, strict=True)]
    for group, update in enumerate(as_matrix(*updates, groups=groups)):
        explicit = torch.kron(found.S[group], found.A[group]).mul(strength)
        explicit.diagonal().add_(1)
        expected = torch.linalg.solve(explicit, update.flatten()).view_as(update)
        torch.testing.assert_close(as_matrix(*moved, groups=groups)[group], expected)


def _patches(layer: nn.Module, image: torch.Tensor) -> torch.Tensor:
    """Patches (g, positions, d) by convolutions with one-hot kernels."""
    if isinstance(layer, nn.Linear):
        return image.reshape(1, -1, layer.in_features)
    channels, kernel = layer.in_channels // layer.groups, layer.kernel_size
    size = channels * int(torch.tensor(kernel).prod())
    one_hot = torch.eye(size, dtype=image.dtype).view(size, channels, *kernel)
    convolve = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[len(kernel)]
    groups = [
        convolve(part[None], one_hot, None, layer.stride, layer.padding, layer.dilation)[0]
        for part in image.split(channels)
    ]
    return torch.stack([group.flatten(1).T for group in groups])


class OneOfEach(nn.Module):
    """A layer, a normalisation, an embedding-like table, a recurrent layer, a tied weight."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.first = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.batch_norm = nn.BatchNorm1d(4)
        self.recurrent = nn.GRU(4, 3, batch_first=True)
        self.memory = nn.LSTM(3, 4, proj_size=3, batch_first=True)
        self.attention = nn.MultiheadAttention(3, 3, batch_first=True)
        self.tied = nn.Linear(3, 3)
        self.tied_too = nn.Linear(3, 3)
        self.tied_too.weight = self.tied.weight
        self.functional = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = x + self.table((x[:, 0] > 0).long())
        x = self.batch_norm(self.norm(self.first(x))).unsqueeze(1).repeat(1, 2, 1)
        x = self.memory(self.recurrent(x)[0])[0]
        x = self.attention(x, x, x)[0][:, 1]
        x = self.tied_too(torch.tanh(self.tied(x)))
        return self.scale * functional.linear(x, self.functional.weight, self.functional.bias)


def test_nothing_trainable_is_left_out():
    model = OneOfEach().double().eval()
    found = estimate(model, torch.randn(8, 3, dtype=torch.float64))
    assert found.layers.keys() == {"first.weight"}
    names = {name for name, _ in model.named_parameters()} - {"first.weight", "first.bias"}
    assert found.diagonal.keys() == names
    assert all((part > 0).any() for part in found.diagonal.values())


_OTHERS = {
    "transposed convolution": lambda: nn.ConvTranspose1d(3, 2, 2, stride=2),
    "group norm": lambda: nn.GroupNorm(1, 3),
    "instance norm": lambda: nn.InstanceNorm1d(3, affine=True),
    "one slope": nn.PReLU,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 2, 2)),
    "a class of its own": lambda: type("Own", (nn.Conv1d,), {"forward": _twice})(3, 2, 1),
}


def _twice(layer, x):
    """What a layer does that only looks like one."""
    return functional.conv1d(
        functional.conv1d(x, layer.weight).repeat(1, 2, 1)[:, :3], layer.weight
    )


@pytest.mark.parametrize("kind", _OTHERS)
def test_modules_that_have_no_matrix_have_the_diagonal(kind):
    torch.manual_seed(0)
    model = nn.Sequential(_OTHERS[kind](), nn.Flatten(), nn.LazyLinear(2)).double()
    inputs = torch.randn(8, 3, 5, dtype=torch.float64)
    model(inputs)
    found = estimate(model, inputs)
    assert found.layers.keys() == {"2.weight"}
    used = {name for name, _ in model.named_parameters() if not name.startswith("2.")}
    if kind == "a class of its own":  # its bias is not used
        used.remove("0.bias")
    assert found.diagonal.keys() == used != set()


def test_diagonal_is_the_square_of_a_batch_and_on_average_that_of_the_samples():
    model = nn.Sequential(nn.LayerNorm(3), nn.Tanh()).double()
    inputs = torch.randn(6, 3, dtype=torch.float64)
    expected = torch.zeros(3, dtype=torch.float64)
    for sample in inputs:
        jacobian = torch.autograd.functional.jacobian(
            lambda weight, x=sample: torch.tanh(
                functional.layer_norm(x, (3,), weight, model[0].bias.detach())
            ),
            model[0].weight.detach(),
        )
        expected += jacobian.square().sum(0) / 6
    draws = [estimate(model, inputs, batch=3, seed=s).diagonal["0.weight"] for s in range(2000)]
    torch.testing.assert_close(torch.stack(draws).mean(0), expected, rtol=0.1, atol=0)


def test_recurrent_layers_have_a_backward_pass_in_eval_mode():
    """CuDNN has none."""
    seen = []

    class Watched(nn.GRU):
        def forward(self, x):
            seen.append(torch.backends.cudnn.enabled)
            return super().forward(x)[0]

    enabled = torch.backends.cudnn.enabled
    found = estimate(Watched(3, 2, batch_first=True).double().eval(), torch.randn(4, 2, 3).double())
    assert seen == [False]
    assert torch.backends.cudnn.enabled == enabled
    assert len(found.diagonal) == 4


def test_a_compiled_model_is_not_compiled_for_the_estimate():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    inputs = torch.randn(8, 3, dtype=torch.float64)
    expected = estimate(model, inputs)
    found = estimate(torch.compile(model, backend=backend), inputs)
    assert not compiled
    for name, factors in expected.layers.items():
        torch.testing.assert_close(found.layers[f"_orig_mod.{name}"].S, factors.S)


def test_a_weight_that_is_also_used_elsewhere_has_the_diagonal():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x) @ self.layer.weight

    found = estimate(Both().double(), torch.randn(8, 3, dtype=torch.float64))
    assert not found.layers
    assert found.diagonal.keys() == {"layer.weight", "layer.bias"}


def test_writing_into_outputs_does_no_harm():
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    inplace = nn.Sequential(plain[0], nn.ReLU(inplace=True), plain[2])
    inputs = torch.randn(8, 3, dtype=torch.float64)
    for name, factors in estimate(plain, inputs).layers.items():
        torch.testing.assert_close(estimate(inplace, inputs).layers[name].S, factors.S)


def test_unwanted_and_frozen_parameters():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    wanted = {"0.weight": model[0].weight}
    estimator = CurvatureEstimator(model, wanted)
    inputs = torch.randn(8, 3, dtype=torch.float64)
    estimator.observe(lambda: model(inputs), 8)
    found = estimator.finish()
    assert found.layers.keys() == {"0.weight"}
    assert not found.layers["0.weight"].bias
    assert found.layers["0.weight"].A.shape == (1, 3, 3)
    assert not found.diagonal


def test_outputs_that_are_masked_are_free():
    model = nn.Linear(3, 4).double()
    estimator = CurvatureEstimator(model, dict(model.named_parameters()))
    inputs = torch.randn(8, 3, dtype=torch.float64)
    mask = torch.tensor([False, False, True, True])
    estimator.observe(lambda: model(inputs).masked_fill(mask, -1e9), 8)
    S = estimator.finish().layers["weight"].S[0]
    assert S[2:].abs().max() == 0
    assert S[:2, :2].diagonal().min() > 0


def test_correlated_positions():
    """The same patch at every position: factors of single positions would be 16 times too small."""

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(2, 3, 1, bias=False)

        def forward(self, x):
            return self.conv(x).sum(2)

    torch.manual_seed(1)
    model = Sum().double()
    inputs = torch.randn(800, 2, 1, dtype=torch.float64).expand(-1, -1, 16).contiguous()
    found = estimate(model, inputs, batch=4).layers["conv.weight"]
    change = torch.randn(1, 3, 2, dtype=torch.float64)
    moved = torch.einsum("oi,nil->no", change[0], inputs).square().sum(1).mean()
    assert quadratic(found, change) == pytest.approx(moved.item(), rel=0.15)
    patches = inputs[:, :, 0]
    of_positions = KroneckerFactors(
        (patches.T @ patches / 800)[None], 16 * torch.eye(3, dtype=torch.float64)[None]
    )
    assert quadratic(of_positions, change) == pytest.approx(moved.item() / 16, rel=0.01)


def test_sequence_first_inputs_give_the_same_factors():
    model = nn.Linear(3, 2).double()
    inputs = torch.randn(4, 5, 3, dtype=torch.float64)

    def factors(transposed: bool):
        torch.manual_seed(0)
        estimator = CurvatureEstimator(model, dict(model.named_parameters()))

        def forward():
            if not transposed:
                return model(inputs)
            return model(inputs.transpose(0, 1)).transpose(0, 1).contiguous()

        estimator.observe(forward, 4)
        return estimator.finish().layers["weight"]

    torch.testing.assert_close(factors(True).A, factors(False).A)
    torch.testing.assert_close(factors(True).S, factors(False).S)
