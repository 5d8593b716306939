"""Clocks, links, health and settings of a GPU in words, one subject a line, and why figures are unknown."""

from collections.abc import Iterable
from itertools import takewhile
from textwrap import wrap

from textual.content import Content

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.snapshot.gpu_details import EccErrors, GpuDetails, NvLinks, PcieLink, RemappedRows
from vramtop.monitor.snapshot.snapshot import GpuReading

from ...draw.labels import MUTED, SEPARATOR, tag
from ...draw.text_output import printable
from .activity import LABEL_WIDTH, labelled, whole_figure


def fact_lines(gpu: GpuReading, width: int) -> list[Content]:
    """Return the lines; none if the details have not been read.

    Args:
        gpu: the whole GPU.
        width: cells of a line.
    """
    details = gpu.details
    if details is None or details.level != "full":
        return []
    return [
        *_wrapped("clocks", _clocks(details), width),
        *_wrapped("fans", _fans(details), width),
        *_wrapped("PCIe", _pcie(details.pcie), width),
        *_wrapped("NVLink", _nvlink(details.nvlink, details), width),
        *_wrapped("ECC", _ecc(details), width),
        *_wrapped("settings", _settings(gpu, details), width),
        *_wrapped("board", _board(details), width),
        *reason_lines(gpu, width),
    ]


def reason_lines(gpu: GpuReading, width: int) -> list[Content]:
    """Return why figures are unknown; the same reason for several figures is one sentence."""
    faults = [*(fault for fault in gpu.faults if fault.field), *(gpu.details.faults if gpu.details else ())]
    by_code: dict[str, list[str]] = {}
    for fault in faults:
        messages = by_code.setdefault(fault.code, [])
        if fault.message not in messages:
            messages.append(fault.message)
    lines = []
    for messages in by_code.values():
        lines += wrap(printable(f"n/a: {_joined(messages)}"), max(20, width - 2), subsequent_indent="     ")
    return [Content.styled(line, MUTED) for line in lines]


_MIN_COMMON_WORDS = 3
"""Sentences whose beginnings have fewer words in common stay whole."""


def _joined(messages: list[str]) -> str:
    """Return sentences with a common beginning as one: ``this GPU does not report its fans, NVLinks``."""
    columns = takewhile(
        lambda words: len(set(words)) == 1, zip(*(message.split() for message in messages), strict=False)
    )
    start = " ".join(words[0] for words in columns)
    if len(messages) == 1 or len(start.split()) < _MIN_COMMON_WORDS:
        return "; ".join(messages)
    return f"{start} " + ", ".join(message.removeprefix(start).strip() for message in messages)


def _wrapped(label: str, parts: Iterable[Content], width: int) -> list[Content]:
    """Return the parts joined by dots, on as many lines as they need."""
    lines: list[Content] = []
    line = Content()
    for part in parts:
        longer = Content.assemble(line, SEPARATOR, part) if line else part
        if line and LABEL_WIDTH + longer.cell_length > width:
            lines.append(line)
            longer = part
        line = longer
    lines.append(line)
    return [labelled("" if at else label, each) for at, each in enumerate(lines)]


def _figure(name: str, text: str | None) -> Content:
    """Return a name with its figure; None: unknown."""
    return Content.assemble((f"{name} ", MUTED) if name else "", (text, "") if text is not None else ("n/a", MUTED))


def _clocks(details: GpuDetails) -> list[Content]:
    state = details.performance_state
    return [
        _figure("SM", _of(details.sm_mhz, details.sm_max_mhz, "MHz")),
        _figure("memory", _of(details.memory_mhz, details.memory_max_mhz, "MHz")),
        _figure("state", None) if state is None else _figure("", f"P{state}{' (fastest)' if state == 0 else ''}"),
    ]


def _fans(details: GpuDetails) -> list[Content]:
    speeds = details.fan_percents
    words = None if speeds is None else ", ".join(f"{speed} %" for speed in speeds) or "none"
    return [
        _figure("", words),
        _figure("encoder", whole_figure(details.encoder_percent, "%")),
        _figure("decoder", whole_figure(details.decoder_percent, "%")),
    ]


def _pcie(link: PcieLink | None) -> list[Content]:
    if link is None:
        return [_figure("", None)]
    now, most = _width(link.generation, link.width), _width(link.max_generation, link.max_width)
    words = now if now is None or most in (None, now) else f"{now} (at most {most})"
    return [
        _figure("", words),
        _figure("to host", _rate(link.sent_per_second)),
        _figure("from host", _rate(link.received_per_second)),
        tag(f"! {link.replays} replays") if link.replays else _figure("replays", whole_figure(link.replays)),
    ]


def _nvlink(links: NvLinks | None, details: GpuDetails) -> list[Content]:
    if links is None:
        return [_figure("", None if details.reason("nvlink") else "none")]
    to = " and ".join("switches" if peer == "switch" else f"{printable(peer)}s" for peer in links.peers)
    up = f"{'n/a' if links.active is None else links.active} of {links.count} links up{f', to {to}' if to else ''}"
    down = links.active is not None and links.active < links.count
    speed = None if links.link_bytes_per_second is None else f"{_rate(links.link_bytes_per_second)} each"
    unknown = None if details.reason("nvlink.traffic") else "…"  # a rate needs two readings
    return [
        tag(f"! {up}") if down else _figure("", up),
        _figure("version", whole_figure(links.version)),
        _figure("", speed),
        _figure("sent", _rate(links.sent_per_second) or unknown),
        _figure("received", _rate(links.received_per_second) or unknown),
    ]


def _ecc(details: GpuDetails) -> list[Content]:
    state = None if details.ecc_enabled is None else "on" if details.ecc_enabled else "off"
    errors = _errors(details.ecc) if details.ecc_enabled else []
    return [_figure("", state), *errors, *_rows(details.remapped_rows)]


def _errors(ecc: EccErrors | None) -> list[Content]:
    if ecc is None:
        return [_figure("errors", None)]
    counts = (ecc.recent_corrected, ecc.recent_uncorrected, ecc.lifetime_corrected, ecc.lifetime_uncorrected)
    if counts == (0, 0, 0, 0):
        return [Content("no errors")]
    uncorrected = f"{_count(counts[1])} since load, {_count(counts[3])} ever"
    if counts[1] or counts[3]:
        first = tag(f"! uncorrected errors: {uncorrected}")
    else:
        first = Content("no uncorrected errors") if counts[1] == counts[3] == 0 else _figure("uncorrected", uncorrected)
    return [first, _figure("corrected", f"{_count(counts[0])} since load, {_count(counts[2])} ever")]


def _rows(rows: RemappedRows | None) -> list[Content]:
    if rows is None:
        return [_figure("remapped rows", None)]
    count = rows.after_corrected + rows.after_uncorrected
    parts = [_figure("remapped rows", f"{count}" if count else "none")]
    if rows.pending:
        parts.append(tag("! a row is remapped at the next reset"))
    if rows.failed:
        parts.append(tag("! remapping failed: replace the GPU"))
    return parts


_COMPUTE_MODES = {"default": "default", "exclusive_process": "one process only", "prohibited": "no processes allowed"}


def _settings(gpu: GpuReading, details: GpuDetails) -> list[Content]:
    mode = None if gpu.compute_mode is None else _COMPUTE_MODES[gpu.compute_mode]
    limit = whole_figure(gpu.power_limit_w, "W")
    if limit is not None and details.power_default_w is not None:
        highest = details.power_max_w
        usual = {round(gpu.power_limit_w or 0), round(details.power_default_w), round(highest or 0)}
        most = "" if highest is None else f", at most {highest:.0f}"
        limit += " (the highest)" if len(usual) == 1 else f" (default {details.power_default_w:.0f}{most})"
    persistence = None if details.persistence is None else ("on" if details.persistence else "off")
    return [
        _figure("persistence", persistence),
        _figure("compute mode", mode),
        _figure("power limit", limit),
        _figure("off at", whole_figure(details.shutdown_c, "°C")),
    ]


def _board(details: GpuDetails) -> list[Content]:
    used, total = details.bar1_used_bytes, details.bar1_total_bytes
    bar1 = None if used is None or total is None else f"{format_gib(used)} of {format_gib(total)} GiB"
    parts = [
        _figure("PCI", details.pci_address and printable(details.pci_address)),
        _figure("VBIOS", details.vbios and printable(details.vbios)),
        _figure("compute capability", details.compute_capability and printable(details.compute_capability)),
        _figure("BAR1", bar1),
    ]
    if details.numa_node is not None:
        parts.append(_figure("NUMA node", f"{details.numa_node}"))
    if details.near_cpus is not None:
        parts.append(_figure("nearest CPUs", printable(details.near_cpus)))
    return parts


def _of(figure: int | None, most: int | None, unit: str) -> str | None:
    if figure is None:
        return None
    return f"{figure} {unit}" if most is None else f"{figure} of {most} {unit}"


def _count(figure: int | None) -> str:
    return "n/a" if figure is None else f"{figure:,}"


def _width(generation: int | None, width: int | None) -> str | None:
    return None if generation is None or width is None else f"gen {generation} x{width}"


def _rate(figure: int | None) -> str | None:
    """Return bytes a second in GB/s, as links are rated."""
    return None if figure is None else f"{figure / 1e9:.2f} GB/s"
