import random
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_recipes import sample_seed, seed_worker


def test_sample_seed_is_only_known_while_a_sample_is_loaded() -> None:
    with pytest.raises(RuntimeError, match="inside a data set's __getitem__"):
        sample_seed()


class WorkerDraws(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(
            [random.random(), np.random.random(), torch.rand(()).item()],  # noqa: NPY002
            dtype=torch.float64,
        )


def test_seed_worker_tells_ranks_workers_seeds_and_epochs_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def draw() -> list[list[float]]:
        rows = []
        for rank, seed in product((0, 1), (0, 1)):
            monkeypatch.setenv("RANK", str(rank))
            loader = DataLoader(
                WorkerDraws(),
                batch_size=2,
                num_workers=2,
                worker_init_fn=seed_worker,
                generator=torch.Generator().manual_seed(seed),
            )
            rows += [row for _ in range(2) for batch in loader for row in batch.tolist()]
        return rows

    rows = draw()
    # 2 ranks x 2 seeds x 2 epochs x 2 workers x 2 samples
    assert [len(set(library)) for library in zip(*rows, strict=True)] == [32, 32, 32]
    assert draw() == rows
