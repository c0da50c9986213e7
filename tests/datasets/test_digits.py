import sys

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from torch import Tensor

from lightning_recipes import DigitsDataModule, ResumableDataLoader


@pytest.fixture(scope="module")
def digits() -> DigitsDataModule:
    data = DigitsDataModule(batch_size=128)
    data.setup("fit")
    return data


def epoch(loader: ResumableDataLoader, number: int = 0) -> dict[int, list[float]]:
    """Return the images of a training epoch by their index in the subset."""
    loader.set_epoch(number)
    order = [int(index) for index in loader.sampler]
    images = [image.flatten().tolist() for batch, _ in loader for image in batch]
    return dict(zip(order, images, strict=True))


def shifts(images: Tensor, distance: int) -> list[Tensor]:
    """Return every shift of images (B, 1, H, W) by up to ``distance`` pixels."""
    height, width = images.shape[-2:]
    framed = F.pad(images, (distance,) * 4)
    offsets = range(2 * distance + 1)
    return [framed[..., y : y + height, x : x + width] for y in offsets for x in offsets]


def test_split_is_70_15_15_disjoint_and_the_same_for_every_seed_and_stage() -> None:
    splits = []
    for seed, stage in ((0, "fit"), (5, "test")):
        data = DigitsDataModule(seed=seed)
        data.setup(stage)
        splits.append(
            [list(part.indices) for part in (data.train_set, data.val_set, data.test_set)]  # type: ignore[union-attr]
        )
    assert splits[0] == splits[1]
    parts = splits[0]
    assert sorted(index for part in parts for index in part) == list(range(1797))
    assert [len(part) / 1797 for part in parts] == pytest.approx([0.7, 0.15, 0.15], abs=1 / 1797)


def test_evaluation_images_are_scikit_learns(digits: DigitsDataModule) -> None:
    source = load_digits()
    for subset, loader in (
        (digits.val_set, digits.val_dataloader()),
        (digits.test_set, digits.test_dataloader()),
    ):
        images = torch.cat([images for images, _ in loader])
        target = torch.cat([target for _, target in loader])
        indices = subset.indices  # type: ignore[union-attr]
        assert (images.shape[1:], images.dtype, target.dtype) == (
            (1, 8, 8),
            torch.float32,
            torch.int64,
        )
        assert (images.squeeze(1).double() * 16).tolist() == source.images[indices].tolist()
        assert target.tolist() == source.target[indices].tolist()
        assert (images.min().item(), images.max().item()) == (0, 1)


@pytest.mark.parametrize("max_shift", [0, 1, 2])
def test_training_images_are_shifted_and_all_shifts_occur(max_shift: int) -> None:
    data = DigitsDataModule(batch_size=1, max_shift=max_shift)
    data.setup("fit")
    images = torch.tensor(list(epoch(data.train_dataloader()).values())).reshape(-1, 1, 8, 8)
    order = [int(index) for index in data.train_dataloader().sampler]
    plain = torch.from_numpy(load_digits().images)[data.train_set.indices]  # type: ignore[union-attr]
    candidates = shifts(plain[order].float().unsqueeze(1) / 16, max_shift)
    matches = torch.stack([(images == shifted).flatten(1).all(dim=1) for shifted in candidates])
    assert matches.any(dim=0).all()
    assert matches.any(dim=1).all()


def test_a_shift_is_a_function_of_seed_epoch_and_index() -> None:
    def images(seed: int, number: int, batch_size: int = 1) -> dict[int, list[float]]:
        data = DigitsDataModule(seed=seed, batch_size=batch_size)
        data.setup("fit")
        return epoch(data.train_dataloader(), number)

    first = images(0, 0)
    in_batches = images(0, 0, batch_size=100)  # leaves out the last 57
    assert all(first[index] == image for index, image in in_batches.items())
    for other in (images(0, 1), images(1, 0)):
        # one of nine shifts is the same by chance
        same = sum(first[index] == other[index] for index in first)
        assert same / len(first) == pytest.approx(1 / 9, abs=0.04)


@pytest.mark.parametrize("max_shift", [-1, 9])
def test_a_shift_out_of_the_image_is_refused(max_shift: int) -> None:
    with pytest.raises(ValueError, match=f"max_shift .*{max_shift}"):
        DigitsDataModule(max_shift=max_shift)


def test_without_scikit_learn_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "lightning-recipes\[examples\]"'):
        DigitsDataModule().setup("fit")
