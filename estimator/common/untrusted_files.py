"""Reads files that others wrote: regular files only, up to a maximum size, nesting and number of values.

Reading a pipe or a device may block or never end, and opening one may have effects; the author of a path decides what
it points to. Every reader of settings, configs, scripts and logs uses this module.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MAX_SETTINGS_BYTES = 2**19
"""Maximum of a file that people write by hand: a larger one takes seconds to read, and is no such file."""
MAX_CONFIG_BYTES = 4 * 2**20
"""Maximum of a config.json, or an index of shards: one with two tables of 22,000 labels has 1.6 MB."""
_MAX_DEPTH = 64
_MAX_VALUES = 100_000
"""Counted with aliases followed: a few lines of YAML can otherwise expand for minutes."""
_MAX_DOTS_PER_LINE = 160
"""``a.a.a...`` takes time and memory quadratic in its length. Long lists of numbers have 128 dots."""


class TooLargeError(OSError):
    """The file exceeds the maximum size of its kind."""


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; never a pipe, a device or a folder.

    Raises:
        OSError: it is no regular file, or cannot be opened.
    """
    _require_regular_file(os.stat(path).st_mode, path)  # noqa: PTH116 - opening a device may already do something
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _require_regular_file(os.fstat(handle).st_mode, path)  # it may have been replaced meanwhile
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def read_file(path: Path, max_bytes: int = MAX_SETTINGS_BYTES) -> bytes:
    """Return a file's bytes; files of the kernel, which have no size, count as empty.

    Raises:
        TooLargeError: it has more than ``max_bytes``.
        OSError: it cannot be read, or is no regular file.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(max_bytes + 1) if 0 < size <= max_bytes else b""
    if max(size, len(data)) > max_bytes:
        raise TooLargeError(
            errno.EFBIG, f"it is larger than {max_bytes // 2**10:,} KiB, too large for such a file", str(path)
        )
    return data


def read_start(path: Path, max_bytes: int) -> bytes:
    """Return the first bytes of a file that may be longer.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with open_file(path) as file:
        return file.read(max_bytes) if os.fstat(file.fileno()).st_size else b""


def check_nesting(data: Any) -> None:
    """Check lists and tables for nesting depth, number of values, and cycles.

    Raises:
        ValueError: a limit is exceeded; the message names it.
    """
    _count_values(data, {}, 0)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ValueError: it is not TOML, or exceeds a limit.
    """
    import msgspec  # here: its TOML reader imports tomllib

    if (
        max((line.count(".") for line in text.splitlines() if len(line) > _MAX_DOTS_PER_LINE), default=0)
        > _MAX_DOTS_PER_LINE
    ):
        raise ValueError(f"a line with more than {_MAX_DOTS_PER_LINE} dots")
    try:
        tables: dict[str, Any] = msgspec.toml.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    check_nesting(tables)
    return tables


def _count_values(data: Any, known: dict[int, int], depth: int) -> int:
    """Return the number of values with aliases followed; each object is counted once."""
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple | set) else ()
    if not inner:
        return 1
    if id(data) in known:
        if known[id(data)] == 0:
            raise ValueError("a value contains itself")
        return known[id(data)]
    if depth >= _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    known[id(data)] = 0  # being counted
    count = 1
    for value in inner:
        count += _count_values(value, known, depth + 1) if isinstance(value, dict | list | tuple | set) else 1
        if count > _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES:,} values")
    known[id(data)] = count
    return count


def _require_regular_file(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
