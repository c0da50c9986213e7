"""How a run ends that was asked to make room."""

__all__ = ["Preempted"]


class Preempted(SystemExit):
    """The run was asked to stop, saved itself, and goes on from its newest file when resumed.

    A ``SystemExit``: a script that does not catch it ends with its ``code``, which is 75 (the
    ``EX_TEMPFAIL`` of ``sysexits.h``: try again later), in a shell::

        until python train.py; do [ $? -eq 75 ] || break; done

    Raised by ``trainer.fit`` on all ranks. Only where Lightning itself started the other processes
    of a machine do these end with 0: it kills the first process as soon as another one fails.
    ``lightning-recipes run`` ends with 75, too, and ``torchrun`` with 1.

    Args:
        reason: The name of the signal, or "max_wall_time".
        path: The file to resume from; None where there is nothing to resume.
        code: The exit code of the process.

    Attributes:
        reason: As above.
        path: As above.
        code: As above.
    """

    def __init__(self, reason: str, path: str | None, code: int = 75) -> None:
        super().__init__(code)
        self.reason = reason
        self.path = path

    def __reduce__(self) -> tuple[type["Preempted"], tuple[str, str | None, int]]:
        return Preempted, (self.reason, self.path, int(str(self.code)))

    def __str__(self) -> str:
        where = "nothing was trained yet" if self.path is None else f"resume from {self.path}"
        return f"Preempted by {self.reason}: {where}. Exit code {self.code}."
