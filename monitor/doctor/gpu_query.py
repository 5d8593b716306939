"""Makes every call about one GPU that vramtop ever makes: its answers, or the driver's error code for a refusal."""

import os
import time
from collections.abc import Callable
from typing import Any

from ..host import ProcessDirectory, sanitize_line
from ..sources.nvml import DeviceCalls, DeviceLostError, MemoryFigures, RefusedError, implausible

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
