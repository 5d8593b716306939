"""Asks the probe in a running process for a memory snapshot, and waits for the answer."""

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.trust import process_owner

from .probe_reader import ProbeReader, ProbeSample, find_probe
from .publisher import MAX_BYTES, REQUEST_BYTES

_MAGIC = b"VRTSNAP1"
_POLL_SECONDS = 0.1
_START_IT = "start the run with vramtop run, or call vramtop.monitor.report() in it"


class WrittenSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that a process has written."""

    file: str
    """Path as it is reached from here: for a process in a container through its root in ``/proc``."""
    bytes: int


def ask_for_snapshot(
    pid: int, *, timeout: float, wait: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic
) -> WrittenSnapshot:
    """Have a process write a memory snapshot.

    Args:
        pid: a process of this user's with the probe.
        timeout: seconds.
        wait: between two looks at the answer.
        now: the time in seconds.

    Raises:
        InputError: there is no such process.
        CannotTellError: it belongs to another user, has no probe, uses no GPU, or does not answer.
    """
    sample, path = _sample(pid)
    number = secrets.randbits(63) | 1
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, _MAGIC + number.to_bytes(8, "little"), MAX_BYTES - REQUEST_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CannotTellError(f"process {pid} cannot be reached: {error.strerror}") from None
    until = now() + timeout
    reader = ProbeReader(pid)
    while sample.snapshot is None or sample.snapshot.request != number:
        if now() >= until:
            raise CannotTellError(
                f"process {pid} has not answered within {timeout:g} s: it hangs, is stopped, or is busy in a call that "
                "holds Python's lock; try again with a longer --timeout"
            )
        wait(_POLL_SECONDS)
        latest = reader.read()
        if latest is None and not Path(f"/proc/{pid}").exists():
            raise CannotTellError(f"process {pid} ended before it had answered")
        sample = latest or sample
    answer = sample.snapshot
    if answer.file is None:
        raise CannotTellError(f"process {pid} has written no snapshot: {answer.error or 'no reason given'}")
    return WrittenSnapshot(file=_reachable(pid, answer.file), bytes=answer.bytes or 0)


def _sample(pid: int) -> tuple[ProbeSample, Path]:
    """Return what the process publishes, and its memory file."""
    owner = process_owner(pid)
    if owner is None:
        raise InputError(f"there is no process {pid} on this machine")
    if owner != os.getuid():
        raise CannotTellError(f"process {pid} belongs to another user (uid {owner}); only its owner may ask it")
    path = find_probe(pid)
    sample = None if path is None else ProbeReader(pid).read()
    if path is None or sample is None:
        raise CannotTellError(f"process {pid} has no probe: {_START_IT}; a launcher has none, its ranks do")
    if sample.ended is not None:
        raise CannotTellError(f"process {pid} is about to end, too late for a snapshot")
    if sample.snapshot is None:
        raise CannotTellError(
            f"the probe of process {pid} is of an older vramtop, which writes no snapshots; start the run "
            "again with this one"
        )
    if not sample.devices:
        raise CannotTellError(f"process {pid} has not used a GPU through torch's own allocator (CUDA) yet")
    return sample, path


def _reachable(pid: int, file: str) -> str:
    inside = f"/proc/{pid}/root{file}"
    return inside if not Path(file).exists() and Path(inside).exists() else file
