"""End a process that was seen on a GPU: that very one, and never another one that has taken its pid since."""

import os
import re
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from vramtop.estimator.common.errors import VramtopError

from ..snapshot.snapshot import GpuProcess, Source
from .process_origin import ancestor_pids

GRACE_SECONDS = 10.0
"""A process has so long to end before harder means are offered; ``docker stop`` gives as long."""
_SAME_START_SECONDS = 0.5 / os.sysconf("SC_CLK_TCK")
"""Start times are told in clock ticks: half of one is rounding, a whole one is another process."""
_KERNEL_THREAD = 0x0020_0000
"""PF_KTHREAD of include/linux/sched.h, in the ninth field of proc(5)'s ``stat``."""
_FIRST_NAMESPACE = 0xEFFF_FFFC
"""The inode of the machine's own pid namespace (PROC_PID_INIT_INO of include/linux/proc_ns.h)."""
_GPU_FILE = re.compile(r"/dev/(nvidia|dxg)")

Blocker = Literal["stopped", "in the kernel"]


class NotTerminatedError(VramtopError):
    """No signal was sent, and why."""

    title = "The process was not ended"


def refusal_reason(source: Source) -> str | None:
    """Why none of a source's processes can be ended, in one sentence; None: they are of this machine."""
    if source.kind == "nvml":
        return None
    return "These processes are played from a recording; they are not of this machine now, and none is ended."


class ProcessTermination:
    """The end of one process, from the question to what came of it; holds on to it until ``close``.

    Where Linux has pidfds (5.3), the process is held by one from the check of its start time on, so that no signal can
    reach another one. Elsewhere the start time is checked again just before each signal.

    Args:
        process: as it was read.
        clock: seconds that never run backwards.

    Raises:
        NotTerminatedError: it is none that may be ended from here, it has ended, or its pid is another's by now.
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
        _refuse(process)
        self._descriptor = _hold(process.pid)
        try:
            self._check()
        except NotTerminatedError:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        """It runs no more; one that its parent has not reaped yet runs no more either."""
        if self._ended_at is None and self._is_over():
            self._ended_at = self._clock()
        return self._ended_at is not None

    @property
    def seconds(self) -> float:
        """Since the last signal: until its end, or until now."""
        return (self._clock() if self._ended_at is None else self._ended_at) - self._sent_at

    @property
    def overdue(self) -> bool:
        """A signal was sent, and it is still there after some patience."""
        return self.sent is not None and not self.ended and self.seconds >= GRACE_SECONDS

    @property
    def blocker(self) -> Blocker | None:
        """What may keep it from ending: it is stopped, or in a call of the kernel's that takes no signals."""
        import psutil  # not at start-up: nobody is ended there

        try:
            status = psutil.Process(self.process.pid).status()
        except psutil.Error:
            return None
        if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return "stopped"
        return "in the kernel" if status == psutil.STATUS_DISK_SLEEP else None

    def send(self, *, force: bool = False) -> None:
        """Ask it to end (SIGTERM); or have it ended (SIGKILL), once it was asked in vain.

        Raises:
            NotTerminatedError: no signal was sent.
        """
        if force and not self.overdue:
            raise NotTerminatedError(
                f"Process {self.process.pid} gets no SIGKILL before it has had time to end by itself."
            )
        if self._descriptor is None:
            self._check()
        if self.ended:
            raise _over(self.process.pid)
        number = signal.SIGKILL if force else signal.SIGTERM
        self._signal(number)
        self.sent, self._sent_at = number, self._clock()

    def close(self) -> None:
        """Let go of the process."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _check(self) -> None:
        """It is there, it is the one that was shown, and this user may end it."""
        import psutil

        pid = self.process.pid
        try:
            seen = psutil.Process(pid)
            started, user = seen.create_time(), seen.uids().real
        except psutil.NoSuchProcess:
            raise _over(pid) from None
        except psutil.AccessDenied:
            raise NotTerminatedError(
                f"Process {pid} is hidden from this user, so it cannot be ended from here."
            ) from None
        if self.process.start_time is None or abs(started - self.process.start_time) > _SAME_START_SECONDS:
            raise NotTerminatedError(f"Process {pid} is another one by now: the one that was shown has ended.")
        if self._is_over():
            raise _over(pid)
        if is_kernel_thread(pid):
            raise NotTerminatedError(f"Process {pid} is a thread of the kernel's, which nobody can end.")
        self.is_other_users = user != os.getuid()
        self.uncertainty = _doubt(pid)
        self._signal(0)

    def _is_over(self) -> bool:
        if self._descriptor is not None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            return bool(poll.poll(0))  # readable once the last of its threads has ended
        import psutil

        try:
            seen = psutil.Process(self.process.pid)
            return seen.status() == psutil.STATUS_ZOMBIE or (
                self.process.start_time is not None
                and abs(seen.create_time() - self.process.start_time) > _SAME_START_SECONDS
            )
        except psutil.Error:
            return True

    def _signal(self, number: int) -> None:
        pid = self.process.pid
        try:
            if self._descriptor is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            raise _over(pid) from None
        except PermissionError:
            owner = self.process.user or "another user"
            raise NotTerminatedError(
                f"No permission to end process {pid}: it belongs to {owner}; ask them, or run vramtop as that user."
            ) from None


def _refuse(process: GpuProcess) -> None:
    """What is never ended, whatever the system would allow."""
    pid = process.pid
    if pid <= 1:
        raise NotTerminatedError(f"Process {pid} is the one that all others hang on; vramtop does not end it.")
    if process.start_time is None:
        why = process.note or "its start time is unknown"
        raise NotTerminatedError(
            f"Process {pid} cannot be told from another one of that pid ({why}), so it is not ended."
        )
    if pid in (os.getpid(), *ancestor_pids(os.getpid())):
        raise NotTerminatedError(f"Process {pid} is vramtop itself or has started it; q quits vramtop.")


def _over(pid: int) -> NotTerminatedError:
    return NotTerminatedError(f"Process {pid} has ended already; no signal was sent.")


def _hold(pid: int) -> int | None:
    """A descriptor that stays with the process, whoever has its pid later; None: there is no such thing here."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):  # Python built for an older Linux
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise _over(pid) from None
    except OSError:  # an older Linux, or a sandbox without the call
        return None


def is_kernel_thread(pid: int) -> bool:
    """A part of the kernel that looks like a process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return bool(int(stat.rpartition(")")[2].split()[6]) & _KERNEL_THREAD)


def _doubt(pid: int) -> str | None:
    """In a container the driver may tell the host's numbers, and another process may have such a number here."""
    try:
        if Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE:
            return None
        files = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:  # not to be seen, or changing right now
        return None
    if any(_GPU_FILE.match(file) for file in files):
        return None
    return "It has no GPU's device file open: from inside a container, the driver may mean another process."
