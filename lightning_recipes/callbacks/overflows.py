"""When the overflows of float16 are no longer what the loss scale is for."""

__all__ = ["Overflows"]


class Overflows:
    """Counts the steps that a GradScaler skips because gradients overflowed.

    The scale begins too high on purpose and halves at each overflow, so some are normal. It has
    collapsed if it falls below a floor, or if they do not end.

    Args:
        min_loss_scale: The floor.
        max_overflows: How many in a row are too many.

    Attributes:
        count: All of them.
        in_a_row: Those since the last step without one.
    """

    def __init__(self, *, min_loss_scale: float, max_overflows: int) -> None:
        if not min_loss_scale > 0:
            raise ValueError(f"min_loss_scale must be > 0, got {min_loss_scale}.")
        if max_overflows < 1:
            raise ValueError(f"max_overflows must be >= 1, got {max_overflows}.")
        self.min_loss_scale = min_loss_scale
        self.max_overflows = max_overflows
        self.count = 0
        self.in_a_row = 0

    def add(self, scale: float) -> str | None:
        """Count one at this scale; return what is wrong once the scale has collapsed."""
        self.count += 1
        self.in_a_row += 1
        if scale >= self.min_loss_scale and self.in_a_row < self.max_overflows:
            return None
        return (
            f"The loss scale of float16 has collapsed: it is {scale:g} (min_loss_scale is "
            f"{self.min_loss_scale:g}) after {self.in_a_row} overflows in a row (max_overflows is "
            f"{self.max_overflows}). A smaller one will not help: train in bfloat16, or mend what "
            "is named here"
        )
