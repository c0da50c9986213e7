"""New processes at little cost: forked from one that has imported what takes seconds."""

import multiprocessing
import multiprocessing.process
import os
import pickle
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection, wait
from typing import Any

# by the server alone: it has its own way to import them, see _serve
_IMPORTED = ("lightning_recipes",)


class ForkServer:
    """Calls functions, one after the other, each in a process of its own.

    A process that has imported torch and Lightning and done nothing else runs no thread and holds
    no state of a test, so that its forks are as good as new interpreters, which would take four
    seconds each. They find the environment variables of the caller. multiprocessing's own
    "forkserver" is not used because all its processes have one hash seed: ranks that go through a
    set of names in different orders, and then wait for each other for ever, would pass.
    """

    def __init__(self) -> None:
        self.is_free = True
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()
        # Else multiprocessing would wait for it at the end, and tests that count workers count it.
        # It ends when this process does, and with it the pipe.
        multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the server, and what it runs."""
        self._pipe.close()

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Start ``function(*args)``, which takes and returns what pickles."""
        self.is_free = False
        self._pipe.send_bytes(pickle.dumps((dict(os.environ), function, args)))

    def answer(self, timeout_s: float) -> tuple[Any, str | None]:
        """Return what the function returned, and the traceback if it raised.

        If it does not answer in time, it ends, and with it the server.
        """
        if not self._pipe.poll(timeout_s):
            self.close()
            return None, f"It did not answer within {timeout_s} s."
        answer: tuple[Any, str | None] = pickle.loads(self._pipe.recv_bytes())
        self.is_free = True
        return answer


_servers: list[ForkServer] = []


def servers(count: int) -> list[ForkServer]:
    """Return the first servers, which are the same for all tests that leave them free."""
    for server in [server for server in _servers if not server.is_free]:
        server.close()
        _servers.remove(server)
    while len(_servers) < count:
        _servers.append(ForkServer())
    return _servers[:count]


def _serve(pipe: Connection) -> None:
    # numpy's and torch's libraries start their threads when they are imported
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in _IMPORTED:
        import_module(name)
    context = multiprocessing.get_context("fork")
    while True:
        try:
            request = pipe.recv_bytes()
        except EOFError:
            return
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_main, args=(sender, request))
        process.start()
        sender.close()
        if receiver in wait([receiver, pipe]):  # the other one only speaks when it is closed
            try:
                answer = receiver.recv_bytes()
            except EOFError:
                process.join()
                answer = pickle.dumps((None, f"It ended with exit code {process.exitcode}."))
            process.join(timeout=10)
            pipe.send_bytes(answer)
        process.kill()
        process.join()
        receiver.close()


def _main(sender: Connection, request: bytes) -> None:
    import numpy
    import torch

    numpy.random.seed()  # noqa: NPY002 - the global one, that all forks would have in one state
    torch.set_num_threads(1)
    try:
        environment, function, args = pickle.loads(request)
        os.environ.clear()
        os.environ.update(environment)
        # Plain pickle: multiprocessing would share a tensor's memory, which ends with the process.
        answer = pickle.dumps((function(*args), None))
    except Exception:
        answer = pickle.dumps((None, traceback.format_exc()))
    sender.send_bytes(answer)
