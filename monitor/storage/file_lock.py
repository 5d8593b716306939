"""Exclusive lock on an open file, against other processes; released when the file is closed.

The ``filelock`` package does the same, but takes 22 ms to import.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

_RETRY_SECONDS = 0.01


@contextlib.contextmanager
def locked(file: Path, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock of a file of this user's, which is created if it is missing.

    Raises:
        BlockingIOError: another process has held it for that long.
        OSError: it cannot be opened.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        lock_file(descriptor, timeout_seconds)
        yield
    finally:
        os.close(descriptor)


def lock_file(descriptor: int, timeout_seconds: float) -> None:
    """Lock an open file with ``flock``.

    Args:
        descriptor: of the file.
        timeout_seconds: how long to wait while another process holds the lock.

    Raises:
        BlockingIOError: another process has held it for that long.
    """
    end = time.monotonic() + timeout_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return
