"""Command line, environment and open files of a process, which may be another user's: each is read up to a limit."""

import os
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from vramtop.estimator.common.limits import PROCESS_COMMAND_LINE, PROCESS_ENVIRONMENT, Limit


def read_command_line(pid: int) -> list[str]:
    """Return a process's arguments; empty: it is part of the kernel, a zombie, or just starting.

    Raises:
        LimitError: it is too long.
        OSError: it is hidden, or the process has ended.
    """
    text = _read(pid, "cmdline", PROCESS_COMMAND_LINE)
    separator = "\0" if text.endswith("\0") else " "  # a title that a program has given itself
    arguments = text.removesuffix(separator).split(separator) if text else []
    return arguments[0].split(" ") if separator == "\0" and len(arguments) == 1 else arguments


def read_environ(pid: int) -> dict[str, str]:
    """Return the environment with which a process's program started.

    Raises:
        LimitError: it is too long.
        OSError: it is hidden, or the process has ended.
    """
    pairs = (line.partition("=") for line in _read(pid, "environ", PROCESS_ENVIRONMENT).split("\0"))
    return {name: value for name, is_set, value in pairs if name and is_set}


def _read(pid: int, name: Literal["cmdline", "environ"], limit: Limit) -> str:
    """Return the strings in a file of ``/proc``."""
    most_bytes = limit.bytes or 0
    data = b""
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    try:
        while len(data) <= most_bytes and (part := os.read(descriptor, most_bytes)):
            data += part
    finally:
        os.close(descriptor)
    if len(data) > most_bytes:
        raise limit.too_large()
    if data.count(b"\0") > (limit.items or 0):
        raise limit.too_many("arguments" if name == "cmdline" else "variables")
    return data.decode("utf-8", "replace")


MAX_FILES = 20_000
"""Open files that are examined: a process may have a million, at 4 microseconds each."""


def open_files(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the path in ``/proc`` and the target of each open file, such as ``/dev/nvidia0``.

    Raises:
        OSError: the process has ended, or its files may not be read.
    """
    folder = f"/proc/{pid}/fd"
    for name in islice(os.listdir(folder), MAX_FILES):  # noqa: PTH208 - cheaper, for processes with many files
        path = f"{folder}/{name}"
        try:
            yield path, os.readlink(path)  # noqa: PTH115
        except OSError:  # just closed
            continue
