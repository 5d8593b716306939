"""State of the files that vramtop keeps for the user between runs."""

import os
from dataclasses import dataclass
from pathlib import Path

from vramtop.estimator.common import CannotTellError, LimitError, decode_json, read_file

from ..history import History
from ..storage import data_folder

_MAX_FILE_BYTES = 16 << 20
"""vramtop's own files stay far below this size; a larger one is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One of vramtop's files."""

    name: str
    """Its name."""
    size_bytes: int
    """Its size in bytes."""
    mode: str
    """Its permission bits in octal: ``0600``."""
    state: str
    """``version 1``, the number of runs in a history, or what is wrong with it."""
    sound: bool
    """It can be read."""
    private: bool
    """True if only its owner may read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFolderFacts:
    """The data folder and its files."""

    folder: str
    """Its path."""
    there: bool
    """It exists."""
    writable: bool
    """This user may write to it."""
    files: tuple[DataFile, ...]
    """vramtop's own files in it."""
    set_aside: int
    """Number of damaged files that were set aside."""


def collect_data_folder_facts(folder: Path | None = None) -> DataFolderFacts:
    """Return the state of the user's data folder.

    Args:
        folder: another folder.
    """
    folder = folder or data_folder()
    try:
        names = sorted(each.name for each in os.scandir(folder) if each.is_file())
    except OSError:
        names = []
    return DataFolderFacts(
        folder=str(folder),
        there=folder.is_dir(),
        writable=os.access(folder if folder.exists() else _nearest_parent(folder), os.W_OK),
        files=tuple(_inspect(folder / name) for name in names if name.endswith((".json", ".sqlite3"))),
        set_aside=sum(".damaged-" in name for name in names),
    )


def _nearest_parent(folder: Path) -> Path:
    """Return the nearest existing folder above this one."""
    return next((parent for parent in folder.parents if parent.exists()), Path("/"))


def _inspect(file: Path) -> DataFile:
    try:
        stat = file.stat()
        size, mode = stat.st_size, stat.st_mode & 0o7777
    except OSError:
        size, mode = 0, 0
    sound, state = _history_state(file) if file.suffix == ".sqlite3" else _state(file, size)
    return DataFile(
        name=file.name, size_bytes=size, mode=f"{mode:04o}", state=state, sound=sound, private=not mode & 0o077
    )


def _history_state(file: Path) -> tuple[bool, str]:
    try:
        return True, f"{History(file).count():,} measured runs"
    except CannotTellError as error:
        return False, "damaged" if "is damaged" in error.message else error.message.removeprefix(f"{file}").lstrip(", ")


def _state(file: Path, size: int) -> tuple[bool, str]:
    """Return whether a file is sound, and its version or what is wrong with it."""
    if size > _MAX_FILE_BYTES:
        return False, "larger than vramtop ever writes it"
    try:
        content = decode_json(read_file(file, _MAX_FILE_BYTES))
    except OSError as error:
        return False, f"cannot be read: {error.strerror or 'an error of the system'}"
    except LimitError:
        return False, "damaged"
    version = content.get("version") if isinstance(content, dict) else None
    return (True, f"version {version}") if isinstance(version, int) else (False, "of no known format")
