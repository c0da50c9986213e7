import json
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from lightning_recipes import Preempted, ResumeCheckpoint
from lightning_recipes.callbacks import stop_signals
from tests.callbacks.preemptible import Kick, fit, weights
from tests.commands import ROOT


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return weights(fit(tmp_path_factory.mktemp("whole")))


def assert_same(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("moment", "step", "saved"),
    [
        ("setup", 0, 0),
        ("sanity check", 0, 0),
        ("train start", 0, 0),
        ("batch", 0, 1),
        ("batch end", 4, 4),
        ("batch", 8, 9),
        ("validation", 6, 6),
        ("epoch end", 12, 12),
    ],
)
def test_goes_on_as_if_never_stopped(
    moment: str, step: int, saved: int, tmp_path: Path, whole: dict[str, Tensor]
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted) as caught:
        fit(tmp_path, Kick(moment, step))
    path = tmp_path / "resume" / f"step={saved:09d}.ckpt"
    stop = caught.value
    assert (stop.reason, stop.path, stop.code) == ("SIGTERM", str(path), 75)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert_same(weights(fit(tmp_path, ckpt_path=str(path))), whole)


@pytest.mark.parametrize(
    ("step", "saved"), [pytest.param(0, 1, id="first"), pytest.param(4, 5, id="later")]
)
def test_waits_for_the_end_of_an_accumulation_window(step: int, saved: int, tmp_path: Path) -> None:
    # six batches in windows of four and two; the step counts when a window ends
    options: dict[str, Any] = {"accumulate_grad_batches": 4}
    whole = fit(tmp_path / "whole", **options)
    with pytest.raises(Preempted) as caught:
        fit(tmp_path, Kick("batch", step), **options)
    path = str(tmp_path / "resume" / f"step={saved:09d}.ckpt")
    assert caught.value.path == path
    assert_same(weights(fit(tmp_path, ckpt_path=path, **options)), weights(whole))


def test_before_the_first_resumed_batch_the_file_is_the_one_resumed_from(tmp_path: Path) -> None:
    with pytest.raises(Preempted) as first:
        fit(tmp_path, Kick("batch", 8))
    path = Path(str(first.value.path))
    content = path.read_bytes()
    with pytest.raises(Preempted) as second:
        fit(tmp_path / "second", Kick("train start", 9), ckpt_path=str(path))
    assert second.value.path == str(path)
    assert path.read_bytes() == content
    assert not (tmp_path / "second" / "resume").exists()


def test_too_late_to_stop(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    trainer = fit(tmp_path, Kick("epoch end", 18))
    assert trainer.state.finished
    assert_same(weights(trainer), whole)
    assert (tmp_path / "resume" / "step=000000018.ckpt").is_file()


def test_time_is_up(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    # a minute is the least margin, so this is over before it begins
    with pytest.raises(Preempted) as caught:
        fit(tmp_path, resume={"max_wall_time": "00:01:00", "signals": ()})
    assert caught.value.reason == "max_wall_time"
    path = str(tmp_path / "resume" / "step=000000000.ckpt")
    assert caught.value.path == path
    ample = {"max_wall_time": "1-00:00:00"}
    assert_same(weights(fit(tmp_path, ckpt_path=path, resume=ample)), whole)


def test_other_signals_and_none(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with pytest.raises(Preempted) as caught:
        fit(
            tmp_path,
            Kick("batch", 2, number=signal.SIGUSR2),
            resume={"signals": ["SIGHUP", "SIGUSR2"]},
        )
    assert caught.value.reason == "SIGUSR2"
    assert signal.getsignal(signal.SIGUSR2) == before

    class Look(Callback):
        def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
            handlers.append(signal.getsignal(signal.SIGUSR1))
            asks.append("_broadcast_sigterm_tensor" not in vars(trainer.fit_loop.epoch_loop))

    for signals in ((), ("SIGTERM", "SIGUSR1")):
        handlers: list[Any] = []
        asks: list[bool] = []
        trainer = fit(tmp_path, Look(), resume={"signals": signals}, max_epochs=1)
        assert (set(handlers) == {signal.SIG_DFL}) is not bool(signals)
        assert set(asks) == {not signals}  # whether Lightning asks rank 0 for SIGTERM
        assert "_broadcast_sigterm_tensor" not in vars(trainer.fit_loop.epoch_loop)


@pytest.mark.parametrize("moment", ["setup", "batch"])
def test_handlers_come_back_after_an_exception(moment: str, tmp_path: Path) -> None:
    class Fail(Kick):
        def _kick(self, now: str, trainer: Trainer) -> None:
            if now == self.moment:
                during.append(signal.getsignal(signal.SIGTERM))
                raise RuntimeError("mine")

    def mine(*args: Any) -> None: ...

    during: list[Any] = []
    before = signal.signal(signal.SIGTERM, mine)
    try:
        with pytest.raises(RuntimeError, match="mine"):
            fit(tmp_path, Fail(moment))
        assert during != [mine]
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
        fit(tmp_path, max_epochs=1)
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_end_is_not_disturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Kick):
        def on_exception(self, *args: Any) -> None:
            # as from a launcher that saw another rank end, while loggers finish
            monkeypatch.setattr(stop_signals, "_ECHO_S", 0)
            os.kill(os.getpid(), signal.SIGTERM)
            trainers.append(args[0])

    trainers: list[Trainer] = []
    with pytest.raises(Preempted):
        fit(tmp_path, Late("batch", 2))
    assert not trainers[0].received_sigterm


def test_the_same_callback_goes_on(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    first = ResumeCheckpoint(every_n_minutes=None)
    with pytest.raises(Preempted) as caught:
        fit(tmp_path, Kick("batch", 2), first=first)
    trainer = fit(tmp_path, ckpt_path=caught.value.path, first=first)
    assert_same(weights(trainer), whole)


def test_in_another_thread_it_warns(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool, pytest.warns(UserWarning, match="hears no signals"):
        pool.submit(fit, tmp_path, max_epochs=1).result()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SLURM job of one task, and the file that takes down what scontrol is asked."""
    asked, scontrol = tmp_path / "asked", tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
    task = {"JOB_ID": "1234", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
    for name, value in {**task, "JOB_NAME": "train"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    asked.touch()
    return asked


@pytest.mark.parametrize(
    ("number", "auto_requeue", "expected"),
    [
        (signal.SIGUSR1, True, "requeue 1234\n"),
        (signal.SIGUSR1, False, ""),
        (signal.SIGTERM, True, ""),
    ],
)
def test_slurm_puts_the_job_back(
    number: int, auto_requeue: bool, expected: str, slurm: Path, tmp_path: Path
) -> None:
    environment = SLURMEnvironment(auto_requeue=auto_requeue)
    with pytest.raises(Preempted) as caught:
        fit(tmp_path, Kick("batch", 3, number=number), plugins=[environment])
    assert caught.value.path == str(tmp_path / "resume" / "step=000000004.ckpt")
    assert slurm.read_text() == expected
    assert not list(tmp_path.glob("hpc_ckpt*"))


def test_slurm_puts_an_element_of_an_array_back_in_time(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "5")
    with pytest.raises(Preempted):
        fit(tmp_path, resume={"max_wall_time": 1}, plugins=[SLURMEnvironment()])
    assert slurm.read_text() == "requeue 77_5\n"


def test_the_exception_survives_pickling() -> None:
    stop = pickle.loads(pickle.dumps(Preempted("SIGTERM", "a.ckpt")))
    assert (stop.reason, stop.path, stop.code) == ("SIGTERM", "a.ckpt", 75)


class Job:
    """A job in a process group of its own, like a scheduler's."""

    def __init__(self, root: Path, kick: str, *launcher: str, **options: Any) -> None:
        module = ["-m", "tests.callbacks.preemptible", str(root), kick, json.dumps(options)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, *launcher, *module],
            env=environment,
            cwd=ROOT,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Wait; return the exit code and the output, when no process is left of the group."""
        try:
            # the pipe ends with the last process that holds it
            output, _ = self.process.communicate(timeout=100)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode, output


def steps(root: Path) -> list[int]:
    return sorted(int(path.stem[len("step=") :]) for path in (root / "resume").glob("*.ckpt"))


def test_a_process_ends_with_its_code_and_its_workers(tmp_path: Path) -> None:
    code, output = Job(tmp_path, "batch end:8:0", num_workers=2).end()
    assert code == 75, output
    assert f"Preempted by SIGTERM: resume from {tmp_path}" in output
    assert "Traceback" not in output
    # the rows of the log are on disk
    (rows,) = (tmp_path / "lightning_logs").glob("version_0/metrics.csv")
    assert len(rows.read_text().splitlines()) > 8
    assert steps(tmp_path) == [8]
    code, output = Job(tmp_path, "none:0:0", num_workers=2).end()
    assert code == 0, output
    assert_same(*torch.load(tmp_path / "end.pt"))


TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone")
RANKS = {"devices": 2, "strategy": "ddp"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kick", "launcher", "code"),
    [
        pytest.param("batch end:3:1", (), 75, id="to rank 1"),
        pytest.param("validation:6:0:launcher", TORCHRUN, 1, id="to torchrun"),
        pytest.param("epoch end:6:0", (), 75, id="to rank 0", marks=pytest.mark.slow),
        pytest.param("batch:4:1", TORCHRUN, 1, id="to torchrun's 1", marks=pytest.mark.slow),
    ],
)
def test_ranks_stop_together_and_go_on(
    kick: str, launcher: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    found, output = Job(tmp_path, kick, *launcher, **RANKS).end()
    assert found == code, output
    assert output.count("Preempted by SIGTERM") == 1, output
    assert len(steps(tmp_path)) == 1
    # Lightning would kill rank 0 in the middle of its end if the rank that it started failed
    codes = [(tmp_path / f"code-{rank}").read_text() for rank in range(2)]
    assert codes == (["75", "75"] if launcher else ["75", "0"])
    found, output = Job(tmp_path, "none:0:0", *launcher, **RANKS).end()
    assert found == 0, output
    assert_same(*torch.load(tmp_path / "end.pt"))
