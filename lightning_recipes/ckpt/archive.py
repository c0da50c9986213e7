"""A file of ``torch.save``: every byte checked, then read as plain types and tensors."""

import os
import re
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from lightning_recipes.ckpt.broken import BrokenCheckpoint

__all__ = [
    "check_archive",
    "is_old_format",
    "load_archive",
    "load_old_format",
    "peek_archive",
]

_BEGINNING = b"PK\x03\x04"
_MARK_OF_A_FOLDER = 0x10
_NUM_BYTES_PER_READ = 1 << 20


def load_archive(path: Path) -> Any:
    """Check a file of ``torch.save`` against its checksums, and return what it holds.

    Reads the file once: the tensors are mapped, not read again until somebody looks at them.

    Raises:
        BrokenCheckpoint: The file is damaged, incomplete, of another kind, or holds more than plain
            types and tensors.
        FileNotFoundError: There is none.
    """
    with _open(path) as file:
        check_archive(file, path)
    return _load(path, mmap=True)


def peek_archive(path: Path) -> Any:
    """Return what the file holds, with only the checksum of its structure checked.

    For a first look at many files: of the tensors nothing is read.

    Raises:
        BrokenCheckpoint: As :func:`load_archive`, as far as this look goes.
        FileNotFoundError: There is none.
    """
    with _open(path) as file:
        check_archive(file, path, only="data.pkl")
    return _load(path, mmap=True)


def is_old_format(path: Path) -> bool:
    """Return whether a file has content, and is not such a zip.

    Raises:
        BrokenCheckpoint: It cannot be read.
        FileNotFoundError: There is none.
    """
    with _open(path) as file:
        return file.read(len(_BEGINNING)) not in (b"", _BEGINNING)


def load_old_format(path: Path) -> Any:
    """Return what a file holds that torch.save wrote before 1.6; it has no checksums.

    Raises:
        BrokenCheckpoint: It holds more than plain types and tensors, or something else entirely.
    """
    return _load(path, mmap=False)


def check_archive(file: IO[bytes], path: Path, *, only: str | None = None) -> None:
    """Check a zip as ``torch.save`` writes it: its directory, and the checksum of every member.

    Args:
        file: Open, at its beginning.
        path: How to call it in an error.
        only: The one member to read, of those beside the folder's name.

    Raises:
        BrokenCheckpoint: Something is wrong.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    beginning = file.read(len(_BEGINNING))
    if not size:
        raise BrokenCheckpoint(path, "the file is empty")
    if beginning != _BEGINNING:
        raise BrokenCheckpoint(
            path, f"not a zip file, which torch.save writes: it begins with {beginning!r}"
        )
    try:
        with zipfile.ZipFile(file) as archive:
            _check_members(archive, path, size, only)
    except BrokenCheckpoint:
        raise
    except zipfile.BadZipFile as error:
        raise BrokenCheckpoint(
            path,
            f"truncated or damaged: the file ends at byte {size:,} without the directory of a zip "
            f"file ({error})",
        ) from error
    except Exception as error:  # the directory is not checksummed: damage can look like anything
        raise BrokenCheckpoint(path, f"the zip directory is damaged ({error!r})") from error


def _check_members(archive: zipfile.ZipFile, path: Path, size: int, only: str | None) -> None:
    members = archive.infolist()
    names = {member.filename.partition("/")[2] for member in members}
    if "constants.pkl" in names:
        raise BrokenCheckpoint(path, "a TorchScript archive, which is a program and no checkpoint")
    if "data.pkl" not in names:
        raise BrokenCheckpoint(path, "a zip file, but not one of torch.save: it has no data.pkl")
    for member in members:
        # torch.save compresses nothing, so nothing here can grow beyond the file it came in.
        if member.compress_type != zipfile.ZIP_STORED:
            raise BrokenCheckpoint(path, f"member {member.filename} is compressed: not torch.save")
        # torch's reader believes these two where python's does not: it would take a folder's
        # content, or one of another length, from memory that nobody has written to.
        is_folder = bool(member.external_attr & _MARK_OF_A_FOLDER)
        if is_folder or member.compress_size != member.file_size:
            raise BrokenCheckpoint(path, f"the zip directory is damaged at {member.filename}")
    if sum(member.file_size for member in members) > size:
        raise BrokenCheckpoint(path, "its members are larger than the file: the directory is wrong")
    if not any(member.CRC for member in members):
        raise BrokenCheckpoint(
            path,
            "it has no checksums (torch.serialization.set_crc32_options(False)), so that damage "
            "cannot be seen; save it again with them",
        )
    for member in members:
        if only in (None, member.filename.partition("/")[2]):
            _check_member(archive, path, member)


def _check_member(archive: zipfile.ZipFile, path: Path, member: zipfile.ZipInfo) -> None:
    try:
        with archive.open(member) as content:
            while content.read(_NUM_BYTES_PER_READ):
                pass
    except Exception as error:  # zipfile raises whatever a damaged header leads it to
        at = f"member {member.filename} at byte {member.header_offset:,}"
        raise BrokenCheckpoint(path, f"{at} is damaged ({error})") from error


def _open(path: Path) -> IO[bytes]:
    if path.exists() and not path.is_file():
        raise BrokenCheckpoint(path, "not a file")  # a pipe would be waited for
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BrokenCheckpoint(path, f"cannot be read ({error.strerror})") from error


def _load(path: Path, *, mmap: bool) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise
    except Exception as error:  # a file made by hand leads torch's reader to any exception
        raise BrokenCheckpoint(path, _why_not_loaded(error)) from error


def _why_not_loaded(error: Exception) -> str:
    stranger = re.search(r"GLOBAL (\S+)", str(error))
    if stranger:
        return (
            f"it holds more than plain types and tensors: {stranger[1]}, which was not run. "
            "Resuming loads with weights_only=True and would fail, too"
        )
    lines = str(error).partition("WeightsUnpickler error:")
    text = (lines[2] or lines[0]).strip().partition("\n")[0]
    return f"it cannot be loaded as plain types and tensors ({type(error).__name__}: {text})"
