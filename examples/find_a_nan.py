"""Plant a fault, have it named, look at it again, mend it: ``python examples/find_a_nan.py``.

One image of 1,400 is blank, as a broken scanner leaves it. Its contrast is 0, so normalising it is
0 / 0, and one step later every weight of the network would be NaN.
"""

from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import Dataset

from lightning_recipes import (
    Classifier,
    DigitsDataModule,
    GradientNormMonitor,
    NaNDetector,
    NonFiniteError,
    ResumableDataLoader,
    ResumeCheckpoint,
    replay,
)

BLANK = 900


class Scans(Dataset[tuple[Tensor, Tensor]]):
    """Digits, one of which is blank."""

    def __init__(self) -> None:
        data = DigitsDataModule()
        data.setup("fit")
        self.digits: Any = data.train_set

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self.digits[index]
        return torch.zeros_like(image) if index == BLANK else image, label


class Contrast(nn.Module):
    """Give each image mean 0 and standard deviation 1; a blank one needs ``eps``."""

    def __init__(self, eps: float = 0.0) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, images: Tensor) -> Tensor:
        """Return pixels (B, 64)."""
        pixels = images.flatten(1)
        deviation = pixels - pixels.mean(1, keepdim=True)
        return deviation / (deviation.std(1, keepdim=True) + self.eps)


def make_module(eps: float = 0.0) -> Classifier:
    """Return a small classifier."""
    layers = [Contrast(eps), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10)]
    return Classifier(nn.Sequential(*layers), num_classes=10)


def train(policy: str) -> Trainer:
    """Train for two epochs with the detector attached."""
    seed_everything(1, verbose=False)
    detector = NaNDetector(policy=policy, capsule_dir="runs/nan/capsules")  # type: ignore[arg-type]
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        gradient_clip_val=1.0,
        callbacks=[ResumeCheckpoint(every_n_steps=5), detector, GradientNormMonitor()],
        default_root_dir="runs/nan",
        log_every_n_steps=5,
    )
    trainer.fit(make_module(), ResumableDataLoader(Scans(), 64, shuffle=True, drop_last=True))
    return trainer


def main() -> None:
    """Show the three things one does about a NaN."""
    try:
        train("raise")
    except NonFiniteError as error:
        print(f"\n1. The run stops before the step, and says why:\n\n{error}")
        capsule = error.origins[0].capsule
        assert capsule is not None
        print(
            "\n2. The same in a notebook, from the capsule, with the old module and a mended one:\n"
        )
        for eps in (0.0, 1e-6):
            findings = replay(capsule, make_module(eps))
            print(f"   eps={eps}: {'; '.join(map(str, findings)) or 'every number is finite'}")
    print("\n3. Or drop such batches and go on:\n")
    trainer = train("skip")
    print(f"   {trainer.callback_metrics['nonfinite/skipped_steps']:.0f} steps skipped")


if __name__ == "__main__":
    main()
