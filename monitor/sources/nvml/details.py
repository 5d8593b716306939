"""Details of one GPU through NVML, as much of them as a screen shows: clocks, fans, links, health."""

from collections.abc import Callable
from typing import Any

from ...host.plain_text import sanitize_line
from ...snapshot.gpu_details import DetailLevel, EccErrors, GpuDetails, RemappedRows
from .device_calls import DeviceCalls
from .links import NvmlLinks
from .pci_device import pci_place
from .questions import MEMORY_TEMPERATURE, Questions

COMPACT_INTERVAL_SECONDS = 5.0
"""Interval of reading fans and clock reasons where only a word of them is shown."""
_MIN_MARGIN_C = -20
"""A GPU that is much hotter than the temperature at which it slows down has reported nonsense."""
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_SM, _MEMORY = 1, 2
"""NVML's clocks."""
_SHUTDOWN, _SLOWDOWN = 0, 1
"""NVML's temperature thresholds."""


class NvmlDetails:
    """The details of one device. Not thread-safe.

    Args:
        calls: of the device.
        handle: of the device.
        address: on the PCI bus, if known.
        clock: monotonic seconds.
    """

    def __init__(self, calls: DeviceCalls, handle: Any, address: str | None, *, clock: Callable[[], float]) -> None:
        self._questions = Questions(calls, handle, clock)
        self._links = NvmlLinks(self._questions)
        self._health = NvmlHealth(self._questions)
        self._address = address
        self._static: dict[str, Any] | None = None
        """Figures that stay the same while the driver runs; None: not read yet."""
        self._fan_count: int | None = None
        self._compact: GpuDetails | None = None
        self._compact_at = 0.0

    def read(self, level: DetailLevel) -> GpuDetails:
        """Return the current details.

        Args:
            level: how much of them.

        Raises:
            DeviceLostError: the device does not answer.
        """
        now = self._questions.clock()
        if level == "full":
            self._compact = None
            return self._full()
        if self._compact is None or now >= self._compact_at:
            reasons, fans = self._reasons(), self._fans()
            faults = tuple(
                fault for field, fault in self._questions.faults.items() if field in ("clock_reasons", "fan_percents")
            )
            self._compact = GpuDetails(level="compact", clock_reasons=reasons, fan_percents=fans, faults=faults)
            self._compact_at = now + COMPACT_INTERVAL_SECONDS
        return self._compact

    def _full(self) -> GpuDetails:
        ask = self._questions.ask
        if self._static is None:
            self._static = self._read_static()
        self._health.read()
        figures = self._static | {
            "clock_reasons": self._reasons(),
            "fan_percents": self._fans(),
            "sm_mhz": ask("sm_mhz", "its clocks", "nvmlDeviceGetClockInfo", _SM),
            "memory_mhz": ask("memory_mhz", "its memory clock", "nvmlDeviceGetClockInfo", _MEMORY),
            "performance_state": ask("performance_state", "its performance state", "nvmlDeviceGetPerformanceState"),
            "memory_temperature_c": self._questions.field_values(
                "memory_temperature_c", "the temperature of its memory", (MEMORY_TEMPERATURE,)
            )[0],
            "encoder_percent": _first(ask("encoder_percent", "its encoder", "nvmlDeviceGetEncoderUtilization")),
            "decoder_percent": _first(ask("decoder_percent", "its decoder", "nvmlDeviceGetDecoderUtilization")),
            "ecc_enabled": self._health.ecc_enabled,
            "ecc": self._health.ecc,
            "remapped_rows": self._health.remapped_rows,
            "pcie": self._links.pcie(),
            "nvlink": self._links.nvlink(),
        }
        if figures["slowdown_c"] is None:
            what = "the temperature at which it slows down"
            margin = ask("slowdown_margin_c", what, "nvmlDeviceGetMarginTemperature")
            figures["slowdown_margin_c"] = None if margin is None or margin < _MIN_MARGIN_C else margin
        bar1 = ask("bar1_total_bytes", "its BAR1 memory", "nvmlDeviceGetBAR1MemoryInfo")
        if bar1 is not None:
            figures |= {"bar1_total_bytes": int(bar1.bar1Total), "bar1_used_bytes": int(bar1.bar1Used)}
        persistence = ask("persistence", "its persistence mode", "nvmlDeviceGetPersistenceMode")
        figures["persistence"] = None if persistence is None else bool(persistence)
        performance = figures["performance_state"]
        if performance is not None and performance > 15:  # NVML's number for unknown is 32
            figures["performance_state"] = None
        return GpuDetails(level="full", faults=tuple(self._questions.faults.values()), **figures)

    def _read_static(self) -> dict[str, Any]:
        ask = self._questions.ask
        clock, threshold = "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetTemperatureThreshold"
        limits = ask("power_max_w", "its highest power limit", "nvmlDeviceGetPowerManagementLimitConstraints")
        default = ask("power_default_w", "its default power limit", "nvmlDeviceGetPowerManagementDefaultLimit")
        version = ask("compute_capability", "its compute capability", "nvmlDeviceGetCudaComputeCapability")
        numa_node, near_cpus = pci_place(self._address)
        vbios = ask("vbios", "its VBIOS version", "nvmlDeviceGetVbiosVersion")
        return {
            "sm_max_mhz": ask("sm_max_mhz", "its highest clock", clock, _SM),
            "memory_max_mhz": ask("memory_max_mhz", "its highest memory clock", clock, _MEMORY),
            "slowdown_c": ask("slowdown_c", "the temperature at which it slows down", threshold, _SLOWDOWN),
            "shutdown_c": ask("shutdown_c", "the temperature at which it shuts down", threshold, _SHUTDOWN),
            "power_max_w": None if limits is None else limits[1] / 1000,  # NVML counts milliwatts
            "power_default_w": None if default is None else default / 1000,
            "vbios": None if vbios is None else sanitize_line(str(vbios)),
            "compute_capability": None if version is None else f"{version[0]}.{version[1]}",
            "pci_address": self._address,
            "numa_node": numa_node,
            "near_cpus": near_cpus,
        }

    def _reasons(self) -> int | None:
        reasons: int | None = self._questions.ask("clock_reasons", "what limits its clocks", _REASONS)
        return reasons

    def _fans(self) -> tuple[int, ...] | None:
        """Return the speed of each fan; drivers before 515 know only one."""
        ask, what = self._questions.ask, "its fans"
        if self._fan_count is None:
            self._fan_count = ask("fan_percents", what, "nvmlDeviceGetNumFans")
        if self._fan_count is None:
            speed = ask("fan_percents", what, "nvmlDeviceGetFanSpeed")
            return None if speed is None else (int(speed),)
        speeds = [ask("fan_percents", what, "nvmlDeviceGetFanSpeed_v2", fan) for fan in range(min(self._fan_count, 16))]
        return tuple(int(speed) for speed in speeds if speed is not None) if None not in speeds else None


def _first(pair: Any) -> int | None:
    return None if pair is None else int(pair[0])


HEALTH_INTERVAL_SECONDS = 10.0
_COUNTERS = {
    "recent_corrected": (0, 0),
    "recent_uncorrected": (1, 0),
    "lifetime_corrected": (0, 1),
    "lifetime_uncorrected": (1, 1),
}
"""NVML's kind of error and of counter."""


class NvmlHealth:
    """ECC and remapped rows of one GPU. Not thread-safe.

    Args:
        questions: to the GPU.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._next_at = 0.0
        """Monotonic seconds at which to read again."""
        self.ecc_enabled: bool | None = None
        self.ecc: EccErrors | None = None
        self.remapped_rows: RemappedRows | None = None

    def read(self) -> None:
        """Read again, if it is time."""
        questions = self._questions
        if questions.clock() < self._next_at:
            return
        self._next_at = questions.clock() + HEALTH_INTERVAL_SECONDS
        mode = questions.ask("ecc_enabled", "whether ECC is on", "nvmlDeviceGetEccMode")
        self.ecc_enabled = None if mode is None else bool(mode[0])
        self.ecc = self._errors() if self.ecc_enabled else None
        rows = questions.ask("remapped_rows", "remapped rows", "nvmlDeviceGetRemappedRows")
        self.remapped_rows = None if rows is None else _remapped(rows)

    def _errors(self) -> EccErrors | None:
        ask, call = self._questions.ask, "nvmlDeviceGetTotalEccErrors"
        errors = EccErrors(**{name: ask("ecc", "ECC errors", call, *numbers) for name, numbers in _COUNTERS.items()})
        return None if errors == EccErrors() else errors


def _remapped(rows: Any) -> RemappedRows:
    corrected, uncorrected, pending, failed = rows
    return RemappedRows(
        after_corrected=int(corrected), after_uncorrected=int(uncorrected), pending=bool(pending), failed=bool(failed)
    )
