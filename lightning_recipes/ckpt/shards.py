"""A checkpoint in a folder: shards of ``torch.distributed.checkpoint``, and ``meta.pt``."""

import io
import re
from pathlib import Path
from typing import Any

import torch

from lightning_recipes.ckpt.archive import check_archive, load_archive
from lightning_recipes.ckpt.broken import BrokenCheckpoint
from lightning_recipes.ckpt.finite import nonfinite_weight
from lightning_recipes.ckpt.metadata import Piece, ShardMetadata

__all__ = ["check_shards_finite", "read_shards"]

_METADATA, _META = ".metadata", "meta.pt"
_WEIGHTS = ("model.", "state_dict.")  # as FSDPStrategy and ModelParallelStrategy call them


def read_shards(folder: Path) -> dict[str, Any]:
    """Return what a folder holds in the form of an ordinary checkpoint.

    The shards are looked at from outside: every file that ``.metadata`` names is there, and long
    enough. Weights are tensors on the meta device, and of an optimizer only its presence is told.

    Raises:
        BrokenCheckpoint: A file is missing, too short or damaged, or a value lies nowhere.
    """
    metadata = _metadata(folder)
    _check_shards(folder, metadata)
    try:
        checkpoint = load_archive(folder / _META)
    except FileNotFoundError:
        raise BrokenCheckpoint(folder, f"it has shards, but not Lightning's {_META}") from None
    except BrokenCheckpoint as error:
        raise BrokenCheckpoint(folder, f"{_META}: {error.reason}") from error
    if not isinstance(checkpoint, dict):
        kind = type(checkpoint).__name__
        raise BrokenCheckpoint(folder, f"{_META} holds a {kind}, no dict")
    numbers = (re.match(r"optimizer_\d+", name) for name in metadata.names)
    optimizers = {number[0] for number in numbers if number}
    weights = {
        name.partition(".")[2]: tensor
        for name, tensor in metadata.tensors.items()
        if name.startswith(_WEIGHTS)
    }
    checkpoint |= {"state_dict": weights} if weights else {}
    return checkpoint | ({"optimizer_states": [{}] * len(optimizers)} if optimizers else {})


def check_shards_finite(folder: Path) -> None:
    """Read every piece of the weights: its checksum is right, and its numbers are finite.

    Raises:
        BrokenCheckpoint: Or it cannot be read, being transformed (compressed) by an extension.
    """
    for piece in _metadata(folder).pieces:
        if piece.name.startswith(_WEIGHTS):
            value = _read_piece(folder, piece)
            if found := nonfinite_weight({piece.name.partition(".")[2]: value}):
                raise BrokenCheckpoint(folder, found)


def _check_shards(folder: Path, metadata: ShardMetadata) -> None:
    needed: dict[str, int] = {}
    for piece in metadata.pieces:
        needed[piece.file] = max(needed.get(piece.file, 0), piece.offset + piece.length)
    for name, size in sorted(needed.items()):
        shard = folder / name
        if not shard.is_file():
            raise BrokenCheckpoint(folder, f"shard {name} is missing")
        if shard.stat().st_size < size:
            raise BrokenCheckpoint(
                folder, f"shard {name} is truncated: {shard.stat().st_size:,} of {size:,} bytes"
            )
    stored = {piece.name for piece in metadata.pieces}
    if lost := next((name for name in metadata.names if name not in stored), None):
        raise BrokenCheckpoint(folder, f"no shard holds {lost}")


def _metadata(folder: Path) -> ShardMetadata:
    path = folder / _METADATA
    if not path.is_file():
        raise BrokenCheckpoint(
            folder, f"a folder without {_METADATA}: no sharded checkpoint, or an unfinished one"
        )
    try:
        return ShardMetadata(path)
    except BrokenCheckpoint as error:
        raise BrokenCheckpoint(folder, f"{_METADATA}: {error.reason}") from error


def _read_piece(folder: Path, piece: Piece) -> Any:
    shard = folder / piece.file
    if piece.is_transformed:
        raise BrokenCheckpoint(folder, f"{piece.name} is transformed, its numbers cannot be read")
    try:
        with shard.open("rb") as file:
            file.seek(piece.offset)
            content = io.BytesIO(file.read(piece.length))
        check_archive(content, shard)
        content.seek(0)
        return torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # a file made by hand leads torch's reader to any exception
        reason = error.reason if isinstance(error, BrokenCheckpoint) else repr(error)
        raise BrokenCheckpoint(folder, f"{piece.name} in {piece.file}: {reason}") from error
