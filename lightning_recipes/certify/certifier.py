"""Run, kill, resume, compare."""

import platform
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import torch

import lightning_recipes
from lightning_recipes.certify.certificate import Certificate, Point
from lightning_recipes.certify.comparison import common_start, compare, first
from lightning_recipes.certify.points import default_points
from lightning_recipes.certify.report import Report
from lightning_recipes.certify.run import Run

__all__ = ["CannotCertify", "Certifier"]

_KILLED = -9
_NOT_OF_THE_RUN = {"kind", "moment", "step", "epoch", "resumed_at_moment", "global_step"}


class CannotCertify(Exception):  # noqa: N818 - not an error of the package
    """The run itself failed, or did not reach a point.

    Args:
        message: What happened.
        tail: The last lines of the run's output.
    """

    def __init__(self, message: str, tail: str = "") -> None:
        super().__init__(message)
        self.tail = tail


@final
class Certifier:
    """Runs what a certificate needs, in a folder.

    Args:
        arguments: The user's arguments of ``fit``.
        folder: For everything that is written.
        report: Is told how far it is.
        at: Steps in which to kill, from 1; None for three that suit the run.
        ranks: Number of processes; None as configured.
        workers: ``num_workers`` of the data module; None as configured.
        ignore: Logged names that may differ.

    Raises:
        CannotCertify: The uninterrupted run failed, or one did not reach its point.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        report: Report,
        at: Sequence[int] | None = None,
        ranks: int | None = None,
        workers: int | None = None,
        ignore: Sequence[str] = (),
    ) -> None:
        self._arguments = list(arguments)
        self._folder = folder
        self._report = report
        self._at = at
        self._ranks = ranks
        self._workers = workers
        self._ignore = list(ignore)
        self._num_steps: int | None = None

    def certify(self) -> Certificate:
        """Run everything and return the certificate."""
        whole = self._run("uninterrupted", root="root")
        if status := self._execute(whole, "uninterrupted"):
            raise CannotCertify(f"The uninterrupted run ended with status {status}.", whole.tail())
        expected = whole.records(ignore=self._ignore)
        steps = [record["step"] for record in expected[0] if record["kind"] == "step"]
        if not steps:
            raise CannotCertify("The uninterrupted run made no step.", whole.tail())
        self._num_steps = max(steps)
        points = sorted(set(self._at or default_points(expected[0])))
        if points[-1] > self._num_steps:
            raise CannotCertify(
                f"--at {points[-1]} lies beyond the last step of the run, {self._num_steps}."
            )
        start = expected[0][0]
        facts = {key: value for key, value in start.items() if key not in _NOT_OF_THE_RUN}
        return Certificate(
            versions=_versions(),
            options={
                "arguments": self._arguments,
                "at": points,
                "ranks": self._ranks,
                "workers": self._workers,
                "ignore": self._ignore,
            },
            run={**facts, "steps": self._num_steps},
            points=[self._point(step, expected) for step in points],
        )

    def _point(self, step: int, expected: list[list[dict[str, Any]]]) -> Point:
        root = f"step{step}/root"
        killed = self._run(f"step{step}/killed", root=root, kill_in_step=step)
        status = self._execute(killed, f"killed in step {step}", num_steps=step)
        if status != _KILLED:
            raise CannotCertify(
                f"The run that was to be killed in step {step} ended with status {status}.",
                killed.tail(),
            )
        checkpoint = killed.newest_checkpoint()
        resumed = self._run(f"step{step}/resumed", root=root, ckpt_path=checkpoint)
        status = self._execute(resumed, f"resumed after {step}")
        before = compare(*common_start(expected, killed.records(ignore=self._ignore)))
        found = resumed.records(ignore=self._ignore)
        has_begun = len(found) == len(expected) and all(found)
        if not status and not has_begun:
            raise CannotCertify(f"The run resumed after {step} recorded nothing.", resumed.tail())
        start = found[0][0] if has_begun else {"resumed_at_moment": 0, "global_step": 0}
        after = start["resumed_at_moment"]
        point = Point(
            killed_in_step=step,
            checkpoint=str(checkpoint.relative_to(killed.root)) if checkpoint else None,
            resumed_after_step=start["global_step"],
            num_batches=_count(expected[0], "batch", after),
            num_rows=_count(expected[0], "row", after),
            before_kill=first(list(before.values())),
            differences=compare(expected, found, after_moment=after) if has_begun else {},
            failure=f"Exit status {status}.\n{resumed.tail()}" if status else None,
        )
        shutil.rmtree(killed.root)
        return point

    def _run(self, name: str, *, root: str, **kwargs: Any) -> Run:
        return Run(
            self._arguments,
            folder=self._folder / name,
            root=self._folder / root,
            ranks=self._ranks,
            workers=self._workers,
            **kwargs,
        )

    def _execute(self, run: Run, name: str, *, num_steps: int | None = None) -> int:
        with self._report.progress(name, num_steps or self._num_steps) as on_progress:
            return run.execute(on_progress)


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": version("lightning"),
        "lightning_recipes": lightning_recipes.__version__,
    }


def _count(records: Sequence[dict[str, Any]], kind: str, after: int) -> int:
    return sum(record["kind"] == kind and record["moment"] > after for record in records)
