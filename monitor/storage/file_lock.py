"""Exclusive lock on an open file, against other processes; released when the file is closed.

The ``filelock`` package does the same, but takes 22 ms to import.
"""

import fcntl
import time

_RETRY_SECONDS = 0.01


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
