import os
import signal
import threading
from collections.abc import Iterator

import pytest

from lightning_recipes.callbacks import stop_signals
from lightning_recipes.callbacks.stop_signals import StopSignals


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    signals = StopSignals(("SIGTERM", "SIGUSR1"))
    yield signals
    signals.give_back()


def test_notes_the_first_and_gives_the_handlers_back(signals: StopSignals) -> None:
    def mine(*args: object) -> None: ...

    before = signal.signal(signal.SIGUSR1, mine)
    try:
        assert signals.take()
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGUSR1
        signals.give_back()
        assert signal.getsignal(signal.SIGUSR1) is mine
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        signals.forget()
        assert signals.received is None
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_was_left_to_someone_else_is_not_given_back(signals: StopSignals) -> None:
    before = signal.getsignal(signal.SIGTERM)
    signals.take()
    signals.leave()
    signals.give_back()
    assert signal.getsignal(signal.SIGTERM) == signals._hear
    signal.signal(signal.SIGTERM, before)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def exit_status(echo_s: float, *numbers: int, is_deaf: bool = False) -> int:
    """How a forked process ends that hears these signals."""
    pid = os.fork()
    if pid == 0:
        stop_signals._ECHO_S = echo_s
        signals = StopSignals(("SIGTERM", "SIGUSR1"))
        signals.take()
        signals.is_deaf = is_deaf
        for number in numbers:
            os.kill(os.getpid(), number)
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_same_signal_again_is_the_end() -> None:
    assert exit_status(0.0, signal.SIGTERM, signal.SIGTERM) == -signal.SIGTERM
    assert exit_status(0.0, signal.SIGUSR1, signal.SIGUSR1) == -signal.SIGUSR1
    # a launcher's echo; another signal, as SLURM sends SIGTERM after SIGUSR1; after the save
    assert exit_status(3600.0, signal.SIGTERM, signal.SIGTERM) == 7
    assert exit_status(0.0, signal.SIGUSR1, signal.SIGTERM) == 7
    assert exit_status(0.0, signal.SIGTERM, signal.SIGTERM, is_deaf=True) == 7


def test_a_forked_helper_can_be_terminated(signals: StopSignals) -> None:
    signals.take()
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    assert signals.received is None


def test_another_thread_hears_nothing(signals: StopSignals) -> None:
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(signals.take()))
    thread.start()
    thread.join()
    assert taken == [False]


def test_a_signal_that_the_platform_lacks_is_left_out(
    signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    monkeypatch.delattr(signal, "SIGUSR1")
    assert signals.take()
    assert signal.getsignal(signal.SIGTERM) == signals._hear
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGUSR1) == before


@pytest.mark.parametrize("names", [("SIGKILL",), ("SIGINT",), ("SIGTERM", "TERM"), "SIGTERM"])
def test_unknown_names_are_refused(names: tuple[str, ...] | str) -> None:
    with pytest.raises(ValueError, match=r"among SIGHUP, SIGTERM.*got '"):
        StopSignals(names)
