"""Figures of one GPU beside its memory as short texts: what slows it down, utilisation, power, temperature, fan.

The dashboard shows as many of them as it has room for; the GPU screen shows each in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from vramtop.monitor.snapshot.mig_devices import MigDevice

from .labels import MUTED, tag

if TYPE_CHECKING:
    from vramtop.monitor.snapshot.clock_reasons import ClockReason
    from vramtop.monitor.snapshot.snapshot import GpuReading


def gpu_figure_parts(reading: GpuReading) -> list[Content]:
    """Return the figures in order of importance, each as a few words; those that nobody asked for are left out."""
    used = reading.utilisation_percent
    parts = [Content("util n/a" if used is None else f"util {used} %")]
    if isinstance(reading, MigDevice) or reading.host:  # the others are of the whole GPU, and of no other host
        return parts
    parts += [Content(power_words(reading)), Content(with_unit(reading.temperature_c, "°C"))]
    if reason := slowing_reason(reading):
        parts.insert(0, reason_badge(reason))
    if reading.memory_utilisation_percent is not None:
        parts.append(Content(f"bandwidth {reading.memory_utilisation_percent} %"))
    if speeds := reading.details.fan_percents if reading.details else None:
        low, high = min(speeds), max(speeds)
        parts.append(Content(f"fan {low} %" if low == high else f"fan {low}-{high} %"))
    return parts


def hardware_cell(reading: GpuReading, width: int) -> Content:
    """Return power of its limit and temperature in a cell of this width; in the place of the power, what slows it."""
    if isinstance(reading, MigDevice):  # they are of the whole GPU
        return Content(" " * width)
    temperature = "n/a" if reading.temperature_c is None else f"{reading.temperature_c} °C"
    reason = slowing_reason(reading)
    if reason is not None and reason.kind == "slowed":
        words = Content.assemble(reason_badge(reason), f"  {temperature:>6}")
    else:
        limit = "" if reading.power_limit_w is None else f"/{reading.power_limit_w:.0f}"
        power = "n/a" if reading.power_w is None else f"{reading.power_w:.0f}{limit} W"
        words = Content(f"{power}  {temperature:>6}")
    return Content.assemble(" " * (width - words.cell_length), words).truncate(width)


def with_unit(figure: int | None, unit: str) -> str:
    """Return ``63 °C``, or ``°C n/a``."""
    return f"{unit} n/a" if figure is None else f"{figure} {unit}"


def power_words(reading: GpuReading) -> str:
    """Return the power draw of its limit: ``412 of 700 W``."""
    if reading.power_w is None or reading.power_limit_w is None:
        return with_unit(None if reading.power_w is None else round(reading.power_w), "W")
    return f"{reading.power_w:.0f} of {reading.power_limit_w:.0f} W"


def slowing_reason(reading: GpuReading) -> ClockReason | None:
    """Return the main reason why the GPU runs slower than it could; None: it does not, or nobody asked."""
    bits = reading.details.clock_reasons if reading.details else None
    if not bits:
        return None
    from vramtop.monitor.snapshot.clock_reasons import clock_reasons  # not at start-up

    return next((reason for reason in clock_reasons(bits) if reason.kind in ("slowed", "limit")), None)


def reason_badge(reason: ClockReason) -> Content:
    """Return the reason in a word or two; one that is no everyday limit stands out."""
    if reason.kind == "slowed":
        return tag(f"! {reason.word}")
    return Content.styled(reason.word, "$text-warning" if reason.kind == "limit" else MUTED)
