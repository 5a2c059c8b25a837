"""The paper's networks, without biases, and one output layer shared by tasks in slices."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from avalanche.models import MultiTaskModule
from torch import Tensor, nn

from avalanche_dco.errors import ModelError

__all__ = ["MLP", "ConvNet", "TaskMasked", "mlp_100", "mlp_256"]


class MLP(nn.Sequential):
    """A multi-layer perceptron with ReLU and without biases.

    >>> import torch
    >>> from avalanche_dco.models import MLP
    >>> MLP(64, hidden_size=50)(torch.zeros(2, 8, 8)).shape
    torch.Size([2, 10])

    :param input_size: number of inputs; images are flattened.
    :param hidden_size: units per hidden layer.
    :param hidden_layers: number of hidden layers. The paper's text says two; the table of
        autoencoders in its supplement, and so its code, has three.
    :param num_classes: number of outputs.
    """

    def __init__(
        self,
        input_size: int = 784,
        *,
        hidden_size: int = 256,
        hidden_layers: int = 3,
        num_classes: int = 10,
    ):
        widths = [input_size] + [hidden_size] * hidden_layers
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs, bias=False), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-1], num_classes, bias=False))


def mlp_100(num_classes: int = 10) -> MLP:
    """MLP-100, the paper's network for Split MNIST.

    >>> from avalanche_dco.models import mlp_100
    >>> sum(weight.numel() for weight in mlp_100().parameters())
    99400

    :param num_classes: number of outputs.
    """
    return MLP(hidden_size=100, num_classes=num_classes)


def mlp_256(num_classes: int = 10) -> MLP:
    """MLP-256, the paper's network for Permuted MNIST and MNIST/Fashion-MNIST.

    >>> from avalanche_dco.models import mlp_256
    >>> sum(weight.numel() for weight in mlp_256().parameters())
    334336

    :param num_classes: number of outputs.
    """
    return MLP(hidden_size=256, num_classes=num_classes)


class ConvNet(nn.Sequential):
    """The paper's network for Split CIFAR-100: four 3 x 3 convolutions and one linear layer.

    >>> import torch
    >>> from avalanche_dco.models import ConvNet
    >>> ConvNet()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 100])

    :param num_classes: number of outputs.
    """

    def __init__(self, num_classes: int = 100):
        def block(inputs: int, outputs: int) -> list[nn.Module]:
            return [
                nn.Conv2d(inputs, outputs, 3, bias=False),
                nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, bias=False),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Dropout(0.5),
            ]

        super().__init__(
            *block(3, 32), *block(32, 64), nn.Flatten(), nn.Linear(1600, num_classes, bias=False)
        )


class TaskMasked(MultiTaskModule):
    """Multi-head by slices: one output layer, of which each task sees its own classes.

    For task-incremental benchmarks whose labels keep their numbers, such as Avalanche's
    ``SplitMNIST(5, return_task_id=True)``. Which classes belong to a task is read from the
    experiences. The outputs of other tasks are set so low that they neither win nor have a
    gradient.

    >>> from avalanche_dco.models import MLP, TaskMasked
    >>> model = TaskMasked(MLP(64, hidden_size=50), num_classes=10)

    :param network: any module with ``num_classes`` outputs.
    :param num_classes: number of outputs.
    """

    MASKED = -1e9

    task_of_class: Tensor

    def __init__(self, network: nn.Module, num_classes: int):
        super().__init__()
        self.network = network
        self.register_buffer("task_of_class", torch.full((num_classes,), -1))

    def adaptation(self, experience: Any) -> None:
        """Note which classes the experience's task has."""
        super().adaptation(experience)
        if len(experience.task_labels) != 1:
            raise ModelError(
                f"TaskMasked needs one task per experience, but this one has the task labels "
                f"{sorted(experience.task_labels)}. Use a benchmark with return_task_id=True, or "
                "the network itself without TaskMasked."
            )
        (task,) = experience.task_labels
        classes = torch.tensor(
            sorted(experience.classes_in_this_experience), device=self.task_of_class.device
        )
        if classes.max() >= len(self.task_of_class):
            raise ModelError(
                f"TaskMasked was made for {len(self.task_of_class)} classes, but this experience "
                f"has class {classes.max().item()}. Make it with num_classes="
                f"{classes.max().item() + 1} or more, and a network with as many outputs."
            )
        owners = self.task_of_class[classes]
        if ((owners != -1) & (owners != task)).any():
            raise ModelError(
                f"Task {task} has classes that another task has too, so that slices of one output "
                "layer cannot separate them. Keep the labels of the classes distinct "
                "(class_ids_from_zero_in_each_exp=False), or use the network without TaskMasked."
            )
        self.task_of_class[classes] = task

    def forward(self, x: Tensor, task_labels: Tensor | int | None) -> Tensor | dict[int, Tensor]:
        """Outputs of the network, those of other tasks masked.

        :param x: inputs.
        :param task_labels: the task of each sample, or one for all; None for the outputs of every
            task, by its label, as Avalanche's multi-task modules have it.
        """
        outputs = self.network(x)
        if task_labels is None:
            known = self.task_of_class.unique().tolist()
            return {task: self._masked(outputs, task) for task in known if task >= 0}
        return self._masked(outputs, task_labels)

    def _masked(self, outputs: Tensor, task_labels: Tensor | int) -> Tensor:
        tasks = torch.as_tensor(task_labels, device=self.task_of_class.device)
        foreign = self.task_of_class != tasks.reshape(-1, 1)
        low = max(self.MASKED, torch.finfo(outputs.dtype).min / 2)  # half precision ends at 65504
        return outputs.masked_fill(foreign, low)
