"""What a person sees of a certificate: progress while it is made, a table at the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lightning_recipes.certify.certificate import Certificate, Point
from lightning_recipes.certify.comparison import Difference

__all__ = ["Report"]

_COUNTS = ("num_batches", "num_rows")
OnProgress = Callable[[int, int | None], None]


class Report:
    """Writes to a terminal, or line by line to whatever is not one.

    Args:
        console: Where to write.
    """

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def progress(self, name: str, num_steps: int | None) -> Iterator[OnProgress]:
        """Show a bar for one run; yield what to call with the steps done and their number."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(f"{name:<22}", total=num_steps)

            def update(step: int, total: int | None) -> None:
                progress.update(task, completed=step, total=num_steps or total)

            yield update

    def failure(self, message: str, tail: str) -> None:
        """Show why there is no certificate, and the end of what the run printed."""
        self.console.print(tail, markup=False, highlight=False)
        self.console.print(f"[red]{escape(message)}[/red]", highlight=False)

    def certificate(self, certificate: Certificate) -> None:
        """Show the table, and below it the first difference and what to do about it."""
        self.console.print(_table(certificate))
        worst = certificate.worst
        if worst is None:
            if not any(point.checkpoint for point in certificate.points):
                self._say("No checkpoint had been written before any kill: all runs began anew.")
            batches, rows = (sum(getattr(p, n) for p in certificate.points) for n in _COUNTS)
            self._say(
                "[green]Identical:[/green] every resumed run is the run that never stopped, in "
                f"{batches} batches and {rows} rows compared."
            )
            return
        if worst.failure is not None:
            self.console.print(worst.failure, markup=False, highlight=False)
            self._say(
                f"[red]The run killed in step {worst.killed_in_step} cannot be resumed.[/red]"
            )
        if worst.first_difference is not None:
            when = "even before the kill" if worst.before_kill else "after the resume"
            what = f"killed in step {worst.killed_in_step}, {when}: {worst.first_difference}."
            self._say(f"[red]First difference[/red], {escape(what)}")
        self._say(escape(certificate.advice))

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False)


def _table(certificate: Certificate) -> Table:
    table = Table(
        title="Killed, resumed, compared: ✓, or the first step that differs",
        box=SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("killed\nin step", justify="right")
    table.add_column("resumed\nafter", justify="right")
    for quantity in Difference.QUANTITIES:
        table.add_column(quantity.replace(" ", "\n"), justify="center", vertical="bottom")
    for point in certificate.points:
        start = f"{point.resumed_after_step}" if point.checkpoint else "anew"
        start = "[red]failed[/red]" if point.failure is not None else start
        cells = [_cell(point, quantity) for quantity in Difference.QUANTITIES]
        table.add_row(f"{point.killed_in_step}", start, *cells)
    return table


def _cell(point: Point, quantity: str) -> str:
    difference = point.differences.get(quantity)
    if difference is not None:
        return f"[red]{difference.step}[/red]"
    return "[red]-[/red]" if point.failure is not None else "[green]✓[/green]"
