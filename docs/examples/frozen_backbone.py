"""A pre-trained backbone that stays frozen, and a small head that learns one task after another."""

import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from sklearn.datasets import load_digits
from torch import nn

from avalanche_dco import DCOKronPlugin
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import error_metrics
from avalanche_dco.models import TaskMasked

# Digits 0 and 1, then 2 and 3, ... Each task has its own two of the ten outputs.
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
train, test = torch.arange(len(y)) < 1400, torch.arange(len(y)) >= 1400
benchmark = tensors_benchmark(
    train_tensors=[(x[train & (y // 2 == t)], y[train & (y // 2 == t)]) for t in range(5)],
    test_tensors=[(x[test & (y // 2 == t)], y[test & (y // 2 == t)]) for t in range(5)],
    task_labels=[0, 1, 2, 3, 4],
)

# A backbone trained elsewhere; here on digits turned by 90 degrees. Yours may be torchvision's.
torch.manual_seed(1)
backbone = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 128)
)
pretrained = nn.Sequential(backbone, nn.ReLU(), nn.Linear(128, 10))
adam = torch.optim.Adam(pretrained.parameters(), lr=1e-3)
for _ in range(100):
    adam.zero_grad()
    nn.functional.cross_entropy(pretrained(x[:1400].rot90(1, (2, 3))), y[:1400]).backward()
    adam.step()
backbone.requires_grad_(False)

for plugin in (None, DCOKronPlugin()):
    torch.manual_seed(1)
    head = nn.Sequential(nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    strategy = Naive(
        model=TaskMasked(nn.Sequential(backbone, head), num_classes=10),
        optimizer=torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=32,
        train_epochs=10,
        plugins=[plugin] if plugin else [],
        evaluator=EvaluationPlugin(error_metrics(), loggers=[PandasLogger()]),
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
        results = strategy.eval(benchmark.test_stream)
    memory = f", memory {plugin.memory_bytes / 1e6:.2f} MB" if plugin else ""
    name = "DCO-KRON" if plugin else "Naive"
    print(f"{name}: average error {results['AverageError/eval_phase/test_stream']:.2f}{memory}")
