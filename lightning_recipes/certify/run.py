"""One run of a certificate in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from lightning_recipes.certify.worker import WorkerSettings

__all__ = ["Run"]

_POLL_S = 0.1
_RANKS_END_WITHIN_S = 10.0
_NUM_TAIL_LINES = 30


@final
class Run:
    """``lightning-recipes fit`` under observation, with a root of its own.

    Args:
        arguments: The user's arguments of ``fit``.
        folder: For the records and the output.
        root: Becomes ``trainer.default_root_dir``.
        ckpt_path: From where to go on; None for the arguments as they are.
        kill_in_step: The step, from 1, in which it kills itself; None for none.
        ranks: Number of processes; None as configured.
        workers: ``num_workers`` of the data module; None as configured.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        root: Path,
        ckpt_path: Path | None = None,
        kill_in_step: int | None = None,
        ranks: int | None = None,
        workers: int | None = None,
    ) -> None:
        self.folder = folder
        self.root = root
        self.output = folder / "output.txt"
        self._settings = WorkerSettings(
            records=str(folder), kill_in_step=kill_in_step, ranks=ranks, workers=workers
        )
        worker = [sys.executable, "-m", "lightning_recipes.certify.worker", "fit", *arguments]
        resume = [] if ckpt_path is None else ["--ckpt_path", str(ckpt_path)]
        self._command = [*worker, "--trainer.default_root_dir", str(root), *resume]

    def execute(self, on_progress: Callable[[int, int | None], None]) -> int:
        """Run it, and return its exit status, ``-9`` after a kill.

        Args:
            on_progress: Called with the steps done and their number, None while that is not known.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._settings.to_environment()},
                # A process group of its own, with all ranks and data workers, to be killed as one.
                start_new_session=True,
            )
            try:
                self._watch(process, on_progress)
                if process.returncode == 0:
                    self._wait_for_all_ranks()
            finally:
                # Also after Ctrl-C, and where a rank outlives the first one.
                _kill_group(process)
        return process.returncode

    def records(self, *, ignore: Sequence[str] = ()) -> list[list[dict[str, Any]]]:
        """Return the records, rank by rank; a line that a kill cut short is left out.

        Args:
            ignore: Logged names to leave out.
        """
        paths = sorted(self.folder.glob("rank*.jsonl"), key=lambda path: int(path.stem[4:]))
        ranks = [_read(path) for path in paths]
        for values in (r["values"] for records in ranks for r in records if r["kind"] == "row"):
            for name in ignore:
                values.pop(name, None)
        return ranks

    def newest_checkpoint(self) -> Path | None:
        """Return the newest file to resume from, None if there is none.

        ``ResumeCheckpoint``'s newest, else whatever checkpoint was written last.
        """
        if own := sorted(self.root.glob("resume/step=*.ckpt")):
            return own[-1]
        others = self.root.rglob("*.ckpt")
        return max(others, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)

    def tail(self) -> str:
        """Return the last lines of the output, without what progress bars overwrote."""
        text = self.output.read_text(encoding="utf-8", errors="replace")
        lines = [line.rpartition("\r")[2] for line in text.split("\n")]
        return "\n".join([line for line in lines if line.strip()][-_NUM_TAIL_LINES:])

    def _wait_for_all_ranks(self) -> None:
        """The first rank, whose end is awaited, may be a little ahead of the others."""
        deadline = time.monotonic() + _RANKS_END_WITHIN_S
        while time.monotonic() < deadline:
            if all(records and records[-1]["kind"] == "end" for records in self.records()):
                return
            time.sleep(_POLL_S)

    def _watch(
        self, process: "subprocess.Popen[bytes]", on_progress: Callable[[int, int | None], None]
    ) -> None:
        path, position, total = self.folder / "rank0.jsonl", 0, None
        while process.poll() is None:
            time.sleep(_POLL_S)
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(position)
                lines = file.readlines()
            complete = [line for line in lines if line.endswith(b"\n")]
            position += sum(map(len, complete))
            for line in complete:
                record = json.loads(line)
                total = record.get("total_steps", total)
                if record["kind"] == "step":
                    on_progress(record["step"], total)


def _read(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
