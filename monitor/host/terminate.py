"""Terminating a process that was seen on a GPU: exactly that process, never a later one with the same pid."""

import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from vramtop.estimator.common.errors import VramtopError

from ..snapshot.snapshot import GpuProcess, ProcessKey, Source
from .process_stat import (
    HOST_PID_NAMESPACE,
    ancestor_pids,
    boot_time,
    is_same_start,
    load_stat,
    open_files,
    read_stat,
    real_uid,
)

GRACE_SECONDS = 10.0
"""Time for a process to end after SIGTERM before SIGKILL is offered again; ``docker stop`` allows as much."""
_KERNEL_THREAD = 0x0020_0000
"""PF_KTHREAD of include/linux/sched.h."""
_GPU_FILE = re.compile(r"/dev/(nvidia|dxg)")

Blocker = Literal["stopped", "in the kernel"]
_BLOCKERS: dict[bytes, Blocker] = {b"T": "stopped", b"t": "stopped", b"D": "in the kernel"}
"""By the state in ``/proc/PID/stat``: stopped, stopped by a debugger, uninterruptible sleep."""


class NotTerminatedError(VramtopError):
    """No signal was sent; the message states the reason."""

    title = "The process was not terminated"


def refusal_reason(source: Source) -> str | None:
    """Return why none of a source's processes can be ended, in one sentence; None if they run on this machine."""
    if source.is_live:
        return None
    return "These processes come from a recording, not from this machine; vramtop ends none of them."


class ProcessTermination:
    """Termination of one process, from the question to the outcome; holds on to the process until ``close``.

    Where Linux has pidfds (5.3), the process is held by one before its start time is checked, so that no signal can
    reach another process. Elsewhere the start time is checked again just before each signal.

    Args:
        process: as it was read.
        clock: monotonic seconds.

    Raises:
        NotTerminatedError: the process may not be ended from here, has ended, or another process has its pid.
    """

    def __init__(self, process: GpuProcess, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.process = process
        self.sent: signal.Signals | None = None
        """The last signal that was sent."""
        self.is_other_users = False
        """It runs as another user than vramtop."""
        self.uncertainty: str | None = None
        """Why the driver may mean another process, in one sentence."""
        self._clock = clock
        self._sent_at = 0.0
        self._ended_at: float | None = None
        _refuse_protected(process)
        self._pidfd = _open_pidfd(process.pid)
        try:
            self._check()
        except NotTerminatedError:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        """True if it no longer runs; a zombie does not run either."""
        if self._ended_at is None and self._has_ended():
            self._ended_at = self._clock()
        return self._ended_at is not None

    @property
    def seconds(self) -> float:
        """Time from the last signal to its end, or until now."""
        return (self._clock() if self._ended_at is None else self._ended_at) - self._sent_at

    @property
    def overdue(self) -> bool:
        """True if it still runs ``GRACE_SECONDS`` after a signal."""
        return self.sent is not None and not self.ended and self.seconds >= GRACE_SECONDS

    @property
    def blocker(self) -> Blocker | None:
        """A state that may keep it from ending: stopped, or in a kernel call that no signal interrupts."""
        stat = read_stat(self.process.pid)
        return None if stat is None else _BLOCKERS.get(stat.state)

    def send(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal.

        Raises:
            NotTerminatedError: no signal was sent.
        """
        if self._pidfd is None:
            self._check()
        if self.ended:
            raise _ended_error(self.process.pid)
        self._signal(number)
        self.sent, self._sent_at = number, self._clock()

    def close(self) -> None:
        """Release the process."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _check(self) -> None:
        """Check that the process exists, is the one that was shown, and may be ended by this user."""
        pid = self.process.pid
        try:
            stat, uid = load_stat(pid), real_uid(Path(f"/proc/{pid}/status").read_bytes())
        except PermissionError:
            raise NotTerminatedError(
                f"Process {pid} is hidden from this user, so it cannot be ended from here."
            ) from None
        except OSError:
            raise _ended_error(pid) from None
        if not self._is_same(stat.start_time(boot_time())):
            raise NotTerminatedError(f"Process {pid} is now a different process: the one that was shown has ended.")
        if self._has_ended():
            raise _ended_error(pid)
        if is_kernel_thread(pid):
            raise NotTerminatedError(f"Process {pid} is a kernel thread, which cannot be ended.")
        self.is_other_users = uid != os.getuid()
        self.uncertainty = _uncertainty(pid)
        self._signal(0)

    def _is_same(self, start_time: float) -> bool:
        return self.process.start_time is not None and is_same_start(start_time, self.process.start_time)

    def _has_ended(self) -> bool:
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(0))  # readable once the last of its threads has ended
        stat = read_stat(self.process.pid)
        return stat is None or stat.is_zombie or not self._is_same(stat.start_time(boot_time()))

    def _signal(self, number: int) -> None:
        pid = self.process.pid
        try:
            if self._pidfd is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            raise _ended_error(pid) from None
        except PermissionError:
            owner = self.process.user or "another user"
            raise NotTerminatedError(
                f"No permission to end process {pid}: it belongs to {owner}; ask them, or run vramtop as that user."
            ) from None


class TerminationBatch:
    """Termination of one or several processes together; holds on to them until ``close``.

    Args:
        processes: as they were read; those that may not be signalled are refused, each with its reason.
    """

    def __init__(self, processes: Iterable[GpuProcess]) -> None:
        self.members: list[ProcessTermination] = []
        self.refused: dict[ProcessKey, str] = {}
        """Why no signal is sent to these, or was."""
        self.sent: signal.Signals | None = None
        """The last signal that was sent."""
        for process in processes:
            try:
                self.members.append(ProcessTermination(process))
            except NotTerminatedError as error:
                self.refused[process.key] = error.message

    @property
    def running(self) -> list[ProcessTermination]:
        """Processes that can be signalled and have not ended."""
        return [member for member in self.members if member.process.key not in self.refused and not member.ended]

    @property
    def overdue(self) -> bool:
        """True if one of them still runs ``GRACE_SECONDS`` after a signal."""
        return any(member.overdue for member in self.running)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to those that have not ended; a failure is a refusal of that process alone."""
        for member in self.running:
            try:
                member.send(number)
            except NotTerminatedError as error:
                self.refused[member.process.key] = error.message
        self.sent = number

    def close(self) -> None:
        """Release the processes."""
        for member in self.members:
            member.close()


def _refuse_protected(process: GpuProcess) -> None:
    """Refuse processes that are never ended, whatever the system would allow."""
    pid = process.pid
    if pid <= 1:
        raise NotTerminatedError(f"Process {pid} is the parent of all others; vramtop does not end it.")
    if process.start_time is None:
        why = process.note or "its start time is unknown"
        raise NotTerminatedError(
            f"Process {pid} cannot be told from another one with the same pid ({why}), so it is not ended."
        )
    if pid in (os.getpid(), *ancestor_pids(os.getpid())):
        raise NotTerminatedError(f"Process {pid} is vramtop itself or started it; press q to quit vramtop.")


def _ended_error(pid: int) -> NotTerminatedError:
    return NotTerminatedError(f"Process {pid} has ended already; no signal was sent.")


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that refers to this very process, even if its pid is reused; None: not supported here."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):  # Python built for an older Linux
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise _ended_error(pid) from None
    except OSError:  # an older Linux, or a sandbox without the call
        return None


def is_kernel_thread(pid: int) -> bool:
    """Return True if the pid is that of a kernel thread."""
    stat = read_stat(pid)
    return stat is not None and bool(stat.flags & _KERNEL_THREAD)


def _uncertainty(pid: int) -> str | None:
    """Return why the pid may be wrong: inside a container, the driver may report pids of the host."""
    try:
        if Path("/proc/self/ns/pid").stat().st_ino == HOST_PID_NAMESPACE:
            return None
        if any(_GPU_FILE.match(target) for _, target in open_files(pid)):
            return None
    except OSError:  # hidden
        return None
    return "It has no GPU device file open: inside a container, the driver's pid may belong to another process."
