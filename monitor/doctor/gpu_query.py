"""One GPU, asked everything that vramtop ever asks: what it can tell, and the driver's word where it cannot."""

import os
import time
from collections.abc import Callable
from typing import Any

from ..host.plain_text import sanitize_line
from ..host.processes import ProcessDirectory
from ..sources.nvml.device_calls import DeviceCalls, DeviceLostError, RefusedError
from ..sources.nvml.memory import MemoryFigures, implausible

Report = Callable[[dict[str, Any]], None]

_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_FIGURES = {
    "utilisation": ("nvmlDeviceGetUtilizationRates",),
    "power": ("nvmlDeviceGetPowerUsage",),
    "power_limit": ("nvmlDeviceGetEnforcedPowerLimit",),
}
_LISTS = {"processes": "Compute", "graphics_processes": "Graphics", "mps_processes": "MPSCompute"}
_UUID_SHOWN = 12
"""``GPU-`` and eight digits: enough to tell cards apart, too little to find one."""


class GpuQuery:
    """Asks one GPU; what is found out is told at once, since the next call may hang.

    Args:
        nvml: the ``pynvml`` module, initialised.
        index: of the GPU.
        tell: takes facts by the names of ``GpuFacts``, and ``asks``, the call that is being made.
    """

    def __init__(self, nvml: Any, index: int, tell: Report) -> None:
        self._nvml = nvml
        self._index = index
        self._tell = tell
        self._calls = DeviceCalls(nvml, clock=time.monotonic)
        self._handle: Any = None
        self._abilities: dict[str, str] = {}
        self._slowest = 0.0

    def ask_all(self) -> None:
        """Ask everything; a GPU that is lost is told as lost."""
        try:
            self._handle = self._call("nvmlDeviceGetHandleByIndex", self._index)
            self._identity()
            self._memory()
            for ability, calls in _FIGURES.items():
                self._try(ability, calls)
            self._try("temperature", ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), 0)
            self._modes()
            self._processes()
        except (RefusedError, DeviceLostError) as error:
            self._tell({"lost": error.code})
        except self._nvml.NVMLError as error:  # of the machine as a whole
            self._tell({"lost": str(error)})
        self._tell({"asks": None})

    def _identity(self) -> None:
        name = self._try("name", ("nvmlDeviceGetName",))
        uuid = self._try("uuid", ("nvmlDeviceGetUUID",))
        self._tell({"name": sanitize_line(name or ""), "uuid": None if uuid is None else f"{uuid[:_UUID_SHOWN]}..."})

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
        self._tell({"memory_info": version, **sizes, "reserved_bytes": reserved, "implausible": implausible(figures)})

    def _modes(self) -> None:
        mode = self._try("compute_mode", ("nvmlDeviceGetComputeMode",))
        if mode is not None:
            self._tell({"compute_mode": _MODES.get(int(mode), str(mode))})
        accounting = self._try("accounting", ("nvmlDeviceGetAccountingMode",))
        if accounting is not None:
            self._can("accounting", "on" if accounting else "off")
        mig = self._try("mig", ("nvmlDeviceGetMigMode",))
        if mig is not None:
            self._can("mig", "on" if mig[0] else "off")
        if mig is not None and mig[0]:
            self._tell({"mig_slots": self._try("mig_devices", ("nvmlDeviceGetMaxMigDeviceCount",))})

    def _processes(self) -> None:
        found: dict[int, int | None] = {}
        for ability, word in _LISTS.items():
            calls = tuple(f"nvmlDeviceGet{word}RunningProcesses{version}" for version in ("_v3", "_v2"))
            rows = self._try(ability, calls)
            for row in rows or ():
                found[row.pid] = max((size for size in (found.get(row.pid), row.usedGpuMemory) if size), default=None)
        if self._abilities["processes"] != "yes":  # the others are beside the point
            return
        directory = ProcessDirectory()
        mine, facts = _name_of_me(directory), [directory.describe(pid) for pid in found]
        seen = [each for each in facts if each.start_time is not None]
        if found:
            self._can("process_memory", "yes" if all(found.values()) else "not available")
        self._tell({
            "processes": len(found),
            "processes_seen": len(seen),
            "processes_of_others": sum(each.user != mine for each in seen),
            "processes_without_memory": sum(size is None for size in found.values()),
        })  # fmt: skip

    def _try(self, ability: str, calls: tuple[str, ...], *args: Any) -> Any:
        """The answer of the first call that the driver has; None where it refuses, which is then told."""
        code = ""
        for call in calls:
            try:
                answer = self._call(call, self._handle, *args)
            except RefusedError as refused:
                code = refused.code
                if code != "FUNCTION_NOT_FOUND":
                    break
            else:
                self._can(ability, "yes")
                return answer
        self._can(ability, code)
        return None

    def _can(self, ability: str, word: str) -> None:
        self._abilities[ability] = word
        self._tell({"abilities": self._abilities})

    def _call(self, call: str, *args: Any) -> Any:
        self._tell({"asks": call})
        begun = time.monotonic()
        try:
            return self._calls.call(call, *args)
        finally:
            seconds = time.monotonic() - begun
            if seconds > self._slowest:
                self._slowest = seconds
                self._tell({"slowest_call": call, "slowest_seconds": round(seconds, 4)})


def _name_of_me(directory: ProcessDirectory) -> str | None:
    return directory.describe(os.getpid()).user
