"""A file that a dead run has left, whichever it is: a log or a memory snapshot."""

import errno
import io
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from ..common.errors import InputError
from ..common.paths import expand_user
from ..common.untrusted_files import open_file
from .job_log import read_log
from .records import CrashLog
from .snapshot.records import MemorySnapshot
from .snapshot.snapshot_reader import is_snapshot, read_snapshot

_START_BYTES = 4096


def read_crash_file(
    name: str, *, device: int | None = None, progress: Callable[[str], None] | None = None
) -> CrashLog | MemorySnapshot:
    """Read a log or a memory snapshot.

    Args:
        name: of a regular file.
        device: in a snapshot, the GPU; None: the one that failed.
        progress: called with what is being done.

    Raises:
        InputError: it cannot be read, or is neither.
    """
    try:
        with open_file(Path(expand_user(name))) as file:
            return read_crash_stream(file, name=name, device=device, progress=progress)
    except OSError as error:
        is_pipe = error.errno != errno.ENAMETOOLONG and Path(expand_user(name)).is_fifo()
        how = "; write COMMAND | vramtop explain -" if is_pipe else ""
        raise InputError(f"{name}: cannot be read: {error.strerror or error}{how}") from None


def read_crash_stream(
    file: BinaryIO, *, name: str, device: int | None = None, progress: Callable[[str], None] | None = None
) -> CrashLog | MemorySnapshot:
    """Read a log or a memory snapshot from an open file or a pipe.

    Args:
        file: read from where it stands.
        name: for errors.
        device: in a snapshot, the GPU; None: the one that failed.
        progress: called with what is being done.

    Raises:
        InputError: it is neither.
    """
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", file))
    try:
        start = buffered.peek(_START_BYTES)[:_START_BYTES]
        _require_readable(start, name)
        return (
            read_snapshot(buffered, device=device, progress=progress)
            if is_snapshot(start)
            else read_log(buffered, progress=progress)
        )
    except InputError as error:
        raise InputError(f"{name}: {error.message}") from None


def _require_readable(start: bytes, name: str) -> None:
    if not start.strip():
        raise InputError("it is empty")
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        command = f"gzip -dc {shlex.quote(name)} | vramtop explain -"
        raise InputError(f"it is compressed; decompress it first, such as: {command}")
    if start.startswith(b"PK\x03\x04"):
        raise InputError("it is an archive such as torch.save writes; _dump_snapshot(FILE) writes a memory snapshot")
