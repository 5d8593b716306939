"""Details of one GPU through NVML, as much of them as a screen shows: clocks, fans, links, health."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramtop.estimator.common.records import replace

from ...host.plain_text import sanitize_line
from ...snapshot.figures import Fault
from ...snapshot.gpu_details import DetailLevel, EccErrors, GpuDetails, NvLinks, PcieLink, RemappedRows
from .device_calls import DeviceCalls, RefusedError, field_fault
from .pci_device import pci_place

COMPACT_INTERVAL_SECONDS = 5.0
"""Interval of reading fans and clock reasons where only a word of them is shown."""
_MIN_MARGIN_C = -20
"""A GPU that is much hotter than the temperature at which it slows down has reported nonsense."""
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
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
        self._questions = _Questions(calls, handle, clock)
        self._links = _NvmlLinks(self._questions)
        self._health = _NvmlHealth(self._questions)
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
            "sm_mhz": ask("sm_mhz", "its clocks", "nvmlDeviceGetClockInfo", _SM_CLOCK),
            "memory_mhz": ask("memory_mhz", "its memory clock", "nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            "performance_state": ask("performance_state", "its performance state", "nvmlDeviceGetPerformanceState"),
            "memory_temperature_c": self._questions.field_values(
                "memory_temperature_c", "the temperature of its memory", (_MEMORY_TEMPERATURE,)
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
            "sm_max_mhz": ask("sm_max_mhz", "its highest clock", clock, _SM_CLOCK),
            "memory_max_mhz": ask("memory_max_mhz", "its highest memory clock", clock, _MEMORY_CLOCK),
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


_HEALTH_INTERVAL_SECONDS = 10.0
_COUNTERS = {
    "recent_corrected": (0, 0),
    "recent_uncorrected": (1, 0),
    "lifetime_corrected": (0, 1),
    "lifetime_uncorrected": (1, 1),
}
"""NVML's kind of error and of counter."""


class _NvmlHealth:
    """ECC and remapped rows of one GPU. Not thread-safe.

    Args:
        questions: to the GPU.
    """

    def __init__(self, questions: _Questions) -> None:
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
        self._next_at = questions.clock() + _HEALTH_INTERVAL_SECONDS
        mode = questions.ask("ecc_enabled", "whether ECC is on", "nvmlDeviceGetEccMode")
        self.ecc_enabled = None if mode is None else bool(mode[0])
        self.ecc = self._errors() if self.ecc_enabled else None
        self.remapped_rows = None
        if (rows := questions.ask("remapped_rows", "remapped rows", "nvmlDeviceGetRemappedRows")) is not None:
            corrected, uncorrected = map(int, rows[:2])
            pending, failed = map(bool, rows[2:])
            self.remapped_rows = RemappedRows(
                after_corrected=corrected, after_uncorrected=uncorrected, pending=pending, failed=failed
            )

    def _errors(self) -> EccErrors | None:
        ask, call = self._questions.ask, "nvmlDeviceGetTotalEccErrors"
        errors = EccErrors(**{name: ask("ecc", "ECC errors", call, *numbers) for name, numbers in _COUNTERS.items()})
        return None if errors == EccErrors() else errors


_LINK_INTERVAL_SECONDS = 10.0
"""Interval of reading what rarely changes: whether each link is up."""
_SENT, _RECEIVED = 0, 1
"""NVML's PCIe counters."""
_PEERS = {0: "GPU", 1: "POWER9", 2: "switch"}
_MAX_LINKS = 36


class _NvmlLinks:
    """The links of one GPU. Not thread-safe.

    Args:
        questions: to the GPU.
    """

    def __init__(self, questions: _Questions) -> None:
        self._questions = questions
        self._pcie_max: tuple[int | None, int | None] | None = None
        self._nvlink: NvLinks | None = None
        self._nvlink_at: float | None = None
        self._counters: tuple[float, list[int | None]] | None = None
        """Time and values of the NVLink counters at the last reading."""

    def pcie(self) -> PcieLink | None:
        """Return the PCIe link; each of the two traffic counters takes the driver 20 ms. None: nothing is known."""
        ask = self._questions.ask
        if self._pcie_max is None:
            what = "the maximum speed of its PCIe link"
            self._pcie_max = (
                ask("pcie.max_generation", what, "nvmlDeviceGetMaxPcieLinkGeneration"),
                ask("pcie.max_width", what, "nvmlDeviceGetMaxPcieLinkWidth"),
            )
        traffic = [
            ask("pcie.traffic", "its PCIe traffic", "nvmlDeviceGetPcieThroughput", counter)
            for counter in (_SENT, _RECEIVED)
        ]
        sent, received = (None if figure is None else figure * 1000 for figure in traffic)  # KB/s
        link = PcieLink(
            generation=ask("pcie", "its PCIe link", "nvmlDeviceGetCurrPcieLinkGeneration"),
            max_generation=self._pcie_max[0],
            width=ask("pcie", "its PCIe link", "nvmlDeviceGetCurrPcieLinkWidth"),
            max_width=self._pcie_max[1],
            sent_per_second=sent,
            received_per_second=received,
            replays=ask("pcie.replays", "its PCIe replays", "nvmlDeviceGetPcieReplayCounter"),
        )
        return None if link == PcieLink() else link

    def nvlink(self) -> NvLinks | None:
        """Return the NVLinks with their traffic since the last reading; None: none, or not known."""
        now = self._questions.clock()
        if self._nvlink_at is None or now >= self._nvlink_at:
            self._nvlink, self._nvlink_at = self._state(), now + _LINK_INTERVAL_SECONDS
        if self._nvlink is None or not self._nvlink.active:
            return self._nvlink
        counters = self._questions.field_values("nvlink.traffic", "its NVLink traffic", _NVLINK_COUNTERS)
        before, self._counters = self._counters, (now, counters)
        sent, received = (_rate(before, (now, counters), at) for at in (_SENT, _RECEIVED))
        return replace(self._nvlink, sent_per_second=sent, received_per_second=received)

    def _state(self) -> NvLinks | None:
        questions = self._questions
        count, speed = questions.field_values("nvlink", "NVLinks", (_NVLINK_COUNT, _NVLINK_SPEED))
        if not count:
            return None
        links = range(min(count, _MAX_LINKS))
        states = [questions.ask("nvlink.active", "its NVLinks", "nvmlDeviceGetNvLinkState", link) for link in links]
        up = [link for link in links if states[link]]
        known = any(state is not None for state in states)
        peers = {_PEERS.get(self._link("nvmlDeviceGetNvLinkRemoteDeviceType", link), "") for link in up}
        return NvLinks(
            count=count,
            active=len(up) if known else None,
            version=self._link("nvmlDeviceGetNvLinkVersion", up[0]) if up else None,
            link_bytes_per_second=None if not speed else speed * 1_000_000,
            peers=tuple(sorted(peers - {""})),
        )

    def _link(self, call: str, link: int) -> Any:
        return self._questions.ask("nvlink.link", "its NVLinks", call, link)


def _rate(before: tuple[float, list[int | None]] | None, after: tuple[float, list[int | None]], at: int) -> int | None:
    """Return bytes a second between two readings of the counters; None at the first, and after a reset."""
    if before is None or after[0] <= before[0]:
        return None
    first, last = before[1][at], after[1][at]
    if first is None or last is None or last < first:
        return None
    return round((last - first) * 1024 / (after[0] - before[0]))


_MEMORY_TEMPERATURE = 82
_NVLINK_SPEED = 90
_NVLINK_COUNT = 91
_NVLINK_COUNTERS = (138, 139)
"""NVML's numbers of fields: KiB of data sent and received over NVLink."""
_ALL_LINKS = 0xFFFFFFFF
_FIELD_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of a field value, by NVML's number of its type."""


class _Questions:
    """Asks for figures of one GPU.

    Args:
        calls: of the GPU.
        handle: of the GPU.
        clock: monotonic seconds.
    """

    def __init__(self, calls: DeviceCalls, handle: Any, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._handle = handle
        self.faults: dict[str, Fault] = {}
        """The latest fault of each field that has one."""
        self._calls = calls

    def ask(self, field: str, what: str, calls: str | tuple[str, ...], *args: Any) -> Any:
        """Return the answer; None if there is none, with a fault of the field.

        Args:
            field: of ``GpuDetails``; several questions may belong to one.
            what: the figure in words, such as ``its clocks``.
            calls: pynvml's name of the call, or several in order of preference.
            args: arguments after the handle.

        Raises:
            DeviceLostError: the GPU does not answer.
        """
        names = (calls,) if isinstance(calls, str) else calls
        try:
            answer = self._calls.query(f"{field} {names[0]} {args}", names, self._handle, *args)
        except (RefusedError, TypeError) as error:  # pynvml raises TypeError if the driver's answer is "not available"
            code = error.code if isinstance(error, RefusedError) else "NOT_SUPPORTED"
            self.faults[field] = field_fault(field, code, what=what)
            return None
        self.faults.pop(field, None)
        return answer

    def field_values(self, field: str, what: str, numbers: Sequence[int]) -> list[int | None]:
        """Return values of NVML's numbered fields, those of NVLinks summed over all links; None: unknown.

        Args:
            field: of ``GpuDetails``; gets a fault if all values are unknown.
            what: the figures in words.
            numbers: NVML's numbers.
        """
        wanted = [(number, _ALL_LINKS if number in _NVLINK_COUNTERS else 0) for number in numbers]
        answers = self.ask(field, what, "nvmlDeviceGetFieldValues", wanted)
        if answers is None:
            return [None] * len(numbers)
        values = [_value(answer) for answer in answers]
        if not any(value is not None for value in values):
            self.faults[field] = field_fault(field, "NOT_SUPPORTED", what=what)
        return values


def _value(answer: Any) -> int | None:
    if answer.nvmlReturn != 0 or answer.valueType >= len(_FIELD_TYPES):
        return None
    return int(getattr(answer.value, _FIELD_TYPES[answer.valueType]))
