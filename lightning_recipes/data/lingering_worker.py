"""Loader workers that outlive the signal with which a whole job is stopped."""

import signal
from collections.abc import Callable
from types import FrameType

__all__ = ["LingeringWorker"]

_LINGER_S = 60


class LingeringWorker:
    """A ``worker_init_fn`` after which SIGTERM is obeyed a minute later.

    Some schedulers, ``timeout`` and service managers send it to every process of a job at once. The
    training then still has to load the rest of a batch, save, and end its workers in order; torch's
    own handler would have them die under it, and the training fail with "worker exited
    unexpectedly". One that its parent cannot end in any other way still ends, within that minute.

    Args:
        init_fn: What else to call in the worker, or None.
    """

    def __init__(self, init_fn: Callable[[int], None] | None = None) -> None:
        self.init_fn = init_fn

    def __call__(self, worker_id: int) -> None:
        """Prepare a worker."""
        signal.signal(signal.SIGTERM, _linger)
        if self.init_fn is not None:
            self.init_fn(worker_id)


def _linger(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_LINGER_S)
