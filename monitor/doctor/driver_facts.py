"""Facts about the NVIDIA driver and its GPUs. The names of the fields are the keys of ``vramtop doctor --json``."""

import faulthandler
import os
import re
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.common.errors import CannotTellError, ProcessLimitError, process_limit_error, start_thread

from ..host.plain_text import sanitize_line
from ..host.processes import ProcessDirectory
from ..sources.nvml.device_calls import (
    DRIVER_VERSION_FILE,
    DeviceCalls,
    DeviceLostError,
    MemoryFigures,
    RefusedError,
    implausible,
    no_driver_error,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """Facts about one GPU; None: not reported."""

    index: int
    """NVML index."""
    name: str | None = None
    """Name of the card."""
    uuid: str | None = None
    """First characters of the UUID."""
    memory_info: str | None = None
    """``v2``, or ``v1`` which counts the memory reserved by the driver as used."""
    total_bytes: int | None = None
    """Its memory."""
    used_bytes: int | None = None
    """Used memory."""
    free_bytes: int | None = None
    """Free memory."""
    reserved_bytes: int | None = None
    """Memory that the driver reserves."""
    implausible: str | None = None
    """Why these figures cannot be a GPU's own memory; None: they can."""
    compute_mode: str | None = None
    """Which processes may start CUDA programs on it."""
    mig_slots: int | None = None
    """Maximum number of MIG devices; None: MIG is off, or unknown."""
    processes: int | None = None
    """Number of processes on it."""
    processes_seen: int | None = None
    """Processes that can be identified from here."""
    processes_of_others: int | None = None
    """Processes of other users."""
    processes_without_memory: int | None = None
    """Processes whose memory the driver does not report."""
    abilities: Mapping[str, str] = field(default_factory=dict)
    """Supported queries: ``yes``, ``on``, ``off``, or the driver's error code for its refusal."""
    slowest_call: str | None = None
    """The driver call that took longest."""
    slowest_seconds: float | None = None
    """Time that it took, in seconds."""
    lost: str | None = None
    """The driver's error code if the GPU does not answer at all; None: it does."""
    unanswered: str | None = None
    """The call that had not returned at the time limit; None: all did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """Facts about the driver; None: not reported."""

    problem: str | None = None
    """Why the driver cannot be used, in a sentence."""
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_version: str | None = None
    """Latest CUDA version that the driver supports."""
    kernel_module: str | None = None
    """Kind and version of the kernel module, from /proc."""
    library: str | None = None
    """Path of the library that was loaded."""
    init_seconds: float | None = None
    unanswered: str | None = None
    """The call that had not returned at the time limit, outside of the GPUs."""
    gpus: tuple[GpuFacts, ...] = ()

    @property
    def hangs(self) -> bool:
        """True if a call had not returned at the time limit."""
        return self.unanswered is not None or any(gpu.unanswered for gpu in self.gpus)


# Makes every call about one GPU that vramtop ever makes: its answers, or the driver's error code for a refusal.


SendFacts = Callable[[dict[str, Any]], None]
"""Sends facts by their names to the process that collects them."""

_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_FIGURE_CALLS = {
    "utilisation": ("nvmlDeviceGetUtilizationRates",),
    "power": ("nvmlDeviceGetPowerUsage",),
    "power_limit": ("nvmlDeviceGetEnforcedPowerLimit",),
}
_PROCESS_LISTS = {"processes": "Compute", "graphics_processes": "Graphics", "mps_processes": "MPSCompute"}
_MAX_UUID_CHARACTERS = 12
"""``GPU-`` and eight digits: enough to distinguish the GPUs of a machine, too little to identify one."""


class GpuQuery:
    """Queries one GPU; each fact is sent at once, because the next call may hang.

    Args:
        nvml: the ``pynvml`` module, initialised.
        index: NVML index of the GPU.
        send: receives facts by the names of ``GpuFacts``, and ``asks``, the name of the call in progress.
    """

    def __init__(self, nvml: Any, index: int, send: SendFacts) -> None:
        self._nvml = nvml
        self._index = index
        self._send = send
        self._calls = DeviceCalls(nvml, clock=time.monotonic)
        self._handle: Any = None
        self._abilities: dict[str, str] = {}
        self._slowest = 0.0

    def run(self) -> None:
        """Make all calls; a GPU that is lost is reported as lost."""
        try:
            self._handle = self._call("nvmlDeviceGetHandleByIndex", self._index)
            self._identity()
            self._memory()
            for ability, calls in _FIGURE_CALLS.items():
                self._try(ability, calls)
            self._try("temperature", ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), 0)
            self._modes()
            self._processes()
        except (RefusedError, DeviceLostError) as error:
            self._send({"lost": error.code})
        except self._nvml.NVMLError as error:  # concerns the machine as a whole
            self._send({"lost": str(error)})
        self._send({"asks": None})

    def _identity(self) -> None:
        name = self._try("name", ("nvmlDeviceGetName",))
        uuid = self._try("uuid", ("nvmlDeviceGetUUID",))
        self._send(
            {"name": sanitize_line(name or ""), "uuid": None if uuid is None else f"{uuid[:_MAX_UUID_CHARACTERS]}..."}
        )

    def _memory(self) -> None:
        info = self._try("memory_v2", ("nvmlDeviceGetMemoryInfo",), self._nvml.nvmlMemory_v2)
        version = None if info is None else "v2"
        if info is None:
            info = self._try("memory_v1", ("nvmlDeviceGetMemoryInfo",))
            version = None if info is None else "v1"
        if info is None:
            return
        reserved = info.reserved if version == "v2" else None
        figures = MemoryFigures(total=info.total, reserved=reserved, used=info.used, free=info.free)
        sizes = {"total_bytes": info.total, "used_bytes": info.used, "free_bytes": info.free}
        self._send({"memory_info": version, **sizes, "reserved_bytes": reserved, "implausible": implausible(figures)})

    def _modes(self) -> None:
        mode = self._try("compute_mode", ("nvmlDeviceGetComputeMode",))
        if mode is not None:
            self._send({"compute_mode": _COMPUTE_MODES.get(int(mode), str(mode))})
        accounting = self._try("accounting", ("nvmlDeviceGetAccountingMode",))
        if accounting is not None:
            self._set_ability("accounting", "on" if accounting else "off")
        mig = self._try("mig", ("nvmlDeviceGetMigMode",))
        if mig is not None:
            self._set_ability("mig", "on" if mig[0] else "off")
        if mig is not None and mig[0]:
            self._send({"mig_slots": self._try("mig_devices", ("nvmlDeviceGetMaxMigDeviceCount",))})

    def _processes(self) -> None:
        found: dict[int, int | None] = {}
        for ability, kind in _PROCESS_LISTS.items():
            calls = tuple(f"nvmlDeviceGet{kind}RunningProcesses{version}" for version in ("_v3", "_v2"))
            rows = self._try(ability, calls)
            for row in rows or ():
                found[row.pid] = max((size for size in (found.get(row.pid), row.usedGpuMemory) if size), default=None)
        if self._abilities["processes"] != "yes":  # the other lists alone are of no use
            return
        directory = ProcessDirectory()
        mine, facts = _own_user_name(directory), [directory.describe(pid) for pid in found]
        seen = [each for each in facts if each.start_time is not None]
        if found:
            self._set_ability("process_memory", "yes" if all(found.values()) else "not available")
        self._send({
            "processes": len(found),
            "processes_seen": len(seen),
            "processes_of_others": sum(each.user != mine for each in seen),
            "processes_without_memory": sum(size is None for size in found.values()),
        })  # fmt: skip

    def _try(self, ability: str, calls: tuple[str, ...], *args: Any) -> Any:
        """Return the answer of the first call that the driver has; None if it refuses. Sends the ability."""
        code = ""
        for call in calls:
            try:
                answer = self._call(call, self._handle, *args)
            except RefusedError as refused:
                code = refused.code
                if code != "FUNCTION_NOT_FOUND":
                    break
            else:
                self._set_ability(ability, "yes")
                return answer
        self._set_ability(ability, code)
        return None

    def _set_ability(self, ability: str, value: str) -> None:
        self._abilities[ability] = value
        self._send({"abilities": self._abilities})

    def _call(self, call: str, *args: Any) -> Any:
        self._send({"asks": call})
        start = time.monotonic()
        try:
            return self._calls.call(call, *args)
        finally:
            seconds = time.monotonic() - start
            if seconds > self._slowest:
                self._slowest = seconds
                self._send({"slowest_call": call, "slowest_seconds": round(seconds, 4)})


def _own_user_name(directory: ProcessDirectory) -> str | None:
    return directory.describe(os.getpid()).user


# Queries the NVIDIA driver and all of its GPUs; runs in a child process, because the driver may hang or crash.


_LIBRARY = "libnvidia-ml.so"
_VERSION_CALLS = {
    "driver_version": "nvmlSystemGetDriverVersion",
    "nvml_version": "nvmlSystemGetNVMLVersion",
    "cuda_version": "nvmlSystemGetCudaDriverVersion_v2",
}


def query_driver(send: SendFacts) -> None:
    """Make all calls and send each fact at once.

    Args:
        send: receives facts by the names of ``DriverFacts``; ``asks``, the name of the call in progress; and for facts
            about a GPU its index as ``gpu``.
    """
    send({"asks": "the loading of pynvml"})
    try:
        import pynvml
    except ImportError as error:
        send({"problem": f"nvidia-ml-py cannot be imported: {error}", "asks": None})
        return
    send({"asks": "nvmlInit"})
    start = time.monotonic()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        send({"problem": no_driver_error(pynvml, error).message, "library": loaded_library(), "asks": None})
        return
    send({"init_seconds": round(time.monotonic() - start, 4), "library": loaded_library()})
    for name, call in _VERSION_CALLS.items():
        send({"asks": call})
        try:
            send({name: _version_text(getattr(pynvml, call)())})
        except pynvml.NVMLError:
            continue
    send({"asks": "nvmlDeviceGetCount"})
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        send({"problem": f"the driver could not list its GPUs ({error})", "asks": None})
        return
    send({"asks": None})
    _query_gpus(pynvml, count, send)


def loaded_library() -> str | None:
    """Return the path of the driver's library that this process has loaded; None: none is loaded."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((line.split(None, 5)[5] for line in maps.splitlines() if _LIBRARY in line), None)


def _query_gpus(nvml: Any, count: int, send: SendFacts) -> None:
    """Query each GPU on a thread of its own, so that one that hangs does not delay the others."""

    def query(index: int) -> None:
        GpuQuery(nvml, index, lambda facts: send({"gpu": index, **facts})).run()

    threads = [threading.Thread(target=query, args=(index,), daemon=True) for index in range(count)]
    for index, thread in enumerate(threads):
        try:
            start_thread(thread)
        except ProcessLimitError:
            query(index)
    for thread in threads:
        if thread.ident is not None:
            thread.join()


def _version_text(answer: Any) -> str:
    """Return a version in its usual form; CUDA's is a number, 12040 for 12.4."""
    return f"{answer // 1000}.{answer % 1000 // 10}" if isinstance(answer, int) else str(answer)


# Runs the driver query in a child process, which is reported and abandoned if the driver hangs or crashes.


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
