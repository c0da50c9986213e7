"""What is trained where a step is timed: three small networks, on batches made before."""

import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from lightning_recipes.networks import ConvNet

NUM_CLASSES = 10
NUM_BATCHES = 8  # different ones, which come again and again

Batch = dict[str, Tensor]
Network = Callable[[], tuple[nn.Module, tuple[int, ...]]]


class Objective(nn.Module):
    """A classifier with its loss, in the form that transformers trains."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, target: Tensor) -> Batch:
        """Return the loss."""
        return {"loss": nn.functional.cross_entropy(self.network(inputs), target)}


def small_tensors() -> tuple[nn.Module, tuple[int, ...]]:
    """Return 98 parameter tensors, where what is done for each shows most, and a batch's shape."""
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(24)]
    return nn.Sequential(*blocks, nn.Linear(64, NUM_CLASSES)), (16, 64)


def conv_net() -> tuple[nn.Module, tuple[int, ...]]:
    """Return the network of the digits, and the shape of 64 of them."""
    return ConvNet(num_classes=NUM_CLASSES), (64, 1, 8, 8)


def transformer() -> tuple[nn.Module, tuple[int, ...]]:
    """Return a block of width 128 with 4 heads, and the shape of 16 sequences of 64."""
    block = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return nn.Sequential(block, nn.Flatten(), nn.Linear(64 * 128, NUM_CLASSES)), (16, 64, 128)


class Batches(Dataset[Batch]):
    """Ready batches as the samples of a data set that takes the time whenever one is fetched.

    Args:
        shape: Of the inputs.
        num_steps: How many batches an epoch has.
    """

    def __init__(self, shape: tuple[int, ...], num_steps: int) -> None:
        self.shape = shape
        self.made = [
            {"inputs": torch.randn(shape), "target": torch.randint(NUM_CLASSES, shape[:1])}
            for _ in range(NUM_BATCHES)
        ]
        self.num_steps = num_steps
        self.times: list[float] = []

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, index: int) -> Batch:
        self.times.append(time.perf_counter())
        return self.made[index % NUM_BATCHES]

    def step_us(self) -> float:
        """Return the median time between two."""
        steps = [end - start for start, end in itertools.pairwise(self.times)]
        return statistics.median(steps[len(steps) // 10 :]) * 1e6
