"""Handwritten digits: 1,797 images of 8x8 pixels, from scikit-learn."""

from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from lightning_recipes.data.base import RecipeDataModule
from lightning_recipes.data.split import split_indices
from lightning_recipes.datasets.extra import missing_extra

__all__ = ["DigitsDataModule"]

_SHARES = (0.7, 0.15, 0.15)


@final
class DigitsDataModule(RecipeDataModule):
    """Handwritten digits as batches ``(images, digits)``; needs scikit-learn.

    Images are float32 in [0, 1], shape (B, 1, 8, 8), digits int64 in 0..9, shape (B,). The split is
    70 % training, 15 % validation, 15 % test, always the same. Training images are shifted by up to
    ``max_shift`` pixels in each direction.

    Source:
        E. Alpaydin and C. Kaynak, UCI ML hand-written digits, 1998,
        https://archive.ics.uci.edu/dataset/80.

    Args:
        batch_size: As in :class:`~lightning_recipes.RecipeDataModule`.
        eval_batch_size: As in :class:`~lightning_recipes.RecipeDataModule`.
        num_workers: As in :class:`~lightning_recipes.RecipeDataModule`.
        seed: As in :class:`~lightning_recipes.RecipeDataModule`.
        max_shift: Largest shift of a training image, in pixels; 0 for none.

    Raises:
        ValueError: An argument is out of range.
        ModuleNotFoundError: scikit-learn is not installed.
    """

    def __init__(
        self,
        *,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        num_workers: int | Literal["auto"] = "auto",
        seed: int = 0,
        max_shift: int = 1,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            seed=seed,
        )
        if max_shift not in range(8):
            raise ValueError(f"max_shift is a number of pixels in 0..7, got {max_shift!r}.")
        self.max_shift = max_shift

    def setup(self, stage: str) -> None:
        """Load and split the images."""
        images, digits = load_digits()
        train, val, test = split_indices(len(digits), _SHARES)
        shifted = _Digits(images, digits, max_shift=self.max_shift)
        plain = _Digits(images, digits, max_shift=0)
        self.train_set = Subset(shifted, train.tolist())
        self.val_set = Subset(plain, val.tolist())
        self.test_set = self.predict_set = Subset(plain, test.tolist())


class _Digits(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, images: Tensor, digits: Tensor, *, max_shift: int) -> None:
        self.images = images
        self.digits = digits
        self.max_shift = max_shift

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.max_shift:
            down, right = torch.randint(-self.max_shift, self.max_shift + 1, (2,)).tolist()
            image = _shift(image, down, right)
        return image, self.digits[index]


def load_digits() -> tuple[Tensor, Tensor]:
    """Return all images, float32 (1797, 1, 8, 8) in [0, 1], and digits, int64 (1797,)."""
    try:
        from sklearn.datasets import load_digits as load
    except ModuleNotFoundError as error:
        raise missing_extra("DigitsDataModule", error) from error
    data: Any = load()
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    return images, torch.from_numpy(data.target).long()


def _shift(image: Tensor, down: int, right: int) -> Tensor:
    """Shift an image (1, H, W), bringing in zeros."""
    height, width = image.shape[-2:]
    shifted = torch.zeros_like(image)
    target = (
        slice(max(down, 0), height + min(down, 0)),
        slice(max(right, 0), width + min(right, 0)),
    )
    source = (
        slice(max(-down, 0), height - max(down, 0)),
        slice(max(-right, 0), width - max(right, 0)),
    )
    shifted[(..., *target)] = image[(..., *source)]
    return shifted
