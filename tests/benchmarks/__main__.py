"""All questions one after the other: ``python -m tests.benchmarks [--quick] [--json FILE]``.

Each runs in a process of its own, as ``python -m tests.benchmarks.NAME`` does, so that none finds
memory, caches or imports of another. In under 15 minutes on two cores; with ``--quick``, which has
fewer rounds, smaller data and not every table, in two. The peers are ``pip install
"lightning-recipes[bench]"``; what is not installed is told as such.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

QUESTIONS = ("step", "loader", "collate", "padding", "resume", "checkpoints", "scaling", "startup")


def ask(question: str, options: list[str]) -> dict[str, Any]:
    """Run one script and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "figures.json")
        command = [sys.executable, "-m", f"tests.benchmarks.{question}", "--json", str(path)]
        subprocess.run([*command, *options], check=True)
        report: dict[str, Any] = json.loads(path.read_text())
        return report


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = ", ".join(QUESTIONS)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"of {known}; or all")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    if unknown := set(options.questions) - set(QUESTIONS):
        parser.error(f"unknown questions {sorted(unknown)}: choose from {known}")
    start = time.perf_counter()
    reports = {}
    for question in options.questions or QUESTIONS:
        print(f"=== {question} (after {time.perf_counter() - start:.0f} s)\n", flush=True)
        reports[question] = ask(question, ["--quick"] * options.quick)
    print(f"=== all (after {time.perf_counter() - start:.0f} s)")
    if options.json is not None:
        first, *_ = reports.values()
        report = {**first, "tables": {name: report["tables"] for name, report in reports.items()}}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
