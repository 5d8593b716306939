"""Why a GPU's clocks are lower than they could be: NVML's bits in words."""

from __future__ import annotations

from typing import Literal

import msgspec

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
