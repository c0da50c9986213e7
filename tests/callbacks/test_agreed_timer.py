import math
from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from lightning_recipes import ResumeCheckpoint
from lightning_recipes.callbacks.agreed_timer import AgreedTimer
from tests.project import PointsDataModule, make_module, make_trainer
from tests.ranks import run_trainer_ranks


class Clock:
    """A clock that moves on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now_s = 0

    def __call__(self) -> int:
        self.now_s += 1
        return self.now_s


def due_after(timer: AgreedTimer, clock: Clock, trainer: Trainer) -> tuple[int, int]:
    """Count the steps until it is due, a second each, and how often the clock was read."""
    timer.restart()
    steps = reads = 0
    is_due = False
    while not is_due:
        steps += 1
        before = clock.now_s
        is_due = timer.is_due(trainer)
        reads += clock.now_s - before
        clock.now_s = steps
    return steps, reads


def test_is_due_after_the_interval_having_asked_a_handful_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    timer, trainer = AgreedTimer(1000), make_trainer(tmp_path)
    for _ in range(2):
        clock.now_s = -1
        steps, reads = due_after(timer, clock, trainer)
        assert 1000 <= steps <= 1010
        # each time it asks after half of the rest
        assert reads <= math.log2(1000) + 5


def saved_steps(root: Path) -> list[str]:
    trainer = make_trainer(root, devices=2, strategy="ddp")
    # so short that it is due whenever a rank would ask its own clock
    callback = ResumeCheckpoint(every_n_minutes=1e-4 / 60, keep_last=None)
    trainer.callbacks[0] = callback  # type: ignore[attr-defined]
    trainer.fit(make_module(), PointsDataModule(batch_size=2, num_workers=0))
    return [Path(path).name for path in callback.saved_paths]


def test_all_ranks_save_at_the_same_steps(tmp_path: Path) -> None:
    one, two = run_trainer_ranks(saved_steps, tmp_path)
    assert one == two
    assert len(one) > 1
