"""How vramtop's own files stand: those that it keeps for the user between runs."""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vramtop.estimator.common.untrusted_files import read_file

from ..storage.user_file import data_folder

_LARGEST = 16 << 20
"""Bytes; vramtop's own files stay far below, and one that does not is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One of vramtop's files."""

    name: str
    size_bytes: int
    mode: str
    state: str
    """``version 1``, or what is wrong with it."""
    sound: bool
    private: bool
    """Nobody else may read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFolderFacts:
    """The data folder."""

    folder: str
    there: bool
    writable: bool
    files: tuple[DataFile, ...]
    set_aside: int
    """So many files were damaged, and are kept beside."""


def collect_data_folder_facts(folder: Path | None = None) -> DataFolderFacts:
    """Of the user's data folder.

    Args:
        folder: another one.
    """
    folder = folder or data_folder()
    try:
        entries = sorted(each.name for each in os.scandir(folder) if each.is_file())
    except OSError:
        entries = []
    return DataFolderFacts(
        folder=str(folder),
        there=folder.is_dir(),
        writable=os.access(folder if folder.exists() else _existing(folder), os.W_OK),
        files=tuple(_look(folder / name) for name in entries if name.endswith(".json")),
        set_aside=sum(".damaged-" in name for name in entries),
    )


def _existing(folder: Path) -> Path:
    """The nearest folder above that is there: in it the others would be made."""
    return next((parent for parent in folder.parents if parent.exists()), Path("/"))


def _look(file: Path) -> DataFile:
    try:
        stat = file.stat()
        size, mode = stat.st_size, stat.st_mode & 0o7777
    except OSError:
        size, mode = 0, 0
    sound, state = _state(file, size)
    return DataFile(
        name=file.name, size_bytes=size, mode=f"{mode:04o}", state=state, sound=sound, private=not mode & 0o077
    )


def _state(file: Path, size: int) -> tuple[bool, str]:
    if size > _LARGEST:
        return False, "larger than vramtop ever writes it"
    try:
        content = msgspec.json.decode(read_file(file, _LARGEST))
    except OSError as error:
        return False, f"cannot be read: {error.strerror or 'an error of the system'}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False, "damaged"
    version = content.get("version") if isinstance(content, dict) else None
    return (True, f"version {version}") if isinstance(version, int) else (False, "of no known format")
