"""One host of the fleet as lines: its state, its GPUs with their processes, pending jobs, faults."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.content import Content

from vramtop.estimator.common import UNSEEN_BYTES, format_gib

from ...draw import (
    MUTED,
    SEPARATOR,
    VERDICTS,
    alarm,
    format_duration,
    printable,
    shorten,
    status_mark,
)
from ...widgets import short_gpu_name
from .host_rows import gone_text, use_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vramtop.monitor.fleet import Fleet, FleetGpu, FleetProcess, HostReading

_INDENT = "   "
_GRAPH_LABEL = "last hour  "
_MAX_GRAPH_COLUMNS = 120


def host_lines(
    fleet: Fleet, host: HostReading, width: int, graph: Callable[[FleetGpu, int], str] = lambda *_: ""
) -> tuple[Content, list[Content]]:
    """Return the title and the lines of a host; figures that are not of now are faint, below their age.

    Args:
        fleet: the fleet.
        host: the host.
        width: in columns.
        graph: returns the memory of a GPU over the last hour in so many columns; empty: unknown.
    """
    title = Content(printable(f"Host {host.host}"))
    return title, [line.truncate(width, ellipsis=True) for line in _lines(fleet, host, width, graph)]


def process_line(process: FleetProcess, width: int) -> str:
    """Return a process in one line: memory, budget, status, job, user, command."""
    held = "memory n/a" if process.used_bytes is None else f"{format_gib(process.used_bytes):>6} GiB"
    budget = "" if process.budget_bytes is None else f" of {format_gib(process.budget_bytes)} predicted"
    mark = status_mark(process.status) if process.status else None
    status = f"{mark.letter} {mark.word}" if mark else process.note or "no budget"
    pid = "" if process.pid is None else f"pid {process.pid}"
    device = f"in {process.device}" if process.device else ""
    words = (held + budget, status, process.job or "", process.user or "user n/a", pid, device, process.command or "")
    return shorten(printable(SEPARATOR.join(filter(None, words))), width)


def _lines(fleet: Fleet, host: HostReading, width: int, graph: Callable[[FleetGpu, int], str]) -> Iterator[Content]:
    yield Content(printable(SEPARATOR.join(_facts(host))))
    if not host.is_live:
        yield Content.assemble((f" {host.state} ", alarm()), f" {gone_text(fleet, host)}")
        age = fleet.age_seconds(host)
        if host.gpus and age is not None:
            yield Content("")
            yield Content.styled(f"Figures of {format_duration(age)} ago, not of now:", "bold")
    for fault in host.faults:
        yield Content.assemble((" ! ", alarm()), f" {printable(fault)}")
    for anomaly in host.anomalies:
        yield Content.assemble((" ! ", alarm()), f" {printable(anomaly)}")
    lines = (line for gpu in host.gpus for line in _gpu_lines(gpu, width, graph))
    yield from lines if host.is_live else (line.stylize(MUTED) for line in lines)
    if host.pending and host.is_live:
        yield Content("")
        yield Content.styled("Pending jobs", "bold")
    for pending in host.pending if host.is_live else ():
        word = next((mark.word for name, mark in VERDICTS.items() if name == pending.verdict), pending.verdict)
        need = "" if pending.device_bytes is None else f" ({format_gib(pending.device_bytes)} GiB)"
        sentence = f": {pending.sentence}" if pending.sentence else ""
        yield Content(printable(f"{_INDENT}{pending.job}{need}: {word}{sentence}"))


def _facts(host: HostReading) -> list[str]:
    facts = [f"{len(host.gpus)} GPU{'s' * (len(host.gpus) != 1)}"] if host.gpus else ["no GPU is known"]
    facts += [f"driver {host.driver_version}"] if host.driver_version else []
    facts += [f"vramtop {host.vramtop_version}"] if host.vramtop_version else []
    if host.time is not None:
        facts.append(f"read at {time.strftime('%H:%M:%S', time.localtime(host.time))} by its clock")
    return facts


def _gpu_head(gpu: FleetGpu, width: int) -> Content:
    """Return a GPU's name and figures; where there is little room without its bar, then with less of its name."""
    used = f"{format_gib(gpu.used_bytes)} of {format_gib(gpu.total_bytes)} GiB in use"
    parts = ["memory n/a"] if gpu.total_bytes is None else [used, f"{format_gib(gpu.free_bytes)} free"]
    if (gpu.committed_bytes or 0) >= UNSEEN_BYTES:
        parts.append(f"{format_gib(gpu.committed_bytes)} committed")
    if (gpu.unattributed_bytes or 0) >= UNSEEN_BYTES:
        parts.append(f"{format_gib(gpu.unattributed_bytes)} unattributed")
    parts += [f"util {gpu.utilisation_percent} %"] if gpu.utilisation_percent is not None else []
    figures = ", ".join(parts)
    label, name = printable(f"GPU {gpu.shown_label}"), printable(short_gpu_name(gpu.name) if gpu.name else "name n/a")
    bar = use_bar(gpu.used_bytes, gpu.total_bytes)
    middle = f"  {bar}  " if bar else "  "
    if len(label) + 2 + len(name) + len(middle) + len(figures) > width:
        middle = "  "
    name = shorten(name, max(0, width - len(label) - 2 - len(middle) - len(figures)))
    return Content.assemble((f"{label}  {name}" if name else label, "bold"), middle, figures)


def _gpu_lines(gpu: FleetGpu, width: int, graph: Callable[[FleetGpu, int], str]) -> Iterator[Content]:
    yield Content("")
    yield _gpu_head(gpu, width)
    bars = graph(gpu, min(_MAX_GRAPH_COLUMNS, width - len(_INDENT) - len(_GRAPH_LABEL)))
    if bars:
        yield Content.assemble(_INDENT, (_GRAPH_LABEL, MUTED), bars)
    if gpu.fault:
        words = "its driver hangs, the figures are of an earlier reading: " if gpu.is_stale else ""
        yield Content.assemble(_INDENT, (" ! ", alarm()), f" {words}{printable(gpu.fault)}")
    for device in gpu.devices:
        free = f"{format_gib(device.used_bytes)} of {format_gib(device.total_bytes)} GiB in use"
        yield Content(
            printable(f"{_INDENT}MIG device {device.shown_label}  {free}, {format_gib(device.free_bytes)} free")
        )
    if gpu.processes is None:
        yield Content.styled(f"{_INDENT}its processes cannot be read", MUTED)
    for process in gpu.processes or ():
        yield Content(_INDENT + process_line(process, width - len(_INDENT)))
        if process.diverges and process.sentence:
            yield Content.styled(printable(f"{_INDENT}   {process.sentence}"), MUTED)
