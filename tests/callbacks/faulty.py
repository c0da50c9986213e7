"""A small project whose batches, modules and losses can be made to go wrong."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryPrecision, BinaryRecall

from lightning_recipes import NonFiniteError, ResumableDataLoader

NAN, INF = math.nan, math.inf
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)

Batch = dict[str, Tensor]


def make_batches(num_batches: int, bad: Sequence[int] = (), seed: int = 0) -> list[Batch]:
    """Return batches of 4 points, those in ``bad`` with a NaN."""
    generator = torch.Generator().manual_seed(seed)
    batches = [{"x": torch.randn(4, 3, generator=generator)} for _ in range(num_batches)]
    for index in bad:
        batches[index]["x"][1, 2] = NAN
    return batches


def without(batches: list[Batch], *indices: int) -> list[Batch]:
    """Return the other batches."""
    return [batch for index, batch in enumerate(batches) if index not in indices]


class BadBackward(torch.autograd.Function):
    """A forward pass like any other, and NaN on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * NAN


class Net(LightningModule):
    """Normalisation, metrics of all kinds, a buffer that is replaced, and one hook to go wrong.

    Args:
        hook: Gets the module, the batch, its number and the loss, and returns the loss.
        optimizer: Makes the optimizer of some parameters.
        dropout: Of the input of the head.
    """

    center: Tensor

    def __init__(
        self,
        hook: Callable[["Net", Any, int, Tensor], Any] | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = SGD,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.hook = hook
        self.optimizer = optimizer
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
        self.last = nn.Linear(4, 1)
        self.head = nn.Sequential(nn.Dropout(dropout), self.last)
        self.register_buffer("center", torch.zeros(3))
        self.mean = MeanMetric(nan_strategy="disable")
        self.auroc = BinaryAUROC()
        self.scores = MetricCollection(
            {"accuracy": BinaryAccuracy(), "precision": BinaryPrecision(), "recall": BinaryRecall()}
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x = batch["x"]
        self.center = 0.9 * self.center + 0.1 * x.mean(0)
        outputs = self.head(self.body(x))
        loss = F.mse_loss(outputs.float(), x.sum(1, keepdim=True))
        classes = (x.sum(1) > 0).long()
        probabilities = outputs.detach().float().flatten().sigmoid()
        probabilities = probabilities.nan_to_num(0.5)
        self.mean.update(loss.detach())
        self.auroc.update(probabilities, classes)
        self.scores.update(probabilities, classes)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(x))
        self.log("largest", loss.detach(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log("total", loss.detach(), on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        self.log("auroc", self.auroc, on_step=False, on_epoch=True)
        self.log_dict(self.scores, on_step=False, on_epoch=True)
        return loss if self.hook is None else self.hook(self, batch, batch_idx, loss)

    def configure_optimizers(self) -> Any:
        return self.optimizer([p for p in self.parameters() if p.requires_grad])


Hook = Callable[[Net, Any, int, Tensor], Any]


def at_batch(number: int, change: Callable[[Net, Tensor], Tensor]) -> Hook:
    """Return a hook that changes the loss of one batch of each epoch."""

    def hook(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
        return change(net, loss) if batch_idx == number else loss

    return hook


def zero_root(net: Net, loss: Tensor) -> Tensor:
    """Add a zero whose gradient is NaN."""
    weight = net.last.weight
    return loss + (weight - weight).square().sum().sqrt()


def make_net(*args: Any, **kwargs: Any) -> Net:
    """Return the same one each time."""
    seed_everything(5, verbose=False)
    return Net(*args, **kwargs)


def make_trainer(root: Path, *callbacks: Callback, **kwargs: Any) -> Trainer:
    """Return a quiet trainer of one epoch."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "default_root_dir": str(root),
        "logger": CSVLogger(root),
        "max_epochs": 1,
        "log_every_n_steps": 1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(callbacks=list(callbacks), **{**defaults, **kwargs})


def float16(init_scale: float = 2.0**16, **kwargs: Any) -> dict[str, Any]:
    """Return what makes a trainer use float16 on the CPU."""
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, **kwargs)
    return {"plugins": MixedPrecision("16-mixed", "cpu", scaler)}


def loader(batches: Sequence[Any]) -> Any:
    """Return a loader of ready batches, in their order."""
    made: Any = list(batches)
    return ResumableDataLoader(made, collate_fn=itemgetter(0))


def fit(trainer: Trainer, net: LightningModule, batches: Sequence[Any], **kwargs: Any) -> None:
    """Train from one random state."""
    seed_everything(7, verbose=False)
    trainer.fit(net, loader(batches), **kwargs)


def error_of(trainer: Trainer, net: LightningModule, batches: Sequence[Any]) -> NonFiniteError:
    """Train, and return the error that must come."""
    try:
        fit(trainer, net, batches)
    except NonFiniteError as error:
        return error
    raise AssertionError("nothing was found")
