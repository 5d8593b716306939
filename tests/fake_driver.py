"""A fake libnvidia-ml, so that pynvml's own calling code runs without a GPU."""

import ctypes
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

SUCCESS = 0
GIB = 2**30
_FIGURES: dict[str, Any] = {
    "SystemGetDriverVersion": b"580.65.06",
    "SystemGetNVMLVersion": b"13.580.65.06",
    "SystemGetCudaDriverVersion": 13000,
    "Name": lambda gpu, *_: gpu.name.encode(),
    "UUID": lambda gpu, *_: gpu.uuid.encode(),
    "VbiosVersion": b"92.00.45.00.00",
    "UtilizationRates": lambda gpu, *_: {"gpu": gpu.utilisation, "memory": gpu.memory_utilisation},
    "EncoderUtilization": (5, 0),
    "DecoderUtilization": (6, 0),
    "Temperature": lambda gpu, *_: gpu.temperature,
    "TemperatureV": lambda gpu, *_: {"temperature": gpu.temperature},
    "TemperatureThreshold": lambda _, kind, __: (90, 87)[kind],
    "MarginTemperature": {"marginTemperature": 24},
    "PowerUsage": lambda gpu, *_: gpu.milliwatts,
    "EnforcedPowerLimit": lambda gpu, *_: gpu.limit_milliwatts,
    "PowerManagementDefaultLimit": 400_000,
    "PowerManagementLimitConstraints": (100_000, 500_000),
    "CurrentClocksEventReasons": lambda gpu, *_: gpu.clock_reasons,
    "CurrentClocksThrottleReasons": lambda gpu, *_: gpu.clock_reasons,
    "ClockInfo": lambda _, clock, __: {1: 1200, 2: 1215}[clock],
    "MaxClockInfo": lambda _, clock, __: {1: 1410, 2: 1593}[clock],
    "NumFans": 2,
    "FanSpeed": lambda gpu, *fan_and_pointer: gpu.fans[fan_and_pointer[0] if len(fan_and_pointer) > 1 else 0],
    "PerformanceState": 0,
    "PersistenceMode": 1,
    "ComputeMode": lambda gpu, *_: gpu.compute_mode,
    "AccountingMode": lambda gpu, *_: gpu.accounting,
    "EccMode": (1, 1),
    "TotalEccErrors": lambda _, kind, counter, __: {(0, 0): 3, (1, 0): 0, (0, 1): 10, (1, 1): 1}[kind, counter],
    "RemappedRows": (1, 2, 1, 0),
    "BAR1MemoryInfo": {"bar1Total": 2**36, "bar1Used": 2**21},
    "CurrPcieLinkGeneration": 1,
    "MaxPcieLinkGeneration": 4,
    "CurrPcieLinkWidth": 8,
    "MaxPcieLinkWidth": 16,
    "PcieReplayCounter": 7,
    "PcieThroughput": lambda _, counter, __: (200_000, 400_000)[counter],
    "NvLinkVersion": 3,
    "NvLinkRemoteDeviceType": 2,
    "NvLinkState": lambda _, link, __: int(link != 1),  # the second link is down
}
"""What functions answer that give figures, by their name: one for all, or that of a GPU (or MIG device)."""
_MIG_HANDLE_STEP = 1000
"""Handle number of a MIG device: this times (slot + 1), plus the index of its GPU."""


@dataclass
class FakeProcess:
    """A GPU process."""

    pid: int
    used_bytes: int | None
    lists: tuple[str, ...] = ("Compute",)
    peak_bytes: int | None = None
    """Peak memory reported by accounting; None: not available."""
    running: bool = True
    """False: the accounting statistics belong to an earlier process with this pid."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    utilisation: tuple[int, int] | None = None
    """Percent of the multiprocessors and of the memory bandwidth in the latest sample; None: there is no sample."""


@dataclass
class FakeMig:
    """A MIG device."""

    uuid: str
    gpu_instance: int
    compute_instance: int = 0
    total_bytes: int = 10 * GIB
    used_bytes: int = GIB
    name: str = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"


@dataclass
class FakeGpu:
    """A whole GPU."""

    name: str = "NVIDIA A100-SXM4-80GB"
    uuid: str = "GPU-0"
    total_bytes: int = 80 * GIB
    reserved_bytes: int = GIB // 2
    used_bytes: int = 20 * GIB
    free_bytes: int | None = None
    """None: total minus reserved minus used."""
    utilisation: int = 70
    temperature: int = 55
    milliwatts: int = 300_000
    limit_milliwatts: int = 400_000
    compute_mode: int = 0
    memory_utilisation: int = 40
    clock_reasons: int = 0x4
    fans: tuple[int, ...] = (30, 42)
    processes: list[FakeProcess] = field(default_factory=list)
    accounting: bool = False
    mig: list[FakeMig | None] | None = None
    """Slots for MIG devices, None for an unused slot; None: no MIG support, empty list: MIG mode is off."""

    @property
    def free(self) -> int:
        return self.total_bytes - self.reserved_bytes - self.used_bytes if self.free_bytes is None else self.free_bytes


class FakeDriver:
    """Behaves like the C library: functions write results through pointer arguments and return an error code."""

    def __init__(self) -> None:
        self.gpus: list[FakeGpu] = []
        self.figures = dict(_FIGURES)
        self.errors: dict[tuple[str, int | None], int] = {}
        """(function, GPU or None for all) -> code."""
        self.whole_gpu_errors: dict[str, int] = {}
        """function -> code, for whole GPUs only, not for MIG devices."""
        self.missing: set[str] = set()
        """Functions that this driver's library does not have."""
        self.mig: dict[str, int] = {}
        """UUID of a MIG device -> index of its GPU."""
        self.calls: Counter[str] = Counter()
        self._others = {thread for thread in threading.enumerate() if thread.name == "vramtop-nvml"}
        """Threads of earlier tests: a call that their driver has released at last is followed by calls to this one."""
        self.field_reads = 0
        self.initialised = 0
        self.hangs: dict[tuple[str, int | None], threading.Event] = {}
        """(function, GPU or None for all) -> event that lets calls return; ``*``: functions with a device handle."""
        self.pending_calls: Counter[str] = Counter()
        """Number of hanging calls, by function."""
        self.hanging_threads: set[int] = set()
        """Identifiers of the threads with a hanging call."""
        self.calls_interrupted_by_shutdown: list[str] = []
        """Functions with calls still pending when NVML was shut down."""

    def fail(self, function: str, code: int, gpu: int | None = None) -> None:
        """Make a function return an error code, for one GPU or for all."""
        self.errors[function, gpu] = code

    def fail_for_whole_gpus(self, function: str, code: int) -> None:
        """Make a function fail for whole GPUs but not for their MIG devices."""
        self.whole_gpu_errors[function] = code

    def lose(self, gpu: int, code: int = pynvml.NVML_ERROR_GPU_IS_LOST) -> None:
        """Make all functions fail for one GPU."""
        self.fail("*", code, gpu)

    def hang(self, function: str = "*", gpu: int | None = None) -> threading.Event:
        """Make calls hang until the returned event is set or ``release`` is called."""
        self.hangs[function, gpu] = threading.Event()
        return self.hangs[function, gpu]

    def release(self) -> None:
        """Let all hanging calls return."""
        hanging, self.hangs = self.hangs, {}
        for event in hanging.values():
            event.set()

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name in self.missing or not name.startswith("nvml"):
            raise AttributeError(name)
        simple = name.removesuffix("_v3").removesuffix("_v2")
        of_a_table = simple.removeprefix("nvml").removeprefix("DeviceGet") in self.figures
        method = "_figure" if of_a_table else "_processes" if simple.endswith("RunningProcesses") else f"_{simple}"
        answer: Callable[..., int] = getattr(type(self), method)

        def function(*args: Any) -> int:
            if threading.current_thread() in self._others:
                return pynvml.NVML_ERROR_UNINITIALIZED
            self.calls[name] += 1
            self._wait(name, args)
            code = self._error(name, args)
            return code if code != SUCCESS else answer(self, name, *args)

        return function

    def _wait(self, name: str, args: tuple[Any, ...]) -> None:
        simple, gpu = name.removesuffix("_v3").removesuffix("_v2"), self._gpu_of(name, args)
        keys = ((simple, gpu), (simple, None), ("*", gpu))
        for event in [self.hangs[key] for key in keys if key in self.hangs and (key[0] != "*" or gpu is not None)]:
            self.pending_calls[name] += 1
            self.hanging_threads.add(threading.get_ident())
            assert event.wait(600), f"{name} still hangs: the test never released it"
            self.hanging_threads.discard(threading.get_ident())
            self.pending_calls[name] -= 1

    @staticmethod
    def _gpu_of(name: str, args: tuple[Any, ...]) -> int | None:
        if name.startswith("nvmlDeviceGetHandleByIndex"):
            return int(args[0].value)
        if name.startswith("nvmlDeviceGet") and not name.startswith(("nvmlDeviceGetCount", "nvmlDeviceGetHandle")):
            return handle_number(args[0]) % _MIG_HANDLE_STEP
        return None

    def _error(self, name: str, args: tuple[Any, ...]) -> int:
        if not self.initialised and not name.startswith(("nvmlInit", "nvmlSystemGetNVMLVersion", "nvmlErrorString")):
            return pynvml.NVML_ERROR_UNINITIALIZED
        gpu = self._gpu_of(name, args)
        if name in self.whole_gpu_errors and gpu is not None and handle_number(args[0]) < _MIG_HANDLE_STEP:
            return self.whole_gpu_errors[name]
        for key in ((name, gpu), (name, None), ("*", gpu)):
            if key in self.errors and (key[0] != "*" or gpu is not None):
                return self.errors[key]
        return SUCCESS

    def _nvmlInitWithFlags(self, name: str, flags: Any) -> int:  # noqa: N802 - the C library's names
        self.initialised += 1
        return SUCCESS

    def _nvmlShutdown(self, name: str) -> int:  # noqa: N802
        self.calls_interrupted_by_shutdown += [call for call, count in self.pending_calls.items() if count]
        self.initialised -= 1
        return SUCCESS

    def _nvmlDeviceGetCount(self, name: str, number: Any) -> int:  # noqa: N802
        number._obj.value = len(self.gpus)
        return SUCCESS

    def _nvmlDeviceGetHandleByIndex(self, name: str, index: Any, handle: Any) -> int:  # noqa: N802
        pointer = ctypes.c_void_p(index.value + 1)
        ctypes.memmove(ctypes.addressof(handle._obj), ctypes.addressof(pointer), ctypes.sizeof(pointer))
        return SUCCESS

    def _nvmlDeviceGetHandleByUUID(self, name: str, uuid: Any, handle: Any) -> int:  # noqa: N802
        gpu = self.mig.get(uuid.value.decode())
        if gpu is None:
            return pynvml.NVML_ERROR_NOT_FOUND
        return self._nvmlDeviceGetHandleByIndex(name, ctypes.c_uint(gpu), handle)

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, name: str, mig: Any, handle: Any) -> int:  # noqa: N802
        return self._nvmlDeviceGetHandleByIndex(name, ctypes.c_uint(handle_number(mig)), handle)

    def _nvmlDeviceGetPciInfo(self, name: str, handle: Any, info: Any) -> int:  # noqa: N802
        info._obj.busId = f"0000000A:{handle_number(handle) + 1:02X}:00.0".encode()
        return SUCCESS

    def _mig_of(self, handle: Any) -> FakeMig | None:
        slot, gpu = divmod(handle_number(handle), _MIG_HANDLE_STEP)
        return (self.gpus[gpu].mig or [])[slot - 1] if slot else None

    def _nvmlDeviceGetMigMode(self, name: str, handle: Any, now: Any, pending: Any) -> int:  # noqa: N802
        slots = self.gpus[handle_number(handle)].mig
        if slots is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        now._obj.value = pending._obj.value = bool(slots)
        return SUCCESS

    def _nvmlDeviceGetMaxMigDeviceCount(self, name: str, handle: Any, number: Any) -> int:  # noqa: N802
        number._obj.value = len(self.gpus[handle_number(handle)].mig or ())
        return SUCCESS

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, name: str, handle: Any, slot: Any, device: Any) -> int:  # noqa: N802
        gpu = handle_number(handle)
        if (self.gpus[gpu].mig or [])[slot.value] is None:
            return pynvml.NVML_ERROR_NOT_FOUND
        return self._nvmlDeviceGetHandleByIndex(name, ctypes.c_uint(_MIG_HANDLE_STEP * (slot.value + 1) + gpu), device)

    def _nvmlDeviceGetGpuInstanceId(self, name: str, handle: Any, number: Any) -> int:  # noqa: N802
        device = self._mig_of(handle)
        number._obj.value = device.gpu_instance if device else 0
        return SUCCESS if device else pynvml.NVML_ERROR_NOT_FOUND

    def _nvmlDeviceGetComputeInstanceId(self, name: str, handle: Any, number: Any) -> int:  # noqa: N802
        device = self._mig_of(handle)
        number._obj.value = device.compute_instance if device else 0
        return SUCCESS if device else pynvml.NVML_ERROR_NOT_FOUND

    def _nvmlDeviceGetCudaComputeCapability(self, name: str, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = (9, 0) if "H100" in self.gpus[handle_number(handle)].name else (8, 0)
        return SUCCESS

    def _nvmlDeviceGetMemoryInfo(self, name: str, handle: Any, info: Any) -> int:  # noqa: N802
        answer = info._obj
        if handle_number(handle) >= _MIG_HANDLE_STEP:
            device = self._mig_of(handle)
            if device is None:
                return pynvml.NVML_ERROR_INVALID_ARGUMENT
            answer.total, answer.used = device.total_bytes, device.used_bytes
            answer.free = device.total_bytes - device.used_bytes
            return SUCCESS
        gpu = self.gpus[handle_number(handle)]
        answer.total, answer.free, answer.used = gpu.total_bytes, gpu.free, gpu.used_bytes
        if name.endswith("_v2"):
            answer.reserved = gpu.reserved_bytes
        else:
            answer.used = gpu.used_bytes + gpu.reserved_bytes
        return SUCCESS

    def _nvmlDeviceGetFieldValues(self, name: str, handle: Any, count: Any, values: Any) -> int:  # noqa: N802
        self.field_reads += 1
        known = {82: 61, 90: 25_000, 91: 4, 138: 1000 * self.field_reads, 139: 500 * self.field_reads}
        for value in values._obj:
            value.nvmlReturn = SUCCESS if value.fieldId in known else pynvml.NVML_ERROR_NOT_SUPPORTED
            value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            value.value.ullVal = known.get(value.fieldId, 0)
        return SUCCESS

    def _figure(self, name: str, *args: Any) -> int:
        """Write a figure through the last pointers, or into fields of what the last one points to."""
        simple = name.removesuffix("_v3").removesuffix("_v2").removeprefix("nvml").removeprefix("DeviceGet")
        figure = self.figures[simple]
        if callable(figure):
            of = self._mig_of(args[0]) or self.gpus[handle_number(args[0])]
            figure = figure(of, *(getattr(each, "value", each) for each in args[1:]))
        if isinstance(figure, bytes):
            args[-2].value = figure
        elif isinstance(figure, dict):
            for field_, value in figure.items():
                setattr(args[-1]._obj, field_, value)
        else:
            values = figure if isinstance(figure, tuple) else (figure,)
            for pointer, value in zip(args[-len(values) :], values, strict=True):
                pointer._obj.value = value
        return SUCCESS

    def _nvmlDeviceGetAccountingStats(self, name: str, handle: Any, pid: Any, stats: Any) -> int:  # noqa: N802
        found = [process for process in self.gpus[handle_number(handle)].processes if process.pid == pid.value]
        if not found:
            return pynvml.NVML_ERROR_NOT_FOUND
        unknown = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
        stats._obj.maxMemoryUsage = unknown if found[0].peak_bytes is None else found[0].peak_bytes
        stats._obj.isRunning = found[0].running
        return SUCCESS

    def _nvmlDeviceGetProcessUtilization(  # noqa: N802
        self, name: str, handle: Any, samples: Any, count: Any, since: Any
    ) -> int:
        gpu = self.gpus[handle_number(handle)]
        if gpu.mig:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        sampled = [(process.pid, process.utilisation) for process in gpu.processes if process.utilisation]
        capacity, count._obj.value = count._obj.value, len(sampled)
        if not sampled:
            return pynvml.NVML_ERROR_NOT_FOUND
        if len(sampled) > capacity:
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        for row, (pid, (sm, memory)) in zip(samples, sampled, strict=True):
            row.pid, row.smUtil, row.memUtil, row.timeStamp = pid, sm, memory, since.value + 1
        return SUCCESS

    def _processes(self, name: str, handle: Any, count: Any, rows: Any) -> int:
        """Answer the functions that list processes: of one kind each."""
        which = re.sub(r"nvmlDeviceGet(\w+)RunningProcesses.*", r"\1", name)
        gpu, device = self.gpus[handle_number(handle) % _MIG_HANDLE_STEP], self._mig_of(handle)
        listed = [
            process
            for process in gpu.processes
            if which in process.lists
            and (device is None or process.gpu_instance == device.gpu_instance)
            and (device is None or process.compute_instance in (None, device.compute_instance))
        ]
        capacity = count._obj.value
        count._obj.value = len(listed)
        if len(listed) > capacity:
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        for row, process in zip(rows or (), listed, strict=False):
            row.pid = process.pid
            unknown = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
            row.usedGpuMemory = unknown if process.used_bytes is None else process.used_bytes
            row.gpuInstanceId = 0xFFFFFFFF if process.gpu_instance is None else process.gpu_instance
            row.computeInstanceId = 0xFFFFFFFF if process.compute_instance is None else process.compute_instance
        return SUCCESS


def handle_number(handle: Any) -> int:
    """Return the number encoded in a device handle."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1
