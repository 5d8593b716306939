"""Runs the driver query in a child process, which is reported and abandoned if the driver hangs or crashes."""

import faulthandler
import os
import re
import select
import signal
import time
import warnings
from typing import Any

import msgspec

from vramtop.estimator.common import CannotTellError, process_limit_error

from ..sources.nvml import DRIVER_VERSION_FILE
from .driver_facts import DriverFacts, GpuFacts
from .driver_query import query_driver

_MAX_BYTES = 1 << 22
"""Limit on the child's output; sixteen GPUs produce about 60 kB."""
_EXIT_WAIT_SECONDS = 0.05
_KILL_WAIT_SECONDS = 2.0
_POLL_SECONDS = 0.005


class DriverProcess:
    """A child process that queries the driver; it starts at once."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        self._problem: str | None = None
        """Why there is no child."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # about threads, of which the child needs none
                self._pid = os.fork()
        except OSError as error:
            self._pid = -1
            self._problem = (process_limit_error(error) or CannotTellError(str(error.strerror))).message
        if self._pid == 0:
            os.close(self._read)
            _run_child(write)
        os.close(write)

    def facts(self, seconds: float) -> DriverFacts:
        """Return the facts that the child has sent when it ends or at the time limit, at which it is killed."""
        if self._problem is not None:
            os.close(self._read)
            return DriverFacts(problem=self._problem, kernel_module=_kernel_module())
        collected, ended = _CollectedFacts(), False
        try:
            ended = self._read_messages(collected, time.monotonic() + seconds)
        finally:
            exit_status = self._end()
        return collected.facts(_crash_text(exit_status) if ended else None, seconds=seconds)

    def _read_messages(self, collected: "_CollectedFacts", deadline: float) -> bool:
        """Read messages until the child closes its pipe (True) or the deadline."""
        data, received = b"", 0
        while (left := deadline - time.monotonic()) > 0 and received < _MAX_BYTES:
            ready, _, _ = select.select([self._read], [], [], left)
            new = os.read(self._read, 65536) if ready else b""
            if not new:
                return bool(ready)
            received += len(new)
            *lines, data = (data + new).split(b"\n")
            for line in lines:
                collected.add(msgspec.json.decode(line))
        return False

    def _end(self) -> int:
        """Kill the child if it still runs; return its exit code, or the signal that ended it as a negative number."""
        os.close(self._read)
        code = self._wait(_EXIT_WAIT_SECONDS)  # it has sent everything and is about to end
        if code is not None:
            return code
        os.kill(self._pid, signal.SIGKILL)
        self._wait(_KILL_WAIT_SECONDS)  # a process that is stuck in the kernel is left to the system
        return 0

    def _wait(self, seconds: float) -> int | None:
        """Return the exit code of the child; None if it still runs after this time."""
        deadline = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_SECONDS)


class _CollectedFacts:
    """Combines the messages of the child."""

    def __init__(self) -> None:
        self._machine: dict[str, Any] = {}
        self._gpus: dict[int, dict[str, Any]] = {}
        self._calls: dict[int | None, str | None] = {}
        """The call in progress, by GPU; None: outside of the GPUs."""
        self._complete = False

    def add(self, message: dict[str, Any]) -> None:
        gpu = message.pop("gpu", None)
        if "asks" in message:
            self._calls[gpu] = message.pop("asks")
        self._complete = message.pop("all", self._complete)
        (self._machine if gpu is None else self._gpus.setdefault(gpu, {})).update(message)

    def facts(self, crash: str | None, *, seconds: float) -> DriverFacts:
        """Return all facts.

        Args:
            crash: how the child ended if it ended early; None: it did not.
            seconds: time limit that it had.
        """
        unanswered = {gpu: call for gpu, call in self._calls.items() if call and not self._complete}
        machine = {"kernel_module": _kernel_module()} | self._machine
        if crash and not self._complete:
            calls = ", ".join(sorted(set(unanswered.values()))) or "its start"
            machine["problem"] = f"the driver's library ends the process that asks it ({crash}, in {calls})"
            unanswered = {}
        elif None in unanswered:
            machine["problem"] = f"the NVIDIA driver has not answered {unanswered[None]} within {seconds:g} seconds"
        gpus = tuple(
            GpuFacts(index=index, unanswered=unanswered.get(index), **facts)
            for index, facts in sorted(self._gpus.items())
        )
        return DriverFacts(unanswered=unanswered.get(None), gpus=gpus, **machine)


def _crash_text(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _run_child(write: int) -> None:
    """Query the driver, send the facts, and exit without the interpreter's clean-up."""

    def send(message: dict[str, Any]) -> None:
        os.write(write, msgspec.json.encode(message) + b"\n")  # less than PIPE_BUF: threads do not mix

    faulthandler.disable()  # a crash is reported in a sentence
    code = 1
    try:
        query_driver(send)
        send({"all": True})
        code = 0
    finally:
        os._exit(code)


def _kernel_module() -> str | None:
    """Return kind and version of the module: ``NVIDIA UNIX Open Kernel Module for x86_64 580.95.05``."""
    try:
        text = DRIVER_VERSION_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^NVRM version:\s*(.*?\d+\.\d+(?:\.\d+)?)", text, re.MULTILINE)
    return " ".join(found[1].split()) if found else None
