"""A program that runs apart from what is real (``estimator/isolation``), within limits, and ends with its children."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from ..common.cancellation import current_token
from ..common.errors import CancelledError, InputError
from ..common.process_limit import process_limit_error
from ..common.sizes import format_gib
from ..isolation.kernel import use_disks_when_idle
from ..isolation.protocol import REPORT, SHARED
from ..isolation.removal import descendants, remove
from .worker_pool import resident_bytes

KEEPER = Path(__file__).parents[1] / "isolation" / "__main__.py"
_PYTHON = sys.executable
MAX_KEPT_OUTPUT = 1 << 16
"""Bytes of the program's output that are kept, from its end."""
START_SECONDS = 120.0
"""Time beyond the program's own in which Python starts and imports torch, also on a busy machine."""
_MAX_HOST_SHARE = 0.9
"""Maximum share of the free host memory that the program may use."""
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.2
_LOWEST, _ENDED_FIRST = 19, 1000
"""The lowest priority, and the score by which the kernel chooses what to end when RAM runs out."""
_MAX_SHOWN = 300
"""Characters of a line of the program's output."""


class Report(msgspec.Struct, frozen=True):
    """What the keeper tells of a program that has ended."""

    level: str
    """One of ``isolation.protocol.LEVELS``."""
    why: dict[str, str]
    """Why it was none of the better ones."""
    code: int
    """Exit code; negative: the signal that ended it."""
    watched: bool
    """True if the kernel told what the program did."""
    complete: bool
    """True if the kernel told all that the program looked at."""
    paths: dict[str, tuple[int, str]]
    """How each path was used, and what stood there (``isolation.seen``)."""
    addresses: list[str]
    """Addresses beyond this machine that it connected to."""


class IsolatedRun:
    """Runs one program; as a context, at whose end nothing is left of it.

    Args:
        folder: in which the program starts.
        offline: it has no network but its own loopback.
        background: it gives way to everything else on this machine.
    """

    def __init__(self, folder: str, *, offline: bool, background: bool = False) -> None:
        self.stopped: str | None = None
        """Why vramtop stopped the program; None: it did not."""
        self.report: Report | None = None
        """None: it was ended from outside."""
        self._folder, self._offline, self._background = folder, offline, background
        self._scratch = Path(os.path.realpath(tempfile.mkdtemp(prefix="vramtop-rehearsal-")))
        self.shared = self._scratch / SHARED
        """Folder that the program really writes to."""
        self.shared.mkdir(mode=0o700)
        self._kept = bytearray()
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> IsolatedRun:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            assert self._process.stdin is not None  # noqa: S101 - it is a pipe
            self._process.stdin.close()  # the keeper then ends all, and removes the scratch folder
            try:
                self._process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                for pid in (*descendants(self._process.pid), self._process.pid):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                self._process.wait()
            self._ended.wait(_GRACE_SECONDS)
        remove(str(self._scratch))

    @property
    def output(self) -> str:
        """The end of the program's output."""
        return self._kept.decode(errors="replace")

    @property
    def last_line(self) -> str:
        """Its last line that is not empty."""
        last = next((line for line in reversed(self.output.splitlines()) if line.strip()), "it printed nothing")
        return last.strip()[:_MAX_SHOWN]

    @property
    def resident_bytes(self) -> int:
        """Memory of its largest process in RAM."""
        pids = descendants(self._process.pid) if self._process is not None else []
        return max((resident_bytes(pid) or 0 for pid in pids), default=0)

    def start(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start it.

        Raises:
            InputError: its folder is not there, or no more processes may be started.
        """
        kept = [str(self._scratch), self._folder, "", "offline" if self._offline else "", *words]
        if self._offline:
            environ = {**environ, "HF_HUB_OFFLINE": "1"}  # else it asks a minute long
        try:
            self._process = subprocess.Popen(
                [_PYTHON, "-I", "-S", str(KEEPER), *kept],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                start_new_session=True,
            )
        except OSError as error:
            raise process_limit_error(error) or InputError(f"{words[0]} cannot be started: {error.strerror}") from None
        self._give_way()
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def wait(self, timeout: float, tell: Callable[[], None]) -> None:
        """Wait for its end; it is ended when time, host memory or disk go out, or it is no longer wanted."""
        deadline = time.monotonic() + timeout + START_SECONDS
        free_bytes, free_disk_bytes = _free_host_bytes(), shutil.disk_usage(self._scratch).free
        limit = int(_MAX_HOST_SHARE * free_bytes)
        while not self._ended.wait(_POLL_SECONDS):
            if current_token().cancelled:
                raise CancelledError
            self._give_way()
            tell()
            if time.monotonic() > deadline:
                self.stopped = f"the program did not end within {timeout:g} s; allow more with --timeout SECONDS"
                return
            held = self.resident_bytes
            if held > limit:
                self.stopped = (
                    f"the rehearsal was stopped at {format_gib(held)} GiB of host memory: the program creates large "
                    "tensors on the host"
                )
                return
            if _free_host_bytes() < free_bytes - limit:
                self.stopped = (
                    "the rehearsal was stopped because this host was running out of memory: the program or its child "
                    "processes need more"
                )
                return
            if shutil.disk_usage(self._scratch).free < free_disk_bytes / 2:
                self.stopped = (
                    f"the rehearsal was stopped because half of the free space of {tempfile.gettempdir()} was used "
                    "up: the program writes too much"
                )
                return
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self.report = msgspec.json.decode((self._scratch / REPORT).read_bytes(), type=Report)

    def _give_way(self) -> None:
        """Give all its processes the lowest priority; if RAM runs out, the kernel ends them first."""
        if self._process is None or not self._background:
            return
        for pid in (self._process.pid, *descendants(self._process.pid)):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, _LOWEST)
                use_disks_when_idle(pid)
            for name, value in (("autogroup", _LOWEST), ("oom_score_adj", _ENDED_FIRST)):
                with contextlib.suppress(OSError):
                    Path(f"/proc/{pid}/{name}").write_text(f"{value}", encoding="ascii")

    def _read(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(pipe.fileno(), MAX_KEPT_OUTPUT):
                self._kept += chunk
                del self._kept[:-MAX_KEPT_OUTPUT]
        self._ended.set()


def _free_host_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62
