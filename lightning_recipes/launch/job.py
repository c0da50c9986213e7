"""The processes of one job on this machine, from their start to their exit code."""

import os
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from lightning_recipes.launch.agent import Agent, first_failure

__all__ = ["Job"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What to start, how often, and where the machines meet.

    Args:
        num_processes: On this machine.
        num_nodes: Machines of the job, each with a launcher of its own.
        node_rank: Which of them this is.
        main_address: The machine with node rank 0, as the others reach it.
        main_port: A free port there.
        max_restarts: How often all processes start again after one has failed.
    """

    num_processes: int
    num_nodes: int = 1
    node_rank: int = 0
    main_address: str = "127.0.0.1"
    main_port: int = 29400
    max_restarts: int = 0

    def run(self, command: Sequence[str]) -> int:
        """Run Python with these arguments in every process, and return the exit code of the job.

        That of the process that failed first, 128 + n if signal n ended it, as a shell has it.
        """
        rendezvous = self._rendezvous()
        is_static = rendezvous.get_backend() == "static"
        spec = WorkerSpec(
            role="default",
            local_world_size=self.num_processes,
            entrypoint=sys.executable,
            args=("-u", *command),
            rdzv_handler=rendezvous,
            max_restarts=self.max_restarts,
            master_addr=self.main_address if is_static else None,
            master_port=self.main_port if is_static else None,
            local_addr=self._local_address,
        )
        is_over = True
        try:
            result = Agent(spec).run()
        except SignalException as stop:
            # Not the end for machines that go on waiting for this one.
            is_over = False
            return 128 + stop.sigval
        finally:
            if is_over:
                rendezvous.shutdown()
        if not result.is_failed():
            return 0
        _, failure = first_failure(result)
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode

    @property
    def _local_address(self) -> str | None:
        # A machine's own name need not resolve, and within one machine it need not.
        if self.num_nodes == 1:
            return "127.0.0.1"
        return self.main_address if self.main_address in _LOOPBACK else None

    def _rendezvous(self) -> RendezvousHandler:
        # "static" keeps the ranks in the order of the machines; only "c10d" can meet again.
        is_alone = self.num_nodes == 1
        is_static = not is_alone and self.max_restarts == 0
        if is_static:
            config = {"rank": self.node_rank}
        else:
            config = {"is_host": is_alone or self.node_rank == 0}
        if self.max_restarts > 0:
            # Otherwise (torch 2.13, torchrun too) restarted processes find the addresses of the
            # ones before them in the store that the agent keeps, and with gloo wait for ever.
            os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        endpoint = "127.0.0.1:0" if is_alone else f"{self.main_address}:{self.main_port}"
        parameters = RendezvousParameters(
            backend="static" if is_static else "c10d",
            endpoint=endpoint,
            run_id=uuid.uuid4().hex if is_alone else "lightning-recipes",
            min_nodes=self.num_nodes,
            max_nodes=self.num_nodes,
            local_addr=self._local_address,
            **config,
        )
        return get_rendezvous_handler(parameters)
