"""A file that holds what is needed to see a number go wrong again."""

import os
import pickle
import tempfile
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lightning_recipes.nonfinite.finding import Finding
from lightning_recipes.nonfinite.plain import from_plain, num_bytes, to_plain

__all__ = ["Capsule", "check_folder"]

_VERSION = 1
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Capsule:
    """One micro-batch, and everything of the moment that its training step depended on.

    Attributes:
        step: The 0-based number of the optimizer step.
        epoch: The epoch, 0-based.
        batch_idx: The batch of the epoch, 0-based.
        rank: The rank.
        batch: As ``training_step`` got it.
        rng: As :func:`~lightning_recipes.capture_rng_state` returned it before the step.
        autocast: The dtype of mixed precision, e.g. ``"float16"``, or None.
        loss_scale: What the loss was multiplied by before the backward pass, or None.
        weights: The module's ``state_dict``, or None where it would have been too large.
        findings: What was not finite.
    """

    step: int
    epoch: int
    batch_idx: int
    rank: int
    batch: Any
    rng: dict[str, Any]
    autocast: str | None = None
    loss_scale: float | None = None
    weights: dict[str, Any] | None = None
    findings: list[Finding] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write plain types and tensors, for the owner's eyes only (mode 0600).

        The weights are left out where the file would be larger than 1 GiB with them.

        Raises:
            TypeError: The batch holds something that is not plain.
            ValueError: The batch alone is larger than that.
            OSError: It cannot be written.
        """
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        content["batch"] = to_plain(self.batch)
        content["findings"] = [asdict(finding) for finding in self.findings]
        size = num_bytes(content["batch"])
        if size > _MAX_BYTES:
            raise ValueError(f"the batch has {size:,} bytes, more than {_MAX_BYTES:,}")
        if size + num_bytes(self.weights or {}) > _MAX_BYTES:
            content["weights"] = None
        content["weights"] = to_plain(content["weights"])
        # Made by this process, so that nobody else has it open: it holds the user's data.
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            torch.save({"version": _VERSION, **content}, file)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Capsule":
        """Read a file, without running anything from it.

        Raises:
            ValueError: It is no capsule, or one of another version.
            OSError: It cannot be read.
        """
        content = _load(path)
        version = content.pop("version", None) if isinstance(content, dict) else None
        if type(version) is not int or version != _VERSION:
            raise ValueError(
                f"{path} is no capsule of version {_VERSION} (found {version!r}): give the file "
                "that NaNDetector(capsule_dir=...) wrote."
            )
        content["batch"] = from_plain(content["batch"])
        content["findings"] = [Finding(**finding) for finding in content["findings"]]
        return cls(**content)


def _load(path: str | os.PathLike[str]) -> Any:
    """Return what is in a file; None if torch did not write it, or not plain types."""
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            return None  # which torch.load would try to read as a pickle, with any error
        file.seek(0)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError):
            return None


def check_folder(folder: str) -> None:
    """Make the folder of capsules, before there is one to write.

    Raises:
        ValueError: It cannot be written.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"capsule_dir must be a folder that can be written, got {folder!r} ({error})."
        ) from error
