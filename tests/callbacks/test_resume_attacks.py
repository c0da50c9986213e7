"""What real projects attach and override, resumed at every step."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import CSVLogger

from tests.callbacks.matrix import Case, Project, first_difference, run

PLAIN = Case(
    length={"max_epochs": 3},
    validation={"val_check_interval": 0.5},
    workers={"num_workers": 0},
    accumulate=1,
    optimizer="momentum",
    schedule="none",
    precision="32-true",
    augmentation="torch",
    loaders="one",
    shuffled_validation=False,
    logger=CSVLogger,
)


def assert_exact(root: Path, **kwargs: Any) -> None:
    """Resume from every file of a run, and compare each with that run."""
    whole = run(PLAIN, root / "whole", **kwargs)
    files = sorted((root / "whole" / "resume").glob("*.ckpt"))[:-1]
    assert len(files) > 4
    for path in files:
        resumed = run(PLAIN, root / path.stem, ckpt_path=path, **kwargs)
        for key in ("seen", "rows"):
            whole_part = whole[key][len(whole[key]) - len(resumed[key]) :]
            assert first_difference(resumed[key], whole_part) is None, path.stem
        # that callbacks go on is the matrix's to show: here the folders of ModelCheckpoint remain
        for key in ("weights", "optimizers", "global_step", "callback_metrics"):
            assert first_difference(resumed[key], whole[key]) is None, path.stem


class AugmentingProject(Project):
    """Augments the batch where users of a GPU do."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        points, indices = batch
        return points + 0.1 * torch.randn_like(points), indices


def test_batch_is_augmented_the_same_before_it_starts(tmp_path: Path) -> None:
    assert_exact(tmp_path, module=AugmentingProject)
