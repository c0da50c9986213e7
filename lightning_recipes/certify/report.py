"""What a person sees of a certificate: progress while it is made, a table at the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lightning_recipes.certify.certificate import Certificate, Point
from lightning_recipes.certify.comparison import QUANTITIES

__all__ = ["Report"]


class Report:
    """Writes to a terminal, or line by line to whatever is not one.

    Args:
        console: Where to write.
    """

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def progress(
        self, name: str, num_steps: int | None
    ) -> Iterator[Callable[[int, int | None], None]]:
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
            self._say("[green]Identical:[/green] every resumed run is the run that never stopped.")
            return
        if worst.failure is not None:
            self.console.print(worst.failure, markup=False, highlight=False)
            self._say(
                f"[red]The run killed in step {worst.killed_in_step} cannot be resumed.[/red]"
            )
        if worst.first_difference is not None:
            when = "before the kill, at " if worst.before_kill else "at "
            text = escape(f"{when}{worst.first_difference}.")
            self._say(f"[red]First difference[/red], killed in step {worst.killed_in_step}: {text}")
        self._say(escape(certificate.advice))

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False)


def _table(certificate: Certificate) -> Table:
    table = Table(title="Killed, resumed, and compared with the uninterrupted run")
    table.add_column("killed in step", justify="right")
    table.add_column("resumed after step", justify="right")
    table.add_column("batches compared", justify="right")
    for quantity in QUANTITIES:
        table.add_column(quantity, justify="center")
    for point in certificate.points:
        start = f"{point.resumed_after_step}" if point.checkpoint else "none: anew"
        cells = [_cell(point, quantity) for quantity in QUANTITIES]
        table.add_row(f"{point.killed_in_step}", start, f"{point.num_batches}", *cells)
    return table


def _cell(point: Point, quantity: str) -> str:
    difference = point.differences.get(quantity)
    if difference is not None:
        return f"[red]step {difference.step}[/red]"
    return "[red]failed[/red]" if point.failure is not None else "[green]✓[/green]"
