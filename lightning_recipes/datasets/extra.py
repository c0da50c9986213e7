"""The error for a data set whose package is not installed."""

__all__ = ["missing_extra"]


def missing_extra(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return an error that says how to install what ``what`` needs."""
    return ModuleNotFoundError(
        f"{what} needs the package {error.name}, which is not installed. "
        'Run: pip install "lightning-recipes[examples]"',
        name=error.name,
    )
