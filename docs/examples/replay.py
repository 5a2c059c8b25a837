"""Replay beside the plugin, on a class-incremental stream, where replay is needed."""

import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.supervised import Naive
from sklearn.datasets import load_digits

from avalanche_dco import DCOKronPlugin, DCOPlugin
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import error_metrics

torch.set_num_threads(1)  # the order of sums changes the second digit here

# Digits 0 and 1, then 2 and 3, ... All ten outputs compete, and no task label helps.
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
train, test = torch.arange(len(y)) < 1400, torch.arange(len(y)) >= 1400
benchmark = tensors_benchmark(
    train_tensors=[(x[train & (y // 2 == t)], y[train & (y // 2 == t)]) for t in range(5)],
    test_tensors=[(x[test & (y // 2 == t)], y[test & (y // 2 == t)]) for t in range(5)],
    task_labels=[0] * 5,
)


def accuracy(plugins):
    """Average accuracy over all five tasks after the last."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=32,
        train_epochs=10,
        plugins=plugins,
        evaluator=EvaluationPlugin(error_metrics(), loggers=[PandasLogger()]),
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
        results = strategy.eval(benchmark.test_stream)
    return 1 - results["AverageError/eval_phase/test_stream"]


fast = {"k": 100, "gradients_per_update": 16, "autoencoder_updates": 50}
trained = DCOPlugin.paper(**fast, penalty_step="implicit")
print(f"Naive                   {accuracy([]):.2f}")
print(f"DCO, trained directions {accuracy([trained]):.2f}")
print(f"DCO                     {accuracy([DCOPlugin(k=1000)]):.2f}")
print(f"DCO-KRON                {accuracy([DCOKronPlugin()]):.2f}")
print(f"replay                  {accuracy([ReplayPlugin(mem_size=100)]):.2f}")
# Beside replay the default strength is lower: replay needs to move the weights that it holds.
both = [ReplayPlugin(mem_size=100), DCOKronPlugin()]
print(f"replay and DCO-KRON     {accuracy(both):.2f}")
