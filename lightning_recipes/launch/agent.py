"""The parent of a machine's processes."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, ProcessFailure
from torch.distributed.elastic.multiprocessing.api import SignalException

from lightning_recipes.callbacks.preempted import Preempted

__all__ = ["Agent"]

_PREEMPTED = Preempted("a signal", None).code
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


class Agent(LocalElasticAgent):
    """Torchrun's agent, for processes that save themselves when they are asked to stop.

    A scheduler's signal to the agent goes to its processes, once, and the agent waits for them:
    torchrun's own would kill them after 30 seconds, whether they have saved or not, and end with 1.
    The same signal again is handled as torchrun does it. What was asked to stop is not started
    again, and neither is a process that ended as preempted: that is for whoever asked.

    Args:
        spec: What to run, and how often again.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec, logs_specs=DefaultLogsSpecs())
        self._pids: list[int] = []
        self._asked: int | None = None

    # The three methods below are the ones that torch.distributed.elastic has agents implement
    # (checked on torch 2.13); ``_remaining_restarts`` is the one attribute touched.

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        started: dict[int, Any] = super()._start_workers(worker_group)
        self._pids = list(started.values())
        for name in _FORWARDED:
            # Anew at every start, at which torch puts its own in place.
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._forward)
        if self._asked is not None:
            self._send(self._asked)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state != WorkerState.FAILED:
            return result
        rank, failure = first_failure(result)
        if self._asked is not None or failure.exitcode == _PREEMPTED:
            self._remaining_restarts = 0
        how = f"Rank {rank} ended first, {ending(failure)}"
        if self._remaining_restarts > 0:
            left = self._remaining_restarts - 1
            sys.stderr.write(f"{how}: all start again (restarts left after this one: {left}).\n")
        else:
            sys.stderr.write(f"{how}.\n")
        return result

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._asked == number:
            raise SignalException("asked to stop again", sigval=signal.Signals(number))
        self._asked = number
        self._send(number)

    def _send(self, number: int) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def first_failure(result: RunResult) -> tuple[int, ProcessFailure]:
    """Return the rank that failed first, which made the others fail, and how it did."""
    rank = min(result.failures, key=lambda rank: result.failures[rank].timestamp)
    return rank, result.failures[rank]


def ending(failure: ProcessFailure) -> str:
    """Say how a process ended."""
    if failure.exitcode < 0:
        return f"by {signal.Signals(-failure.exitcode).name}"
    return f"with exit code {failure.exitcode}"
