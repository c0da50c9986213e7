import os
import signal
from typing import Any

import pytest
from torch.utils.data import Dataset

from lightning_recipes import ResumableDataLoader, seed_worker
from lightning_recipes.data.lingering_worker import LingeringWorker
from lightning_recipes.data.resumable import resumable


class Signalled(Dataset[int]):
    """Sends its own worker a SIGTERM at the first sample, as a scheduler does."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return index


class Note:
    """Writes down that it was called."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __call__(self, worker_id: int) -> None:
        (self.path / str(worker_id)).touch()


def test_a_worker_goes_on_after_a_sigterm() -> None:
    loader = ResumableDataLoader(Signalled(), 2, num_workers=1)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


def test_its_own_init_function_is_called_too(tmp_path: Any) -> None:
    loader = ResumableDataLoader(range(4), num_workers=2, worker_init_fn=Note(tmp_path))  # type: ignore[arg-type]
    list(loader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_it_is_wrapped_once_and_only_for_workers() -> None:
    loader = ResumableDataLoader(range(4), num_workers=2, worker_init_fn=seed_worker)  # type: ignore[arg-type]
    again = ResumableDataLoader(loader.dataset, num_workers=2, worker_init_fn=loader.worker_init_fn)
    assert isinstance(again.worker_init_fn, LingeringWorker)
    assert again.worker_init_fn.init_fn is seed_worker
    assert resumable(loader) is loader
    assert ResumableDataLoader(range(4)).worker_init_fn is None  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGALRM])
def test_it_ends_in_time(number: int) -> None:
    """The alarm that ends it is the system's own, which nothing in Python can hold up."""
    child = os.fork()
    if not child:
        LingeringWorker()(0)
        os.kill(os.getpid(), signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # the minute, shortened
        while True:
            pass
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == number
