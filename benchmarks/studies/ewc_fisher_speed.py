"""Measure EWC's exact Fisher information against one backward pass per sample.

    python -m benchmarks.studies.ewc_fisher_speed [--samples 1000] [--repeats 5] [--threads 1]

Both run in turn in one process on the same data and network (784-256-256-256-10); the best time of
each counts. Prints both, their ratio, and the largest difference of the results.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from avalanche_dco.baselines.per_sample import mean_transformed_gradients
from avalanche_dco.models import mlp_256

RESULT = Path(__file__).parent.parent / "results" / "ewc_fisher_speed.txt"
BATCH = 256


def one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The definition: one forward and backward pass per sample."""
    fisher = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    criterion = nn.CrossEntropyLoss()
    for index in range(len(x)):
        model.zero_grad()
        criterion(model(x[index : index + 1]), y[index : index + 1]).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                fisher[name] += parameter.grad.square()
    return {name: value / len(x) for name, value in fisher.items()}


def in_batches(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What EWCPlugin does."""
    tasks = torch.zeros(len(x), dtype=torch.long)
    batches = zip(x.split(BATCH), y.split(BATCH), tasks.split(BATCH), strict=True)
    return mean_transformed_gradients(model, batches, nn.CrossEntropyLoss(), torch.square)


def best_time(run: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Speed of EWC's Fisher information.")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = mlp_256().eval()
    x, y = torch.randn(options.samples, 784), torch.randint(10, (options.samples,))
    slow, fast = one_by_one(model, x, y), in_batches(model, x, y)
    difference = max(
        ((slow[name] - fast[name]).abs().max() / slow[name].abs().max()).item() for name in slow
    )
    slow_time = best_time(lambda: one_by_one(model, x, y), options.repeats)
    fast_time = best_time(lambda: in_batches(model, x, y), options.repeats)
    lines = [
        f"command: python -m benchmarks.studies.ewc_fisher_speed {' '.join(arguments)}".strip(),
        f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), "
        f"{options.samples} samples, best of {options.repeats}",
        f"one by one {slow_time:.4f} s, in batches {fast_time:.4f} s, "
        f"ratio {slow_time / fast_time:.1f}",
        f"largest relative difference {difference:.1e}",
    ]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
