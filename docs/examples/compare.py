"""Two methods on the same stream, and a figure of their errors."""

import pandas as pd
import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from sklearn.datasets import load_digits

from avalanche_dco import DCOKronPlugin
from avalanche_dco.baselines import EWCPlugin
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import error_metrics
from avalanche_dco.plots import plot_average_error

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
methods = {"EWC": lambda: EWCPlugin(ewc_lambda=100), "DCO-KRON": DCOKronPlugin}


def run(plugin, seed):
    """The log of one run over five tasks with permuted pixels."""
    torch.manual_seed(seed)
    orders = [torch.randperm(64) for _ in range(5)]
    benchmark = tensors_benchmark(
        train_tensors=[(x[:1400, order], y[:1400]) for order in orders],
        test_tensors=[(x[1400:, order], y[1400:]) for order in orders],
        task_labels=[0] * 5,
    )
    model = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
    logger = PandasLogger()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=32,
        train_epochs=10,
        plugins=[plugin],
        evaluator=EvaluationPlugin(error_metrics(), loggers=[logger]),
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)
    return logger.to_frame()


logs = [
    run(make(), seed).assign(method=name, seed=seed)
    for name, make in methods.items()
    for seed in (1, 2)
]
log = pd.concat(logs)
last = log[(log["metric"] == "AverageError") & (log["trained"] == 5)]
print(last.groupby("method")["value"].agg(["mean", "std"]).round(2))
plot_average_error(log).savefig("compare.svg")
