"""Figures of one GPU that are read only while a screen shows them: clocks, links, health, and what slows it down.

A figure that could not be read is None, and a ``Fault`` states the reason.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .figures import Count, Degrees, DriverFigure, Fault, Watts

DetailLevel = Literal["compact", "full"]
"""What is read of a GPU beyond the default figures: fans and clock reasons, or everything."""


class EccErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Memory errors that ECC has counted since the driver was loaded (``recent``) and in the life of the GPU."""

    recent_corrected: Count | None = None
    """Corrected ones since the driver was loaded."""
    recent_uncorrected: Count | None = None
    """Others since the driver was loaded."""
    lifetime_corrected: Count | None = None
    """Corrected ones in the life of the GPU."""
    lifetime_uncorrected: Count | None = None
    """Others in the life of the GPU."""


class RemappedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of memory that were replaced by spare ones because of errors."""

    after_corrected: Count
    """Rows replaced after corrected errors."""
    after_uncorrected: Count
    """Rows replaced after other errors."""
    pending: bool
    """A row is replaced at the next reset of the GPU."""
    failed: bool
    """A row could not be replaced: the GPU is to be exchanged."""


class PcieLink(msgspec.Struct, frozen=True, kw_only=True):
    """The connection to the host, now and at most, and its traffic."""

    generation: Count | None = None
    """Generation in use: an idle GPU lowers it to save power."""
    max_generation: Count | None = None
    """Highest generation of both ends."""
    width: Count | None = None
    """Lanes in use."""
    max_width: Count | None = None
    """Most lanes of both ends."""
    sent_per_second: Count | None = None
    """Bytes from the GPU to the host."""
    received_per_second: Count | None = None
    """Bytes from the host to the GPU."""
    replays: Count | None = None
    """Transfers that were repeated because of an error."""


class NvLinks(msgspec.Struct, frozen=True, kw_only=True):
    """The connections to other GPUs or switches."""

    count: Count
    """Links that the GPU has."""
    active: Count | None = None
    """Links that are up."""
    version: Count | None = None
    """Version of NVLink."""
    link_bytes_per_second: Count | None = None
    """Speed of one link in one direction, in bytes per second."""
    peers: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    """Kinds of devices at the other end: ``GPU``, ``switch``."""
    sent_per_second: Count | None = None
    """Bytes over all links; None until there are two readings."""
    received_per_second: Count | None = None
    """Bytes over all links; None until there are two readings."""


class GpuDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one moment, beyond ``GpuReading``; its sizes are bytes."""

    level: DetailLevel
    """With ``compact``, only the first two figures were read."""
    clock_reasons: DriverFigure | None = None
    """NVML's bits for what holds the clocks back; see ``clock_reasons``."""
    fan_percents: Annotated[tuple[Count, ...], Meta(max_length=64)] | None = None
    """Speed of each fan; empty: the GPU has none of its own."""
    sm_mhz: Count | None = None
    """Clock of the multiprocessors, in MHz."""
    sm_max_mhz: Count | None = None
    """Highest clock of the multiprocessors, in MHz."""
    memory_mhz: Count | None = None
    """Clock of the memory, in MHz."""
    memory_max_mhz: Count | None = None
    """Highest clock of the memory, in MHz."""
    performance_state: Count | None = None
    """Performance state: 0 is the fastest, 15 the slowest."""
    memory_temperature_c: Degrees | None = None
    """Temperature of the memory in degrees Celsius."""
    slowdown_c: Degrees | None = None
    """Temperature at which the GPU slows down, in degrees Celsius."""
    slowdown_margin_c: Degrees | None = None
    """Degrees until it slows down, of GPUs that do not report at which temperature."""
    shutdown_c: Degrees | None = None
    """Temperature at which the GPU turns itself off, in degrees Celsius."""
    encoder_percent: Count | None = None
    """Share of time in which the video encoder was busy."""
    decoder_percent: Count | None = None
    """Share of time in which the video decoder was busy."""
    power_default_w: Watts | None = None
    """Power limit as delivered, in watts."""
    power_max_w: Watts | None = None
    """The highest limit that an administrator can set, in watts."""
    ecc_enabled: bool | None = None
    """ECC is on."""
    ecc: EccErrors | None = None
    """Memory errors."""
    remapped_rows: RemappedRows | None = None
    """Rows of memory that were replaced."""
    persistence: bool | None = None
    """Persistence mode is on."""
    bar1_total_bytes: DriverFigure | None = None
    """Size of the window through which the host sees its memory (BAR1)."""
    bar1_used_bytes: DriverFigure | None = None
    """Bytes of its memory that the host sees through that window; not added to the used memory."""
    pcie: PcieLink | None = None
    """Connection to the host."""
    nvlink: NvLinks | None = None
    """Its connections to other GPUs; None: it has none, or that is unknown."""
    vbios: str | None = None
    """Version of the VBIOS."""
    compute_capability: str | None = None
    """CUDA compute capability, such as ``9.0``."""
    pci_address: str | None = None
    """Address on the PCI bus."""
    numa_node: Count | None = None
    """The part of the host's memory and processors that is nearest."""
    near_cpus: str | None = None
    """Numbers of those processors, such as ``0-31,64-95``."""
    faults: Annotated[tuple[Fault, ...], Meta(max_length=100)] = ()
    """What could not be read."""

    def reason(self, field: str) -> str | None:
        """Return why ``field`` is None, in one sentence; None if there is no fault for it."""
        return next((fault.message for fault in self.faults if fault.field == field), None)


ClockReasonKind = Literal["idle", "setting", "limit", "slowed"]
"""Nothing runs; someone has set lower clocks; a limit that a busy GPU often reaches; something is wrong."""


class ClockReason(msgspec.Struct, frozen=True):
    """One reason."""

    bit: int
    kind: ClockReasonKind
    word: str
    """A word or two for a narrow place."""
    sentence: str


HW_SLOWDOWN = 0x8
_HW_SLOWDOWN_CAUSES = 0x40 | 0x80
_REASONS = (
    ClockReason(0x40, "slowed", "too hot", "the hardware halves its clocks or more: it is too hot"),
    ClockReason(0x80, "slowed", "power brake", "the hardware halves its clocks or more: the power supply demands it"),
    ClockReason(
        HW_SLOWDOWN, "slowed", "hardware slowdown", "the hardware halves its clocks or more: too hot, or too much power"
    ),
    ClockReason(0x20, "slowed", "hot", "the driver lowers its clocks: the GPU or its memory is too hot"),
    ClockReason(0x4, "limit", "power cap", "the driver lowers its clocks to stay within the power limit"),
    ClockReason(0x400, "limit", "voltage limit", "its clocks are limited so that its voltage stays reliable"),
    ClockReason(0x200, "limit", "board limit", "its clocks are limited by what the board can supply"),
    ClockReason(0x10, "setting", "sync boost", "its clocks follow the slowest GPU of its sync boost group"),
    ClockReason(0x2, "setting", "clocks set", "its clocks are limited by the application clocks that are set"),
    ClockReason(0x100, "setting", "display clocks", "its clocks are limited by the setting for its display"),
    ClockReason(0x1, "idle", "idle", "nothing runs on it, so its clocks are low"),
)
"""By NVML's ``nvmlClocksEventReason...`` bits, the most serious first."""


def clock_reasons(bits: int) -> tuple[ClockReason, ...]:
    """Return the reasons, the most serious first; a bit that is not known here is a reason too.

    Args:
        bits: as NVML gives them.
    """
    if bits & _HW_SLOWDOWN_CAUSES:  # then the general one says nothing more
        bits &= ~HW_SLOWDOWN
    found = [reason for reason in _REASONS if bits & reason.bit]
    rest = bits & ~sum(reason.bit for reason in _REASONS)
    if rest:
        words = f"reason {rest:#x}"
        found.insert(0, ClockReason(rest, "slowed", words, f"the driver limits its clocks for {words}"))
    return tuple(found)
