"""The command line of ``lightning-recipes certify``."""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lightning_recipes.arguments import at_least
from lightning_recipes.certify.certifier import CannotCertify, Certifier
from lightning_recipes.certify.report import Report

__all__ = ["main"]

_IDENTICAL, _DIFFERENT, _CANNOT_CERTIFY = 0, 1, 2
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
        type=at_least(1),
        help="processes: devices, with strategy ddp on the cpu unless configured otherwise",
    )
    parser.add_argument(
        "--workers", type=at_least(0), help="num_workers of a data module that has that argument"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("certificate.json"), help="default: %(default)s"
    )
    parser.add_argument(
        "--ignore",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME,NAME",
        help="logged names that may differ, such as times",
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
            ignore=options.ignore,
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


def _steps(text: str) -> list[int]:
    return [at_least(1)(part) for part in text.split(",")]
