"""The error that says where a number stopped being finite."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lightning_recipes.nonfinite.finding import Finding

__all__ = ["NonFiniteError", "Origin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where it began on one rank.

    Attributes:
        rank: The rank.
        batch_idx: The batch of the epoch, 0-based; None if it is not known any more.
        micro_batch: Its place in the accumulation window, 0-based.
        num_micro_batches: How many the window has.
        findings: What is not finite there, the earliest first.
        capsule: The file that :func:`~lightning_recipes.replay` takes, or None.
    """

    rank: int
    batch_idx: int | None = None
    micro_batch: int = 0
    num_micro_batches: int = 1
    findings: list[Finding] = field(default_factory=list)
    capsule: str | None = None

    def __str__(self) -> str:
        place = "" if self.batch_idx is None else f", batch {self.batch_idx}"
        if self.num_micro_batches > 1:
            place += f" (micro-batch {self.micro_batch + 1} of {self.num_micro_batches})"
        lines = [f"rank {self.rank}{place}: began with {self.findings[0]}"]
        lines += [f"  then {finding}" for finding in self.findings[1:]]
        if self.capsule is not None:
            lines.append(f"  look at it: lightning_recipes.replay({self.capsule!r}, module)")
        return "\n".join(lines)


class NonFiniteError(RuntimeError):
    """Numbers are not finite; raised on all ranks at the same step, before it is taken.

    Attributes:
        step: The 0-based number of the optimizer step, i.e. how many were made before.
        epoch: The epoch, 0-based.
        origins: Where it began, one for each rank concerned, by rank; empty if it is not known.
    """

    def __init__(
        self, message: str, *, step: int, epoch: int, origins: list[Origin] | None = None
    ) -> None:
        super().__init__(message)
        self.step = step
        self.epoch = epoch
        self.origins = origins or []

    @property
    def ranks(self) -> list[int]:
        """Where it began."""
        return [origin.rank for origin in self.origins]

    @property
    def first(self) -> Finding | None:
        """The earliest finding on the first rank concerned."""
        return self.origins[0].findings[0] if self.origins else None

    def __reduce__(self) -> Any:
        facts: dict[str, Any] = {"step": self.step, "epoch": self.epoch, "origins": self.origins}
        return partial(type(self), **facts), self.args
