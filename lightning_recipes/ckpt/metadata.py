"""The ``.metadata`` of ``torch.distributed.checkpoint``, read without running anything from it.

torch reads that file with ``pickle.load``, which runs whatever the file says. Here its instructions
are looked through first, so that only those are left which build plain containers and records; and
a record is of a stand-in class that does nothing, whatever class the file names.
"""

import io
import pickle
import pickletools
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import torch

from lightning_recipes.ckpt.broken import BrokenCheckpoint

__all__ = ["Piece", "ShardMetadata"]

# Those with which pickle's protocols 4 and 5 write records and containers. Not among them are the
# ones that can make a short file ask for a lot of memory.
_INSTRUCTIONS = (
    "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINUNICODE BUILD EMPTY_DICT EMPTY_LIST "
    "EMPTY_TUPLE FRAME LONG1 LONG_BINGET MARK MEMOIZE NEWFALSE NEWOBJ NEWTRUE NONE PROTO REDUCE "
    "SETITEM SETITEMS SHORT_BINUNICODE STACK_GLOBAL STOP TUPLE TUPLE1 TUPLE2 TUPLE3"
)
_CHECKPOINT = "torch.distributed.checkpoint"
_RECORDS = {
    *(
        (f"{_CHECKPOINT}.metadata", name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    (f"{_CHECKPOINT}.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    *(
        (module, name)
        for module in ("pathlib", "pathlib._local")
        for name in ("Path", "PosixPath", "WindowsPath")
    ),
}


class Piece(NamedTuple):
    """Where a piece of a tensor, or another value, lies."""

    name: str
    file: str
    offset: int
    length: int
    is_transformed: bool


class ShardMetadata:
    """What the shards of a folder hold, and where.

    Args:
        path: The ``.metadata`` file.

    Attributes:
        pieces: Every piece of every value.
        tensors: Every tensor's name, as one on the meta device, with its shape and dtype.
        names: The names of all values.

    Raises:
        BrokenCheckpoint: It is damaged, or names what a checkpoint has no need of.
    """

    def __init__(self, path: Path) -> None:
        try:
            root = _read(path.read_bytes(), path)
            stored = root.fields["state_dict_metadata"]
            self.pieces = [
                _piece(index, info) for index, info in root.fields["storage_data"].items()
            ]
            self.names = [str(name) for name in stored]
            self.tensors = {
                str(name): torch.empty(
                    value.fields["size"], dtype=value.fields["properties"].state[0], device="meta"
                )
                for name, value in stored.items()
                if type(value).__name__ == "TensorStorageMetadata"
            }
        except BrokenCheckpoint:
            raise
        except Exception as error:  # nothing is known of the file but that it has a name
            raise BrokenCheckpoint(path, f"truncated or damaged ({error!r})") from error


class _Record:
    """Stands in for a class of the file: keeps what it is given."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None
        self.fields: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state
        self.fields = state if isinstance(state, dict) else {}


def _member(kind: Any, name: Any) -> "_Record":
    """Stand in for ``getattr``, with which Python 3.11.0 to 3.11.3 writes the member of an enum."""
    if not (isinstance(kind, type) and issubclass(kind, _Record)):
        raise TypeError(f"the member {name!r} of {kind!r}, which is no enum")
    return kind(name)


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content))
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) == ("builtins", "getattr"):
            return _member
        dtype = vars(torch).get(name) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        if (module, name) in _RECORDS:
            return type(name, (_Record,), {})
        raise BrokenCheckpoint(
            self.path,
            f"it names {module}.{name}, which no checkpoint needs and which was not run. Loading "
            "the checkpoint would run it: delete it unless you know who wrote it",
        )


def _read(content: bytes, path: Path) -> Any:
    known = set(_INSTRUCTIONS.split())
    for instruction, _, position in pickletools.genops(content):
        if instruction.name not in known:
            raise BrokenCheckpoint(
                path,
                f"instruction {instruction.name} at byte {position:,} is none that torch writes",
            )
    return _Unpickler(content, path).load()


def _piece(index: Any, info: Any) -> Piece:
    where, name = info.fields, index.fields["fqn"]
    file, offset, length = where["relative_path"], where["offset"], where["length"]
    is_inside = file == PurePath(file).name and file not in ("", ".", "..")
    if not is_inside or min(offset, length) < 0:
        raise ValueError(f"{name!r} lies at {offset}, {length} of {file!r}, which cannot be")
    return Piece(name, file, offset, length, bool(where.get("transform_descriptors")))
