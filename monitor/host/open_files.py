"""Files that a process has open, read through ``/proc/PID/fd``."""

import os
from collections.abc import Iterator
from itertools import islice

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
