import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import forks
from tests.forks import ForkServer

calls: list[int] = []


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


def note() -> tuple[list[int], int, int]:
    calls.append(os.getpid())
    return calls, len(os.listdir("/proc/self/task")), threading.active_count()


def test_each_call_has_a_process_and_modules_of_its_own(server: ForkServer) -> None:
    pids = set()
    for _ in range(2):
        server.start(note)
        (noted, *threads), error = server.answer(60)
        assert error is None
        assert threads == [1, 1]
        pids.update(noted)
    assert len(pids - {os.getpid()}) == 2
    assert not calls


def variable() -> tuple[str | None, str | None]:
    return os.environ.get("OF_THIS_TEST"), os.environ.get("OMP_NUM_THREADS")


def test_the_environment_is_the_callers(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with monkeypatch.context() as patch:
        patch.setenv("OF_THIS_TEST", "1")
        server.start(variable)
        assert server.answer(60) == (("1", None), None)
    server.start(variable)
    assert server.answer(60) == ((None, None), None)


def hash_of_a_name() -> int:
    return hash("name")


@pytest.mark.skipif("PYTHONHASHSEED" in os.environ, reason="then all processes have the same")
def test_a_server_has_a_hash_seed_of_its_own(server: ForkServer) -> None:
    server.start(hash_of_a_name)
    assert server.answer(60)[0] != hash("name")


def draw() -> float:
    return float(np.random.rand())  # noqa: NPY002 - the global one


def test_forks_draw_different_numbers(server: ForkServer) -> None:
    drawn = set()
    for _ in range(2):
        server.start(draw)
        drawn.add(server.answer(60))
    assert len(drawn) == 2


def fail() -> None:
    raise ValueError("this is why")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_failure_and_death_are_told_and_the_server_lives(server: ForkServer) -> None:
    server.start(fail)
    _, error = server.answer(60)
    assert "in fail\n" in str(error)
    assert "ValueError: this is why" in str(error)
    server.start(die)
    assert server.answer(60) == (None, "It ended with exit code -9.")
    server.start(os.getpid)
    assert server.answer(60)[1] is None


def hang(note: Path) -> None:
    note.with_suffix(".part").write_text(str(os.getpid()))
    note.with_suffix(".part").rename(note)
    time.sleep(1000)


def test_what_does_not_answer_ends_with_its_server(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one of this module."""
    monkeypatch.setattr(forks, "_servers", [server])
    server.start(hang, tmp_path / "pid")
    while not (tmp_path / "pid").exists():
        time.sleep(0.01)
    assert server.answer(0.1) == (None, "It did not answer within 0.1 s.")
    pid = int((tmp_path / "pid").read_text())
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
    server.process.join()
    assert server.process.exitcode == 0
    monkeypatch.setattr(forks, "ForkServer", object)  # which starts no other
    assert server not in forks.servers(1)
