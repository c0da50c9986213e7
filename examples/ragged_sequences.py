"""Names of different lengths, padded less, weighed right: ``examples/ragged_sequences.py``.

Prints how much of the batches is padding with and without buckets, draws it, and trains a recurrent
network on batches of similar length, each as many names as fit a budget of tokens.
"""

from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything
from matplotlib.figure import Figure

from lightning_recipes import (
    GradientNormMonitor,
    LengthBuckets,
    NamesDataModule,
    NaNDetector,
    Padded,
    ResumeCheckpoint,
    SequenceClassifier,
    WarmupCosineLR,
)
from lightning_recipes.networks import GRUNet

PICTURE = Path("runs/padding.png")
BUDGET = 1_280  # tokens of a batch, padding included

Sizes = list[tuple[int, int]]


def measure(title: str, data: NamesDataModule) -> Sizes:
    """Print and return the real and the padded positions of every training batch of an epoch."""
    data.setup("fit")
    sizes = []
    for names, _ in data.train_dataloader():
        assert isinstance(names, Padded)
        real = int(names.lengths.sum())
        sizes.append((real, names.values.numel() - real))
    real, padding = (sum(column) for column in zip(*sizes, strict=True))
    print(f"{title:24} {len(sizes):4d} batches, {padding / (real + padding):6.1%} padding")
    return sizes


def draw(panels: dict[str, Sizes], path: Path) -> None:
    """Draw the first batches of each panel as bars of real positions and padding."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, (title, sizes) in zip(axes, panels.items(), strict=True):
        real, padding = zip(*sizes[:60], strict=True)
        axis.bar(range(len(real)), real, width=1, label="real")
        axis.bar(range(len(real)), padding, width=1, bottom=real, label="padding")
        axis.set(title=title, xlabel="batch")
    axes[0].set_ylabel("positions")
    axes[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, draw, train."""
    seed_everything(1, verbose=False)
    bucketed = NamesDataModule(buckets=partial(LengthBuckets, max_tokens=BUDGET))
    panels = {
        "any 64 names": measure("any 64 names", NamesDataModule(batch_size=64)),
        f"buckets, {BUDGET} positions": measure("buckets with a budget", bucketed),
    }
    draw(panels, PICTURE)
    print(f"Drawn: {PICTURE}")
    module = SequenceClassifier(
        GRUNet(num_classes=24),
        num_classes=24,
        optimizer=partial(torch.optim.AdamW, lr=1e-2),
        weight_by="count",  # batches differ in size, and every name weighs the same
    )
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        gradient_clip_val=1.0,
        callbacks=[
            ResumeCheckpoint(every_n_steps=100),
            NaNDetector(),
            GradientNormMonitor(),
            WarmupCosineLR(warmup=0.1),
        ],
        default_root_dir="runs/ragged",
    )
    trainer.fit(module, datamodule=bucketed)
    print(f"val/accuracy {trainer.callback_metrics['val/accuracy']:.3f}, after one epoch")


if __name__ == "__main__":
    main()
