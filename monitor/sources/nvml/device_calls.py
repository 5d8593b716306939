"""Calls of NVML for one device; refusals are remembered, so that a useless call is not repeated at every tick."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib

from ...host.available_ram import available_host_memory, host_total_bytes
from ...host.process_directory import ProcessFacts
from ...snapshot.faults import ASLEEP, HOST_MEMORY, NOT_LISTED, Fault
from ...snapshot.snapshot import GpuProcess, ProcessType

# NVML's error codes as sentences: for the machine, for one device, for one field.


PCI_FOLDER = Path("/sys/bus/pci/devices")
DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")
OWN_MAPS_FILE = Path("/proc/self/maps")

UNSUPPORTED_CODES = frozenset({"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"})
"""The call fails in the same way every time."""
DEVICE_CODES = frozenset({"GPU_IS_LOST", "RESET_REQUIRED"})
"""The whole device fails, whatever was called."""
MACHINE_CODES = frozenset({"UNINITIALIZED", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"})
"""NVML as a whole fails, whatever was called."""

_DRIVER_MESSAGES = {
    "LIBRARY_NOT_FOUND": "no NVIDIA driver here: libnvidia-ml.so.1 was not found; install the driver, or start the "
    "container with the NVIDIA runtime (docker run --gpus all)",
    "DRIVER_NOT_LOADED": "the NVIDIA driver is installed but its kernel module is not loaded; load it with "
    "'sudo modprobe nvidia' or reboot",
    "NO_PERMISSION": "this user may not open the NVIDIA devices; check who may read and write /dev/nvidiactl and "
    "/dev/nvidia0",
    "UNINITIALIZED": "the NVIDIA driver was shut down and does not start again; try again, or reload its kernel module",
}
_DEVICE_MESSAGES = {
    "GPU_IS_LOST": "the GPU no longer answers: it has fallen off the bus or is otherwise inaccessible; the kernel log "
    "says why, and it needs a GPU reset or a reboot",
    "RESET_REQUIRED": "the GPU must be reset before it can be used again (nvidia-smi --gpu-reset)",
    "NO_PERMISSION": "this user may not open this GPU",
    NOT_LISTED: "the driver no longer lists this GPU",
    "UNKNOWN": "the driver cannot reach this GPU (UNKNOWN); the kernel log (dmesg) may say why",
    ASLEEP: "this GPU is asleep to save power; vramtop does not query it, as that would wake it",
}
_FIELD_MESSAGES = {
    "NOT_SUPPORTED": "this GPU does not report {what}",
    "FUNCTION_NOT_FOUND": "the installed driver is too old to report {what}",
    "ARGUMENT_VERSION_MISMATCH": "the installed driver is too old to report {what}",
    "NO_PERMISSION": "the driver does not let this user read {what}",
    "IMPLAUSIBLE": "the driver's figures for {what} are implausible",
}


class NoDriverError(CannotTellError):
    """NVML cannot be used on this machine, or not now."""

    title = "No NVIDIA driver"


def code_of(nvml: Any, error: Any) -> str:
    """Return the code of an ``NVMLError``, such as ``GPU_IS_LOST``; ``ERROR_1234`` if pynvml has no name for it."""
    return _codes(nvml).get(error.value, f"ERROR_{error.value}")


@cache
def _codes(nvml: Any) -> dict[int, str]:
    prefix = "NVML_ERROR_"
    return {value: name.removeprefix(prefix) for name, value in vars(nvml).items() if name.startswith(prefix)}


def no_driver_error(nvml: Any, error: Any, *, was_open: bool = False) -> NoDriverError:
    """Return the exception for an NVML that cannot be used.

    Args:
        nvml: the ``pynvml`` module.
        error: its ``NVMLError``.
        was_open: NVML worked earlier in this process, which keeps the library that it has loaded.
    """
    code = code_of(nvml, error)
    if code == "LIB_RM_VERSION_MISMATCH":
        return NoDriverError(_mismatch(_library_version(nvml), _kernel_version(), was_open=was_open))
    return NoDriverError(
        _DRIVER_MESSAGES.get(
            code, f"the NVIDIA driver could not be started ({code}); the kernel log (dmesg) may say why"
        )
    )


def driver_hang_error(call: str, seconds: float) -> NoDriverError:
    """Return the exception for a driver that hangs while it is started.

    Args:
        call: that is running.
        seconds: for which it has been running.
    """
    return NoDriverError(
        f"the NVIDIA driver hangs: {call} has not returned for {seconds:.0f} s; the kernel log (dmesg) may say why"
    )


def device_fault(code: str) -> Fault:
    """Return a fault of a whole device."""
    return Fault(
        field=None, code=code, message=_DEVICE_MESSAGES.get(code, f"the driver cannot reach this GPU ({code})")
    )


def field_fault(field: str, code: str, *, what: str) -> Fault:
    """Return a fault of one field of a reading.

    Args:
        field: its name in ``GpuReading``.
        code: the driver's error code.
        what: the field in words, such as ``its temperature``.
    """
    sentence = _FIELD_MESSAGES.get(code, "the driver could not read {what} ({code})")
    return Fault(field=field, code=code, message=sentence.format(what=what, code=code))


def _mismatch(library: str | None, kernel: str | None, *, was_open: bool) -> str:
    versions = f"(library {library or 'unknown'}, kernel module {kernel or 'unknown'})"
    if was_open:
        return (
            f"the NVIDIA driver was updated while vramtop ran, and the old library is still loaded in it {versions}; "
            "quit vramtop and start it again"
        )
    if library and kernel and _numbers(library) < _numbers(kernel):
        return (
            f"the NVIDIA library here is older than the loaded kernel module {versions}; start the container again, "
            "or install the library of the loaded driver"
        )
    return (
        f"the NVIDIA driver was updated while its old kernel module stayed loaded {versions}; reboot, or unload and "
        "load the nvidia modules"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _library_version(nvml: Any) -> str | None:
    """Return the library's version, which needs no initialised driver: ``550.54.15`` from ``12.550.54.15``."""
    try:
        version = str(nvml.nvmlSystemGetNVMLVersion())
    except nvml.NVMLError:
        return _mapped_version()
    cuda, _, driver = version.partition(".")
    return driver if "." in driver and len(cuda) <= 2 else version


def _mapped_version() -> str | None:
    """Return the version in the name of the library file that is loaded: ``libnvidia-ml.so.550.54.15``."""
    try:
        text = OWN_MAPS_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"/libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else None


def _kernel_version() -> str | None:
    """Return the kernel module's version, from the line ``NVRM version: NVIDIA UNIX ... 535.104.05  Sat Aug ...``."""
    try:
        text = DRIVER_VERSION_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return match[1] if match else None


RETRY_REFUSED_SECONDS = 60.0
"""Waiting time before a call that was refused permanently is tried again."""


class RefusedError(Exception):
    """The driver does not report one figure.

    Args:
        code: the driver's error code.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class DeviceLostError(Exception):
    """The device as a whole does not answer.

    Args:
        code: the driver's error code.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class DeviceCalls:
    """Calls for one device. Errors of the whole machine (``MACHINE_CODES``) are raised as pynvml's own exceptions.

    Args:
        nvml: the ``pynvml`` module, initialised.
        clock: monotonic seconds.
    """

    def __init__(self, nvml: Any, *, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self.pending_call: str | None = None
        """The call that is running; may be read from another thread."""
        self._refused: dict[str, tuple[str, float]] = {}

    def query(self, key: str, calls: tuple[str, ...], *args: Any, valid: Callable[[Any], bool] = lambda _: True) -> Any:
        """Return the first valid answer of several versions of a call.

        Args:
            key: under which a refusal is remembered.
            calls: pynvml's names for it, in order of preference; later ones are for drivers without the earlier ones.
            args: arguments of each of them.
            valid: returns True if an answer is possible.

        Raises:
            RefusedError: none of them gave a valid answer, now or less than a minute ago.
            DeviceLostError: the device as a whole does not answer.
        """
        code, until = self._refused.get(key, ("", 0.0))
        if code and self._clock() < until:
            raise RefusedError(code)
        for call in calls:
            try:
                answer = self.call(call, *args)
            except RefusedError as refused:
                code = refused.code
                if code != "FUNCTION_NOT_FOUND":
                    break
            else:
                if valid(answer):
                    self._refused.pop(key, None)
                    return answer
                code = "IMPLAUSIBLE"
        if code in UNSUPPORTED_CODES or code == "NO_PERMISSION":
            self._refused[key] = code, self._clock() + RETRY_REFUSED_SECONDS
        raise RefusedError(code)

    def call(self, call: str, *args: Any) -> Any:
        """Make one call; a call that this pynvml lacks counts as one that the driver lacks.

        Raises:
            RefusedError: it gave no answer.
            DeviceLostError: the device as a whole does not answer.
        """
        function = getattr(self._nvml, call, None)
        if function is None:
            raise RefusedError("FUNCTION_NOT_FOUND")
        self.pending_call = call
        try:
            return function(*args)
        except UnicodeDecodeError as error:  # pynvml decodes all text as UTF-8
            return error.object.decode(errors="replace")
        except self._nvml.NVMLError as error:
            code = code_of(self._nvml, error)
            if code in MACHINE_CODES:
                raise
            raise (DeviceLostError if code in DEVICE_CODES else RefusedError)(code) from None
        finally:
            self.pending_call = None


# NVML's process lists of one device, merged into one row per process.


UNREPORTED_NOTE = "memory not reported by the driver"
TOO_LARGE_NOTE = "reported memory exceeds the GPU's"
MAX_GPU_BYTES = 2**49
"""Addressable by a GPU: its addresses have 49 bits (NVIDIA Tesla P100 whitepaper, unified memory)."""
MPS_SERVER_NOTE = "MPS server: may hold its clients' memory"
MPS_CLIENT_NOTE = "runs under MPS"
NO_INSTANCE = 0xFFFFFFFF
"""NVML's index for a process that runs in no GPU or compute instance, or in one that is not told."""
_MPS_SERVER_NAME = "nvidia-cuda-mps"
"""Beginning of ``nvidia-cuda-mps-server``, of which Linux keeps 15 letters."""


class _MergedEntry(msgspec.Struct):
    """The entries of all lists for one process on a GPU, or in one of its GPU instances."""

    kinds: tuple[ProcessType, ...] = ()
    size: int | None = None
    compute_instance: int | None = None

    def add(self, kind: ProcessType, size: int | None) -> None:
        """Add an entry; a size of 0 counts as unknown, as some drivers report it for all processes in a container."""
        if kind not in self.kinds:
            self.kinds = (*self.kinds, kind)
        size = size or None
        self.size = size if self.size is None else max(self.size, size or 0)


def process_rows(
    lists: Mapping[ProcessType, Sequence[Any]],
    *,
    total_bytes: int | None,
    describe: Callable[[int], ProcessFacts],
    instances: Mapping[int | None, int | None] | None = None,
) -> tuple[GpuProcess, ...]:
    """Return one row per pid, or per GPU instance and pid, largest first, unknown sizes last.

    A process that does both compute and graphics is in both lists, each time with all of its memory: the larger figure
    counts, never the sum.

    Args:
        lists: NVML's entries (``pid``, ``usedGpuMemory`` or None) by list.
        total_bytes: the device's memory; no process can hold more.
        describe: returns the facts about a pid.
        instances: in MIG mode, the memory of the device's GPU instances; other instances in entries are ignored.
    """
    merged: dict[tuple[int, int | None], _MergedEntry] = {}
    for kind, entries in lists.items():
        for entry in entries:
            instance = entry.gpuInstanceId if instances and entry.gpuInstanceId in instances else None
            row = merged.get((entry.pid, instance))
            if row is None:
                row = merged[entry.pid, instance] = _MergedEntry()
            row.add(kind, entry.usedGpuMemory)
            if instance is not None and row.compute_instance is None and entry.computeInstanceId != NO_INSTANCE:
                row.compute_instance = entry.computeInstanceId
    if instances:
        _merge_without_instance(merged)
    rows = [
        _process(pid, row, (instances or {}).get(instance) or total_bytes, describe(pid), instance)
        for (pid, instance), row in merged.items()
    ]
    rows.sort(key=lambda row: (row.used_bytes is None, -(row.used_bytes or 0), row.pid))
    return tuple(rows)


def _merge_without_instance(merged: dict[tuple[int, int | None], _MergedEntry]) -> None:
    """Merge entries of lists without GPU instances with the entry of the same pid that names its instance."""
    known = {pid: instance for pid, instance in merged if instance is not None}
    for pid, instance in [(pid, known[pid]) for pid, none in merged if none is None and pid in known]:
        entry = merged.pop((pid, None))
        for kind in entry.kinds:
            merged[pid, instance].add(kind, entry.size)


def _process(
    pid: int, entry: _MergedEntry, total_bytes: int | None, facts: ProcessFacts, instance: int | None
) -> GpuProcess:
    size, note = entry.size, facts.note
    if (facts.name or "").startswith(_MPS_SERVER_NAME):
        note = _joined(note, MPS_SERVER_NOTE)
    elif "mps" in entry.kinds:
        note = _joined(note, MPS_CLIENT_NOTE)
    if size is None:
        note = _joined(note, UNREPORTED_NOTE)
    elif size > (MAX_GPU_BYTES if total_bytes is None else total_bytes):
        size, note = None, _joined(note, TOO_LARGE_NOTE)
    return GpuProcess(
        pid=pid,
        start_time=facts.start_time,
        used_bytes=size,
        kinds=entry.kinds,
        user=facts.user,
        name=facts.name,
        command=facts.command,
        note=note,
        parent=facts.parent,
        parent_name=facts.parent_name,
        runs_in=facts.runs_in,
        cpu_seconds=facts.cpu_seconds,
        gpu_instance=instance,
        compute_instance=entry.compute_instance,
    )


def _joined(first: str | None, second: str) -> str:
    return f"{first}; {second}" if first else second


# Memory of one GPU: the driver's figures, or the host's if the GPU has no memory of its own.


_FIELDS = {
    "total_bytes": "its total memory",
    "reserved_bytes": "its reserved memory",
    "used_bytes": "its used memory",
    "free_bytes": "its free memory",
}
_MEMORY_INFO = ("nvmlDeviceGetMemoryInfo",)


class MemoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Memory info in bytes; None: unknown."""

    total: int | None = None
    reserved: int | None = None
    used: int | None = None
    free: int | None = None
    shared: bool = False
    """Total and free are the host's."""


MemoryReading = tuple[MemoryFigures, tuple[Fault, ...]]
"""The figures, with the faults of missing ones."""


class NvmlMemory:
    """Memory of one device. Not thread-safe.

    Args:
        nvml: the ``pynvml`` module, initialised.
        calls: of the device.
        now: Unix seconds.
    """

    def __init__(self, nvml: Any, calls: DeviceCalls, *, now: Callable[[], float]) -> None:
        self.read_at = 0.0
        """Unix seconds of the last figures."""
        self._nvml = nvml
        self._calls = calls
        self._now = now
        self._handle: Any = None
        self._name: str | None = None
        self._knows_v2 = False
        """Memory info v2 has worked before; v1 counts reserved memory as used, and would make the figures jump."""

    def connect(self, handle: Any, name: str | None) -> None:
        """Use a new handle of the device, which has this name."""
        self._handle, self._name = handle, name

    def read(self, *, whole: bool) -> MemoryReading:
        """Return memory info v2; with a driver that has only v1, ``used`` includes reserved memory.

        Args:
            whole: it is not in MIG mode, in which a GPU may refuse to report its own memory.

        Raises:
            DeviceLostError: the device as a whole does not answer.
        """
        faults: tuple[Fault, ...] = ()
        try:
            info = self._calls.query("memory v2", _MEMORY_INFO, self._handle, self._nvml.nvmlMemory_v2)
            figures = MemoryFigures(total=info.total, reserved=info.reserved, used=info.used, free=info.free)
            self._knows_v2 = True
        except RefusedError as refused:
            if self._knows_v2:  # as it has worked before, the failure is temporary
                return _unknown(refused.code)
            if refused.code == "NOT_SUPPORTED":
                return self._host_memory() if whole and self._may_share_memory() else _unknown(refused.code)
            try:
                info = self._calls.query("memory v1", _MEMORY_INFO, self._handle)
            except RefusedError as refused_v1:
                unified = refused_v1.code == "NOT_SUPPORTED" and whole and self._may_share_memory()
                return self._host_memory() if unified else _unknown(refused_v1.code)
            figures = MemoryFigures(total=info.total, used=info.used, free=info.free)
            message = "this driver counts its reserved part as used memory (memory info v1)"
            faults = (Fault(field="reserved_bytes", code=refused.code, message=message),)
        self.read_at = self._now()
        problem = implausible(figures)
        if problem is not None:
            unified = self._may_share_memory(alike=_is_about_the_hosts(figures.total)) if whole else False
            return self._host_memory() if unified else _unknown("IMPLAUSIBLE", problem)
        return _consistent(figures), faults

    def read_again(self, attributed: int) -> MemoryReading:
        """Read again because the processes have grown; adds a fault if they still hold more than is used.

        Args:
            attributed: bytes that the processes hold.
        """
        memory, faults = self.read(whole=False)
        if memory.used is None or attributed <= memory.used:
            return memory, faults
        message = (
            f"the processes' figures add up to {format_gib(attributed)} GiB, more than the "
            f"{format_gib(memory.used)} GiB that the driver counts as used"
        )
        return memory, (*faults, Fault(field="unattributed_bytes", code="IMPLAUSIBLE", message=message))

    def _may_share_memory(self, *, alike: bool = True) -> bool:
        """Return True if this GPU model has no memory of its own; of one that is not known, if its figures say so.

        Args:
            alike: the figures are those of a GPU without its own memory. A total of 0 is not: it says nothing.
        """
        from vramtop.estimator.job.gpu_catalogue import match_nvml_name  # rarely needed, and reads the catalogue

        model = match_nvml_name(self._name, None) if self._name else None
        return alike if model is None else model.unified

    def _host_memory(self) -> MemoryReading:
        """Return the memory of a GPU without its own, such as GB10 and Jetson; its used memory is not known yet."""
        self.read_at = self._now()
        return MemoryFigures(total=host_total_bytes(), free=available_host_memory().available_bytes, shared=True), ()


def shared_memory_use(memory: MemoryFigures, processes: tuple[GpuProcess, ...] | None) -> MemoryReading:
    """Return shared memory with its used part: the sum over the processes, if all of these are known."""
    message = "this GPU shares the host's memory: total and free are the host's, used is what its processes hold"
    shared = Fault(field="reserved_bytes", code=HOST_MEMORY, message=message)
    sizes = [process.used_bytes for process in processes or ()]
    known = [size for size in sizes if size is not None]
    if processes is not None and len(known) == len(sizes):
        return replace(memory, used=sum(known)), (shared,)
    message = "not all of its processes' memory is known, so its used memory is unknown"
    return memory, (shared, Fault(field="used_bytes", code=HOST_MEMORY, message=message))


def implausible(memory: MemoryFigures) -> str | None:
    """Return why these figures cannot be a GPU's own memory; None if they can.

    GPUs that share the host's memory may report a total of 0, as a driver in trouble does, or figures that do not add
    up (a GB10 reported 119.7 GiB in total, 6.4 used, 7.4 free).
    """
    total, used, free = memory.total or 0, memory.used or 0, memory.free or 0
    parts = used + free + (memory.reserved or 0)
    if 0 < total <= MAX_GPU_BYTES and used <= total and free <= total and abs(parts - total) <= total // 20:
        return None
    return (
        f"the driver's memory figures are implausible ({format_gib(total)} GiB in all, {format_gib(used)} used, "
        f"{format_gib(free)} free)"
    )


def _consistent(memory: MemoryFigures) -> MemoryFigures:
    """Count what is neither used nor free as reserved (v2), or as used, as ``nvidia-smi`` does (v1)."""
    total, free = memory.total or 0, memory.free or 0
    if memory.reserved is None:
        return replace(memory, used=total - free)
    free = min(free, total - (memory.used or 0))
    return replace(memory, free=free, reserved=total - free - (memory.used or 0))


def _is_about_the_hosts(total: int | None) -> bool:
    host = host_total_bytes()
    return abs((total or 0) - host) <= host // 20


def _unknown(code: str, message: str | None = None) -> MemoryReading:
    faults = (field_fault(field, code, what=what) for field, what in _FIELDS.items())
    return MemoryFigures(), tuple(faults if message is None else (replace(each, message=message) for each in faults))
