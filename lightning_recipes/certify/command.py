"""``lightning-recipes certify``: run, kill, resume, compare."""

import argparse
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import torch
from rich.console import Console

import lightning_recipes
from lightning_recipes.certify.certificate import Certificate, Point
from lightning_recipes.certify.comparison import common_start, compare, default_points, first
from lightning_recipes.certify.report import Report
from lightning_recipes.certify.run import Run

__all__ = ["CannotCertify", "Certifier", "main"]

_IDENTICAL, _DIFFERENT, _CANNOT_CERTIFY = 0, 1, 2
_KILLED = -9
_DESCRIPTION = """Is a run that is killed and resumed the run that was never stopped?

The configured training runs in processes of its own: once uninterrupted, then for every point
killed (SIGKILL, between backward and update of that step, all ranks at once) and resumed with the
same command and the newest checkpoint. Step by step, on every rank, it compares the batches (sample
ids where the loader tells them, and a digest), the random states, learning rates, weights, the
optimizer's state, and every row logged after the saved moment.

Everything is written to a temporary folder (TMPDIR); the configured loggers are replaced by one
that records. A ResumeCheckpoint in the configuration saves at every step, whatever its interval,
and none is added where there is none.

  lightning-recipes certify --config configs/digits.yaml --trainer.max_steps 60
  lightning-recipes certify --config configs/names.yaml --trainer.limit_train_batches 8 \\
      --trainer.max_epochs 2 --at 3,9 --ranks 2 --workers 2 --output certificate.json

All other options are those of "lightning-recipes fit"; shorten the run with --trainer.max_steps or
--trainer.limit_train_batches. Weights are digested at every step, so a small model is quicker.

Exit status: 0 identical, 1 a difference, 2 no certificate (the run itself failed)."""


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
    ) -> None:
        self._arguments = list(arguments)
        self._folder = folder
        self._report = report
        self._at = at
        self._options = {"ranks": ranks, "workers": workers}
        self._num_steps: int | None = None

    def certify(self) -> Certificate:
        """Run everything and return the certificate."""
        whole = self._run("uninterrupted", root="root")
        if status := self._execute(whole, "uninterrupted"):
            raise CannotCertify(f"The uninterrupted run ended with status {status}.", whole.tail())
        expected = whole.records()
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
        not_of_the_run = {"kind", "moment", "step", "epoch", "resumed_at_moment", "global_step"}
        facts = {key: value for key, value in start.items() if key not in not_of_the_run}
        return Certificate(
            versions=_versions(),
            options={"arguments": self._arguments, "at": points, **self._options},
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
        before = compare(*common_start(expected, killed.records()))
        found = resumed.records()
        after, num_steps = 0, 0
        if found and found[0]:
            after, num_steps = found[0][0]["resumed_at_moment"], found[0][0]["global_step"]
        is_comparable = len(found) == len(expected)
        point = Point(
            killed_in_step=step,
            checkpoint=str(checkpoint.relative_to(killed.root)) if checkpoint else None,
            resumed_after_step=num_steps,
            num_batches=_count(expected[0], "batch", after),
            num_rows=_count(expected[0], "row", after),
            before_kill=first(list(before.values())),
            differences=compare(expected, found, after_moment=after) if is_comparable else {},
            failure=f"Exit status {status}.\n{resumed.tail()}" if status else None,
        )
        shutil.rmtree(killed.root)
        return point

    def _run(self, name: str, *, root: str, **kwargs: Any) -> Run:
        return Run(
            self._arguments,
            folder=self._folder / name,
            root=self._folder / root,
            **self._options,
            **kwargs,
        )

    def _execute(self, run: Run, name: str, *, num_steps: int | None = None) -> int:
        with self._report.progress(name, num_steps or self._num_steps) as on_progress:
            return run.execute(on_progress)


def main(arguments: Sequence[str]) -> int:
    """Make a certificate, print it, write it, and return the exit status.

    Args:
        arguments: What follows ``lightning-recipes certify``.
    """
    parser = argparse.ArgumentParser(
        prog="lightning-recipes certify",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="lightning-recipes certify --config FILE [options of fit] [options below]",
    )
    parser.add_argument(
        "--at",
        type=_steps,
        metavar="3,7,12",
        help="optimizer steps, from 1, in which to kill; by default one in the middle of the first "
        "epoch, the first of the second, and one in the middle of that",
    )
    parser.add_argument(
        "--ranks",
        type=_number(1),
        help="processes: devices, with strategy ddp on the cpu unless configured otherwise",
    )
    parser.add_argument(
        "--workers", type=_number(0), help="num_workers of a data module that has that argument"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("certificate.json"), help="default: %(default)s"
    )
    options, rest = parser.parse_known_args(arguments)
    report = Report(Console())
    folder = Path(tempfile.mkdtemp(prefix="certify-"))
    try:
        certificate = Certifier(
            rest,
            folder=folder,
            report=report,
            at=options.at,
            ranks=options.ranks,
            workers=options.workers,
        ).certify()
    except CannotCertify as failure:
        report.failure(f"{failure} Everything is in {folder}.", failure.tail)
        return _CANNOT_CERTIFY
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(certificate.to_json() + "\n", encoding="utf-8")
    report.certificate(certificate)
    report.console.print(f"Certificate: {options.output}", highlight=False)
    return _IDENTICAL if certificate.is_identical else _DIFFERENT


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": version("lightning"),
        "lightning_recipes": lightning_recipes.__version__,
    }


def _count(records: Sequence[dict[str, Any]], kind: str, after: int) -> int:
    return sum(record["kind"] == kind and record["moment"] > after for record in records)


def _steps(text: str) -> list[int]:
    return [_number(1)(part) for part in text.split(",")]


def _number(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be >= {least}, got {value}")
        return value

    return number
