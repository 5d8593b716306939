"""Answers requests for a snapshot, on the probe's thread. Runs in the user's process.

A request is a number that ``vramtop snapshot`` writes at the end of the probe's memory file, which the kernel lets only
the user (and root) open. The answer is published with the figures: the number, and the file or why there is none.
"""

from __future__ import annotations

from typing import Any

from .dump import CannotDumpError, dump

MAGIC = b"VRTSNAP1"
answer: dict[str, Any] = {"request": 0, "file": None, "bytes": None, "error": None}
"""The answer to the last request; it is replaced at once, as another thread may publish it."""


def serve(request: bytes) -> None:
    """Write a snapshot if this request has not been answered; called once a second."""
    number = int.from_bytes(request[8:16], "little")
    if request[:8] != MAGIC or number == answer["request"]:
        return
    file = size = error = None
    try:
        file, size = dump("snapshot")
    except CannotDumpError as failure:
        error = str(failure)
    except Exception as failure:  # torch's own, whatever it is
        error = f"torch cannot make it: {type(failure).__name__}"
    answer.update(request=number, file=file, bytes=size, error=error)
