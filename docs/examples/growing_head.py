"""A head that grows: every task brings two new classes and gets outputs of its own."""

import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.models import MultiHeadClassifier, MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from sklearn.datasets import load_digits

from avalanche_dco import DCOKronPlugin
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import error_metrics

# Digits 0 and 1, then 2 and 3, ... The task's label is known, also when it is tested.
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
train, test = torch.arange(len(y)) < 1400, torch.arange(len(y)) >= 1400
benchmark = tensors_benchmark(
    train_tensors=[(x[train & (y // 2 == t)], y[train & (y // 2 == t)] % 2) for t in range(5)],
    test_tensors=[(x[test & (y // 2 == t)], y[test & (y // 2 == t)] % 2) for t in range(5)],
    task_labels=[0, 1, 2, 3, 4],
)


class Network(MultiTaskModule):
    """Layers that all tasks share, and one head per task."""

    def __init__(self):
        super().__init__()
        self.shared = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU())
        self.heads = MultiHeadClassifier(100, initial_out_features=2)

    def forward(self, x, task_labels):
        """Outputs of the head of each sample's task."""
        return self.heads(self.shared(x), task_labels)


for plugins in ([], [DCOKronPlugin()]):
    torch.manual_seed(1)
    model = Network()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=32,
        train_epochs=10,
        plugins=plugins,
        evaluator=EvaluationPlugin(error_metrics(), loggers=[PandasLogger()]),
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
        results = strategy.eval(benchmark.test_stream)
    error, forgotten = (
        results[f"{name}Error/eval_phase/test_stream"] for name in ("Average", "BWT")
    )
    print(f"{'DCO-KRON' if plugins else 'Naive'}: error {error:.2f}, forgotten {forgotten:.2f}")
