"""The driver, asked in a child process: one that hangs, or takes its process with it, is told and left behind."""

import faulthandler
import os
import re
import select
import signal
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..sources.nvml.error_messages import DRIVER_VERSION_FILE, no_driver_error
from .gpu_query import GpuQuery, Report

_LIBRARY = "libnvidia-ml.so"
_LONGEST = 1 << 22
"""Bytes that are read of the child at most: sixteen GPUs tell some 60 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What was found out about one GPU; None: it was not told."""

    index: int
    name: str | None = None
    uuid: str | None = None
    """Its beginning."""
    memory_info: str | None = None
    """``v2``, or ``v1`` which counts the driver's reserved part as used."""
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    implausible: str | None = None
    """Why these figures cannot be a card's own memory."""
    compute_mode: str | None = None
    mig_slots: int | None = None
    """So many MIG devices it can be split into, where MIG is on."""
    processes: int | None = None
    processes_seen: int | None = None
    """Of them those that can be named from here."""
    processes_of_others: int | None = None
    processes_without_memory: int | None = None
    abilities: Mapping[str, str] = field(default_factory=dict)
    """What it can tell: ``yes``, ``on``, ``off``, or the driver's word for its refusal."""
    slowest_call: str | None = None
    slowest_seconds: float | None = None
    lost: str | None = None
    """The driver's word for why it does not answer at all."""
    unanswered: str | None = None
    """The call that had not come back when time was up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """What was found out about the driver; None: it was not told."""

    problem: str | None = None
    """Why it cannot be used, in a sentence."""
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_version: str | None = None
    """The newest CUDA that it supports."""
    kernel_module: str | None = None
    """What /proc says of it: kind and version."""
    library: str | None = None
    """Path of the library that was loaded."""
    init_seconds: float | None = None
    unanswered: str | None = None
    gpus: tuple[GpuFacts, ...] = ()

    @property
    def hangs(self) -> bool:
        """Some call had not come back when time was up."""
        return self.unanswered is not None or any(gpu.unanswered for gpu in self.gpus)


class DriverProcess:
    """A child process that asks the driver; started at once."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child needs none of them
            self._pid = os.fork()
        if self._pid == 0:
            os.close(self._read)
            _be_child(write)
        os.close(write)

    def facts(self, seconds: float) -> DriverFacts:
        """What it has told when it ended, or after so many seconds; it is killed then."""
        heard, timely = _Heard(), False
        try:
            timely = self._listen(heard, time.monotonic() + seconds)
        finally:
            died = self._end()
        return heard.facts(_crash(died) if timely else None, seconds=seconds)

    def _listen(self, heard: "_Heard", end: float) -> bool:
        """Take in what it tells until it ends (true), or time is up."""
        data, taken = b"", 0
        while (left := end - time.monotonic()) > 0 and taken < _LONGEST:
            ready, _, _ = select.select([self._read], [], [], left)
            new = os.read(self._read, 65536) if ready else b""
            if not new:
                return bool(ready)
            taken += len(new)
            *lines, data = (data + new).split(b"\n")
            for line in lines:
                heard.take(msgspec.json.decode(line))
        return False

    def _end(self) -> int:
        """Kill what still runs; how the child itself ended: its exit code, or a signal below 0."""
        os.close(self._read)
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            time.sleep(0.05)  # it has told all, and is just about to end
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        os.kill(self._pid, signal.SIGKILL)
        time.sleep(0.05)
        os.waitpid(self._pid, os.WNOHANG)  # one that is stuck in the kernel is left to the system
        return 0


class _Heard:
    """Puts together what the child tells, bit by bit."""

    def __init__(self) -> None:
        self._machine: dict[str, Any] = {}
        self._gpus: dict[int, dict[str, Any]] = {}
        self._asks: dict[int | None, str | None] = {}
        self._all = False

    def take(self, message: dict[str, Any]) -> None:
        gpu = message.pop("gpu", None)
        if "asks" in message:
            self._asks[gpu] = message.pop("asks")
        self._all = message.pop("all", self._all)
        (self._machine if gpu is None else self._gpus.setdefault(gpu, {})).update(message)

    def facts(self, crash: str | None, *, seconds: float) -> DriverFacts:
        """All of it.

        Args:
            crash: how the child ended before its time; None: it did not.
            seconds: that it had.
        """
        asked = {gpu: call for gpu, call in self._asks.items() if call and not self._all}
        machine = {"kernel_module": _kernel_module()} | self._machine
        if crash and not self._all:
            calls = ", ".join(sorted(set(asked.values()))) or "its start"
            machine["problem"] = f"the driver's library ends the process that asks it ({crash}, in {calls})"
            asked = {}
        elif None in asked:
            machine["problem"] = f"the NVIDIA driver has not answered {asked[None]} within {seconds:g} seconds"
        gpus = tuple(
            GpuFacts(index=index, unanswered=asked.get(index), **facts) for index, facts in sorted(self._gpus.items())
        )
        return DriverFacts(unanswered=asked.get(None), gpus=gpus, **machine)


def _crash(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _be_child(write: int) -> None:
    """Ask, tell, and end without anything that a process does at its end."""

    def tell(message: dict[str, Any]) -> None:
        os.write(write, msgspec.json.encode(message) + b"\n")  # less than PIPE_BUF: threads do not mix

    faulthandler.disable()  # how it ends is told in a sentence
    code = 1
    try:
        _ask(tell)
        tell({"all": True})
        code = 0
    finally:
        os._exit(code)


def _ask(tell: Report) -> None:
    tell({"asks": "the loading of pynvml"})
    try:
        import pynvml
    except ImportError as error:
        tell({"problem": f"nvidia-ml-py cannot be imported: {error}", "asks": None})
        return
    tell({"asks": "nvmlInit"})
    begun = time.monotonic()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        tell({"problem": no_driver_error(pynvml, error).message, "library": loaded_library(), "asks": None})
        return
    tell({"init_seconds": round(time.monotonic() - begun, 4), "library": loaded_library()})
    for name, call in _VERSIONS.items():
        tell({"asks": call})
        try:
            tell({name: _version(getattr(pynvml, call)())})
        except pynvml.NVMLError:
            continue
    tell({"asks": "nvmlDeviceGetCount"})
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        tell({"problem": f"the driver could not list its GPUs ({error})", "asks": None})
        return
    tell({"asks": None})
    _ask_devices(pynvml, count, tell)


_VERSIONS = {
    "driver_version": "nvmlSystemGetDriverVersion",
    "nvml_version": "nvmlSystemGetNVMLVersion",
    "cuda_version": "nvmlSystemGetCudaDriverVersion_v2",
}


def _ask_devices(nvml: Any, count: int, tell: Report) -> None:
    """Each on a thread of its own: one that hangs keeps no other from answering."""

    def look(index: int) -> None:
        GpuQuery(nvml, index, lambda facts: tell({"gpu": index, **facts})).ask_all()

    threads = [threading.Thread(target=look, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _version(answer: Any) -> str:
    """As people write it; CUDA's is a number, 12040 for 12.4."""
    return f"{answer // 1000}.{answer % 1000 // 10}" if isinstance(answer, int) else str(answer)


def loaded_library() -> str | None:
    """Where the driver's library of this process lies; None: none is loaded."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((line.split(None, 5)[5] for line in maps.splitlines() if _LIBRARY in line), None)


def _kernel_module() -> str | None:
    """The line that names kind and version: ``NVIDIA UNIX Open Kernel Module for x86_64  580.95.05``."""
    try:
        text = DRIVER_VERSION_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^NVRM version:\s*(.*?\d+\.\d+(?:\.\d+)?)", text, re.MULTILINE)
    return " ".join(found[1].split()) if found else None
