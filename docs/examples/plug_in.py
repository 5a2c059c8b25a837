"""One plugin in an Avalanche script: five tasks, one network, no data kept."""

import time

import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from sklearn.datasets import load_digits

from avalanche_dco import DCOPlugin
from avalanche_dco.logging import PandasLogger

# Five tasks: handwritten digits, the pixels in another order in each.
torch.manual_seed(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
orders = [torch.randperm(64) for _ in range(5)]
benchmark = tensors_benchmark(
    train_tensors=[(x[:1400, order], y[:1400]) for order in orders],
    test_tensors=[(x[1400:, order], y[1400:]) for order in orders],
    task_labels=[0] * 5,
)

model = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
strategy = Naive(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    criterion=torch.nn.CrossEntropyLoss(),
    train_mb_size=32,
    train_epochs=10,
    plugins=[DCOPlugin(k=1000)],
    evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[PandasLogger()]),
)
start = time.perf_counter()
for experience in benchmark.train_stream:
    strategy.train(experience)
seconds = time.perf_counter() - start

results = strategy.eval(benchmark.test_stream)
accuracies = [value for name, value in results.items() if "Acc_Exp" in name]
print("accuracy on each task:", *(f"{accuracy:.2f}" for accuracy in accuracies))
print(f"average {sum(accuracies) / len(accuracies):.2f}, trained in {seconds:.0f} s")
