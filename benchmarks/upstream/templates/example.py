"""Direction-Constrained Optimization beside Naive, on permuted digits of scikit-learn.

Each strategy learns the same stream. The accuracies on all experiences after the last one tell how
much it has forgotten.
"""

import argparse

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import DCO, DCOComp, DCOKron, Naive
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def make_dataset(x: torch.Tensor, y: torch.Tensor) -> AvalancheDataset:
    """A data set with targets and the task label 0."""
    return AvalancheDataset(
        [TensorDataset(x, y)],
        data_attributes=[
            DataAttribute(y.tolist(), "targets"),
            DataAttribute([0] * len(y), "targets_task_labels", use_in_getitem=True),
        ],
    )


def main(args: argparse.Namespace) -> None:
    """Train all strategies and print their accuracies."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16).float(), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    permutations = [
        torch.randperm(64, generator=torch.Generator().manual_seed(task))
        for task in range(args.experiences)
    ]
    benchmark = benchmark_from_datasets(
        train=[make_dataset(x[train][:, p], y[train]) for p in permutations],
        test=[make_dataset(x[test][:, p], y[test]) for p in permutations],
    )
    device = torch.device(f"cuda:{args.cuda}" if args.cuda >= 0 else "cpu")
    for strategy_class, settings in (
        (Naive, {}),
        (DCO, {"k": 200}),
        (DCOComp, {"k": 200}),
        (DCOKron, {}),
    ):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
        )
        strategy = strategy_class(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=64,
            train_epochs=args.epochs,
            eval_mb_size=256,
            device=device,
            evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
            **settings,
        )
        for experience in benchmark.train_stream:
            strategy.train(experience)
        strategy.eval(benchmark.test_stream)
        accuracy = strategy.evaluator.get_last_metrics()
        (value,) = (v for name, v in accuracy.items() if name.startswith("Top1_Acc_Stream"))
        print(f"{strategy_class.__name__}: {100 * value:.1f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", type=int, default=-1, help="GPU to use, -1 for the CPU")
    parser.add_argument("--experiences", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    main(parser.parse_args())
