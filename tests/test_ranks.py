import os
import signal
from collections.abc import Callable

import pytest
import torch.distributed as dist

from tests.ranks import run_ranks


def fail() -> None:
    if dist.get_rank() == 1:
        raise ValueError("this is why")


def die() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("function", "told"),
    [(fail, "(?s)Rank 1 failed:.* in fail\n.*this is why"), (die, "Rank 1 failed:\nIt .* code -9")],
    ids=["fails", "dies"],
)
def test_a_rank_that_fails_or_dies_fails_the_test(function: Callable[[], None], told: str) -> None:
    with pytest.raises(RuntimeError, match=told):
        run_ranks(function)


def test_results_are_by_rank() -> None:
    assert run_ranks(rank_after, 10) == [10, 11]


def rank_after(start: int) -> int:
    return start + dist.get_rank()
