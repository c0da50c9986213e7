"""Resuming from the files of ModelCheckpoint, which are written in the middle of an event."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.callbacks.matrix import CHOICES, Case, first_difference, run

EPOCH_END = "what was left of that one"


def case(validation: dict[str, Any], schedule: str) -> Case:
    plain = {name: choices[0] for name, choices in CHOICES.items()}
    return Case(**{**plain, "validation": validation, "schedule": schedule})


EVERY_EPOCH: dict[str, Any] = {"check_val_every_n_epoch": 1}
EVERY_OTHER_BATCH: dict[str, Any] = {"val_check_interval": 2}

KEEPERS: dict[str, Callable[..., ModelCheckpoint]] = {
    "batch end": partial(ModelCheckpoint, every_n_train_steps=1, save_top_k=-1),
    "validation end": partial(
        ModelCheckpoint, monitor="val", save_top_k=-1, save_on_train_epoch_end=False
    ),
    "epoch end": partial(ModelCheckpoint, save_top_k=-1, save_on_train_epoch_end=True),
}


@pytest.mark.parametrize("moment", KEEPERS)
@pytest.mark.parametrize("schedule", ["none", "plateau on epochs", "plateau on steps"])
@pytest.mark.parametrize("validation", [EVERY_EPOCH, EVERY_OTHER_BATCH], ids=["epoch", "batches"])
def test_is_exact_or_names_what_is_not(
    validation: dict[str, Any], schedule: str, moment: str, tmp_path: Path
) -> None:
    chosen, keeper = case(validation, schedule), KEEPERS[moment]
    whole = run(chosen, tmp_path / "whole", keeper(tmp_path / "whole" / "kept"))
    files = {
        int(path.stem.rpartition("step=")[2]): path
        for path in (tmp_path / "whole" / "kept").glob("*.ckpt")
    }
    assert len(files) in (3, 9, 18)
    for step, path in files.items():
        root = tmp_path / path.stem
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            resumed = run(chosen, root, keeper(root / "kept"), ckpt_path=path)
        messages = " ".join(str(warning.message) for warning in caught)
        is_last_batch = step % 6 == 0
        assert (EPOCH_END in messages) == is_last_batch, (step, messages)
        assert resumed["seen"] == whole["seen"][step:]
        if not is_last_batch:
            for part in ("weights", "optimizers", "schedules", "epoch", "callback_metrics"):
                assert first_difference(resumed[part], whole[part]) is None, (step, part)
            rows = resumed["rows"]
            assert rows == whole["rows"][len(whole["rows"]) - len(rows) :], step
            assert len(rows) >= 18 - step
