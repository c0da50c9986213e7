"""What is trained where a step is timed: three small networks, on samples in memory."""

import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from lightning_recipes.networks import ConvNet

NUM_CLASSES = 10
NUM_BATCHES = 8  # of different samples, which come again and again

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


class Samples(Dataset[Batch]):
    """Samples in memory, of which a step's worth is fetched at a time that can be asked for.

    Args:
        shape: Of a batch's inputs.
        num_steps: How many batches an epoch has.
    """

    def __init__(self, shape: tuple[int, ...], num_steps: int) -> None:
        self.shape = shape
        self.batch_size = shape[0]
        self.num_steps = num_steps
        num_samples = NUM_BATCHES * self.batch_size
        self.inputs = torch.randn(num_samples, *shape[1:])
        self.target = torch.randint(NUM_CLASSES, (num_samples,))
        self.times: list[float] = []

    def __len__(self) -> int:
        return self.num_steps * self.batch_size

    def __getitem__(self, index: int) -> Batch:
        i = index % len(self.inputs)
        return {"inputs": self.inputs[i], "target": self.target[i]}

    def __getitems__(self, indices: list[int]) -> list[Batch]:
        self.times.append(time.perf_counter())
        return [self[i] for i in indices]

    def step_us(self) -> float:
        """Return the median time between two fetches, in microseconds."""
        steps = [end - start for start, end in itertools.pairwise(self.times)]
        return statistics.median(steps[len(steps) // 10 :]) * 1e6
