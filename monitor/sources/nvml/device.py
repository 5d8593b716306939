"""Reads one GPU through NVML: each figure, also of its processes, or a fault that states why it is unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.records import replace

from ...host.plain_text import sanitize_line
from ...snapshot.demand import DRIVER_FIGURES, Demand, ProcessFigure
from ...snapshot.figures import ASLEEP, NOT_LISTED, Fault
from ...snapshot.snapshot import ComputeMode, GpuProcess, GpuReading, ProcessFigures, ProcessType
from .device_calls import UNSUPPORTED_CODES, DeviceCalls, DeviceLostError, RefusedError, device_fault, field_fault
from .memory import NvmlMemory, shared_memory_use
from .mig import NvmlMig
from .pci_device import can_suspend, is_suspended
from .process_rows import process_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...host.process_directory import ProcessFacts
    from ...snapshot.demand import CurrentDemand
    from ...snapshot.gpu_details import GpuDetails
    from .details import NvmlDetails


RETRY_LOST_SECONDS = 5.0
"""Waiting time before a lost device is queried again."""
MAX_PID = 2**22
"""Largest pid on Linux; a list with larger ones is garbled (drivers 535.43 to 535.86 mixed up its layout)."""

_TEMPERATURE_CALLS = ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
_COMPUTE_MODES: dict[int, ComputeMode] = {0: "default", 1: "exclusive_process", 2: "prohibited", 3: "exclusive_process"}
"""By NVML's number; 1 means one thread at a time, which CUDA treats as one process since version 8."""
MODE_INTERVAL_SECONDS = 30.0
"""Interval of reading what rarely changes: compute mode, power limit, whether the GPU may be suspended."""
_PROCESS_LISTS: tuple[tuple[ProcessType, str], ...] = (
    ("compute", "Compute"),
    ("graphics", "Graphics"),
    ("mps", "MPSCompute"),
)


class NvmlDevice:
    """One device of NVML's list. Not thread-safe.

    Args:
        nvml: the ``pynvml`` module, initialised.
        index: in NVML's list of devices.
        clock: monotonic seconds.
        now: Unix seconds.
        demand: what readings are to contain beyond memory.
    """

    def __init__(
        self,
        nvml: Any,
        index: int,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
        demand: CurrentDemand,
    ) -> None:
        self.index = index
        self._demand = demand
        self.uuid: str | None = None
        self.lost: str | None = None
        """The driver's error code if the whole device does not answer."""
        self._nvml = nvml
        self._clock = clock
        self._now = now
        self._calls = DeviceCalls(nvml, clock=clock)
        self._mig = NvmlMig(nvml, self._calls, clock=clock)
        self._details: NvmlDetails | None = None
        self._name: str | None = None
        self._handle: Any = None
        self._connect_at = clock()
        self._renewal: tuple[str | None] | None = (None,)
        """The PCI address, if known, in a tuple while a new handle is needed; None: the handle is valid."""
        self._address: str | None = None
        self._can_suspend = False
        self._can_suspend_at = 0.0
        """When to read it again; only an administrator changes it."""
        self._memory = NvmlMemory(nvml, self._calls, now=now)
        self._faults: list[Fault] = []
        self._mode: ComputeMode | None = None
        self._mode_at = 0.0
        """When to read it again; only an administrator changes it."""
        self._power_limit_w: float | None = None
        self._power_limit_at = 0.0
        """When to read it again; only recordings contain it."""
        self._accounts = False
        """Accounting mode is on, which only root can enable."""

    @property
    def pending_call(self) -> str | None:
        """The driver call that is running; may be read from another thread."""
        return self._calls.pending_call

    def renew(self, address: str | None) -> None:
        """Request a new handle at the next reading. Thread-safe.

        Args:
            address: on the PCI bus, if known without a driver call.
        """
        self._renewal = (address,)

    def connect(self) -> None:
        """Query the device's handle, uuid and name; the device is ``lost`` if it has no handle."""
        self._connect_at = self._clock() + RETRY_LOST_SECONDS
        self.lost = None
        try:
            self._handle = self._calls.call("nvmlDeviceGetHandleByIndex", self.index)
            self.uuid = self._text("nvmlDeviceGetUUID")
            self._name = self._text("nvmlDeviceGetName")
            self._accounts = bool(self._calls.known("nvmlDeviceGetAccountingMode", self._handle))
            self._mode_at = self._power_limit_at = 0.0
            self._memory.connect(self._handle, self._name)
            self._mig.connect(self._handle)
            if (info := self._calls.known("nvmlDeviceGetPciInfo", self._handle)) is not None:
                # as the kernel writes it, 0000:17:00.0; NVML writes 8 digits for the domain
                self._address = str(info.busId).lower().removeprefix("0000") or self._address
            self._details = None
        except (RefusedError, DeviceLostError) as error:
            self.lost = error.code

    def read(self, describe: Callable[[int], ProcessFacts]) -> GpuReading:
        """Return the current reading of the device; that of a lost one has no figures.

        Args:
            describe: returns the facts about a pid.
        """
        renewal, self._renewal = self._renewal, None
        if renewal is not None:
            (self._address,), self._handle, self.lost, self._can_suspend_at = renewal, None, None, 0.0
        if self._is_suspended():
            return self.missing(ASLEEP)
        if self._handle is None if self.lost is None else self._clock() >= self._connect_at:
            self.connect()
        if self.lost is None:
            try:
                return self._read(describe)
            except DeviceLostError as error:
                self.lost, self._connect_at = error.code, self._clock() + RETRY_LOST_SECONDS
        return self.missing(self.lost)

    def missing(self, code: str = NOT_LISTED) -> GpuReading:
        """Return a reading without figures, with a fault for an error code; by default the driver does not list it."""
        fault = device_fault(code)
        return GpuReading(
            index=self.index, uuid=self.uuid, name=self._name, faults=(fault,), read_at=self._memory.read_at
        )

    def _text(self, call: str) -> str | None:
        """Return a text that not every device has."""
        try:
            return sanitize_line(self._calls.call(call, self._handle))
        except RefusedError as refused:
            if refused.code in UNSUPPORTED_CODES:
                return None
            raise

    def _is_suspended(self) -> bool:
        if self._clock() >= self._can_suspend_at:
            self._can_suspend_at = self._clock() + MODE_INTERVAL_SECONDS
            self._can_suspend = can_suspend(self._address)
        return self._can_suspend and is_suspended(self._address)

    def _compute_mode(self) -> ComputeMode | None:
        if self._clock() >= self._mode_at:
            self._mode_at = self._clock() + MODE_INTERVAL_SECONDS
            mode = self._calls.known("nvmlDeviceGetComputeMode", self._handle)
            self._mode = None if mode is None else _COMPUTE_MODES.get(int(mode))
        return self._mode

    def _read_power_limit(self) -> float | None:
        if self._clock() >= self._power_limit_at:
            limit = self._query("power_limit_w", "its power limit", ("nvmlDeviceGetEnforcedPowerLimit",))
            if limit is None:
                return None  # with a fault in every reading
            self._power_limit_at = self._clock() + MODE_INTERVAL_SECONDS
            self._power_limit_w = limit / 1000
        return self._power_limit_w

    def _read(self, describe: Callable[[int], ProcessFacts]) -> GpuReading:
        self._faults = []
        mig, mig_faults = self._mig.read()
        self._faults += mig_faults
        memory, memory_faults = self._memory.read(whole=mig is None)
        utilisation = self._query("utilisation_percent", "its utilisation", ("nvmlDeviceGetUtilizationRates",))
        temperature = self._query(
            "temperature_c", "its temperature", _TEMPERATURE_CALLS, self._nvml.NVML_TEMPERATURE_GPU
        )
        power = self._query("power_w", "its power draw", ("nvmlDeviceGetPowerUsage",))
        power_limit_w = self._read_power_limit()
        if any(device.used_bytes is not None for device in mig or ()):
            self._memory.read_at = self._now()  # the GPU's own memory may be refused
        instances: dict[int | None, int | None] = {device.gpu_instance: device.total_bytes for device in mig or ()}
        processes = self._processes(memory.total, describe, instances)
        if memory.shared:
            memory, memory_faults = shared_memory_use(memory, processes)
        elif memory.used is not None and _used_by(processes) > memory.used:
            memory, memory_faults = self._memory.read_again(_used_by(processes))
        if any(_used_by(processes, device.gpu_instance) > (device.used_bytes or math.inf) for device in mig or ()):
            mig, _ = self._mig.read()  # processes have grown in the meantime
        if processes is not None:
            processes = _with_utilisation(
                processes, self._demand.value, self._calls, self._handle, in_mig_mode=mig is not None, now=self._now
            )
        return GpuReading(
            index=self.index,
            uuid=self.uuid,
            name=self._name,
            total_bytes=memory.total,
            reserved_bytes=memory.reserved,
            used_bytes=memory.used,
            free_bytes=memory.free,
            utilisation_percent=None if utilisation is None else int(utilisation.gpu),
            memory_utilisation_percent=None if utilisation is None else int(utilisation.memory),
            temperature_c=temperature,
            power_w=None if power is None else power / 1000,  # NVML counts milliwatts
            power_limit_w=power_limit_w,
            compute_mode=self._compute_mode(),
            processes=processes,
            mig=mig,
            faults=(*memory_faults, *self._faults),
            read_at=self._memory.read_at,
            details=self._read_details(),
        )

    def _read_details(self) -> GpuDetails | None:
        """Return the figures beyond the default ones that a screen shows; None if none does."""
        level = self._demand.value.gpus.get(self.index if self.uuid is None else self.uuid)
        if level is None:
            return None
        if self._details is None:
            from .details import NvmlDetails  # not at start-up

            self._details = NvmlDetails(self._calls, self._handle, self._address, clock=self._clock)
        return self._details.read(level)

    def _processes(
        self,
        total_bytes: int | None,
        describe: Callable[[int], ProcessFacts],
        instances: Mapping[int | None, int | None],
    ) -> tuple[GpuProcess, ...] | None:
        """Return the processes, largest first; None if the list of compute processes cannot be read."""
        lists: dict[ProcessType, list[Any]] = {}
        for kind, name in _PROCESS_LISTS:
            calls = tuple(f"nvmlDeviceGet{name}RunningProcesses{version}" for version in ("_v3", "_v2"))
            try:
                lists[kind] = self._calls.query(kind, calls, self._handle, valid=_has_valid_pids)
            except RefusedError as refused:
                if (in_instances := self._mig.processes(kind, calls, _has_valid_pids)) is not None:
                    lists[kind] = in_instances
                    continue
                if kind == "compute" or refused.code not in UNSUPPORTED_CODES:  # not every GPU has the other two lists
                    self._faults.append(field_fault("processes", refused.code, what=f"its {kind} processes"))
                if kind == "compute":
                    return None
        self._mig.note_instances(
            getattr(entry, "gpuInstanceId", None) for entries in lists.values() for entry in entries
        )
        rows = process_rows(lists, total_bytes=total_bytes, describe=describe, instances=instances)
        return tuple(self._with_peak(row, total_bytes) for row in rows)

    def _with_peak(self, row: GpuProcess, total_bytes: int | None) -> GpuProcess:
        """Return the process with its peak memory by the driver's accounting."""
        if not self._accounts:
            return row
        try:
            stats = self._calls.call("nvmlDeviceGetAccountingStats", self._handle, row.pid)
        except RefusedError as refused:
            self._accounts = refused.code not in UNSUPPORTED_CODES and refused.code != "NO_PERMISSION"
            return row
        except TypeError:  # raised inside pynvml if the driver's answer is "not available"
            return row
        peak = stats.maxMemoryUsage if stats.isRunning else 0  # else of an earlier process with this pid
        return replace(row, peak_bytes=max(peak, row.used_bytes or 0)) if 0 < peak <= (total_bytes or peak) else row

    def _query(self, field: str, what: str, calls: tuple[str, ...], *args: Any) -> Any:
        """Return the answer; if there is none, return None and add a fault of ``field``."""
        try:
            return self._calls.query(field, calls, self._handle, *args)
        except RefusedError as refused:
            self._faults.append(field_fault(field, refused.code, what=what))
            return None


def _used_by(processes: tuple[GpuProcess, ...] | None, instance: int | None = None) -> int:
    """Return the bytes used by all processes, or by those in one GPU instance."""
    mine = (process for process in processes or () if instance in (None, process.gpu_instance))
    return sum(process.used_bytes or 0 for process in mine)


def _has_valid_pids(processes: list[Any]) -> bool:
    return all(process.pid <= MAX_PID for process in processes)


_SAMPLE_SECONDS = 2.0
"""Age of the oldest sample that counts: the driver takes about one a second of each process that runs kernels."""
_UTILISATION_CALLS = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
_UTILISATION_WORDS: dict[ProcessFigure, str] = {
    "sm_percent": "the utilisation by process",
    "bandwidth_percent": "the memory bandwidth by process",
}
_UTILISATION_MESSAGES = {
    "NO_SAMPLE": "the driver has no sample of this process for the last two seconds: it ran no kernel, or is not "
    "measured",
    "MIG_MODE": "the driver reports no utilisation by process in MIG mode",
}


def _with_utilisation(
    processes: Sequence[GpuProcess],
    demand: Demand,
    calls: DeviceCalls,
    handle: Any,
    *,
    in_mig_mode: bool,
    now: Callable[[], float],
) -> tuple[GpuProcess, ...]:
    """Return the processes with their utilisation where that is in demand; no driver call is made if it is not.

    Args:
        processes: of one GPU.
        demand: what the screen in front shows.
        calls: of the GPU.
        handle: of the GPU.
        in_mig_mode: the GPU is divided into MIG devices.
        now: Unix seconds.
    """
    if DRIVER_FIGURES.isdisjoint(demand.process_figures) or not processes:
        return tuple(processes)
    samples: dict[int, Any] = {}
    code = "MIG_MODE" if in_mig_mode else "NO_SAMPLE"
    if not in_mig_mode:
        try:
            since = int((now() - _SAMPLE_SECONDS) * 1e6)
            for sample in calls.query("process utilisation", _UTILISATION_CALLS, handle, since):
                latest = samples.get(sample.pid)
                if latest is None or sample.timeStamp > latest.timeStamp:
                    samples[sample.pid] = sample
        except RefusedError as refused:
            code = "NO_SAMPLE" if refused.code == "NOT_FOUND" else refused.code
    unknown = ProcessFigures(faults=_utilisation_faults(code))
    return tuple(replace(process, figures=_utilisation(samples.get(process.pid)) or unknown) for process in processes)


def _utilisation(sample: Any) -> ProcessFigures | None:
    if sample is None:
        return None
    if sample.smUtil > 100 or sample.memUtil > 100:  # seen in samples of processes that have ended
        return ProcessFigures(faults=_utilisation_faults("IMPLAUSIBLE"))
    return ProcessFigures(sm_percent=float(sample.smUtil), bandwidth_percent=float(sample.memUtil))


def _utilisation_faults(code: str) -> tuple[Fault, ...]:
    return tuple(
        Fault(field=figure, code=code, message=_UTILISATION_MESSAGES[code])
        if code in _UTILISATION_MESSAGES
        else field_fault(figure, code, what=what)
        for figure, what in _UTILISATION_WORDS.items()
    )
