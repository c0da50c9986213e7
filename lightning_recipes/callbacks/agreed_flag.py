"""A flag that any rank can raise, and that all ranks see at the same moment."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["AgreedFlag"]


class AgreedFlag:
    """The largest number that any rank gave at the last exchange but one.

    Each exchange sends this rank's number on its way and returns the answer to the one before,
    which has long arrived: nothing waits for the network, and nothing for the accelerator, since
    the numbers travel between CPUs, in a gloo group of their own. A single process sees its number
    at once.

    All ranks make the same exchanges in the same order; what they do in between is their own.
    """

    def __init__(self) -> None:
        self._group: Any = None
        self._number = torch.zeros((), dtype=torch.int64)
        self._work: Any = None

    def open(self) -> None:
        """Make the group: a collective."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # A rank that is late, in an hour's validation, is for others to complain of.
            self._group = dist.new_group(backend="gloo", timeout=timedelta(days=7))

    def exchange(self, number: int) -> int:
        """Send ``number`` (0 for nothing), and return the agreed one of the exchange before."""
        if self._group is None:
            return number
        agreed = self._wait()
        self._number = torch.tensor(number)
        self._work = dist.all_reduce(
            self._number, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return agreed

    def close(self) -> int:
        """Return the answer to the last exchange, and end the group: a collective."""
        agreed = self._wait()
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None
        return agreed

    def drop(self) -> None:
        """Ask no one any more: others may be gone."""
        self._group = self._work = None

    def _wait(self) -> int:
        if self._work is None:
            return 0
        self._work.wait()
        self._work = None
        return int(self._number)
