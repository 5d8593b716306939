"""The line about the host: processors, RAM, swap and load, beside the limits of vramtop's container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from vramtop.estimator.common.sizes import format_gib

from ...draw.labels import MUTED, alarm, join_to_width

if TYPE_CHECKING:
    from vramtop.monitor.board.board import Board
    from vramtop.monitor.snapshot.snapshot import HostLoad


MIN_HEIGHT = 30
"""Lines of a terminal in which there is room for this one."""
_MIN_OTHER_LINES = 20
"""Lines for everything but the GPUs."""


def needed_height(board: Board | None) -> int:
    """Return the lines of a terminal that has room for the line beside one line for each of the GPUs."""
    return max(MIN_HEIGHT, (len(board.displayed_gpus) if board else 0) + _MIN_OTHER_LINES)


def host_line(load: HostLoad, width: int) -> Content:
    """Return the line, as much of it as fits."""
    busy = "n/a" if load.cpu_percent is None else f"{load.cpu_percent:.0f} %"
    if load.cpus is not None:
        cores = "core" if load.cpus == 1 else "cores"
        busy = f"{busy} of {load.cpus:g} {cores}{' (container)' if load.cpu_limited else ''}"
    parts = [Content("host"), Content(f"CPU {busy}"), _ram(load)]
    if load.swap_total_bytes:
        parts.append(Content(f"swap {format_gib(load.swap_used_bytes)} of {format_gib(load.swap_total_bytes)} GiB"))
    if load.load:
        parts.append(Content("load " + " ".join(f"{average:.1f}" for average in load.load)))
    return join_to_width(parts, width).stylize_before(MUTED)


_HIGH_RAM = 0.95
"""From this share of the RAM on, the kernel may soon end a process."""


def _ram(load: HostLoad) -> Content:
    used, total = load.ram_used_bytes, load.ram_total_bytes
    if used is None or total is None:
        return Content("RAM n/a")
    words = f"RAM {format_gib(used)} of {format_gib(total)} GiB{' (container)' if load.ram_limited else ''}"
    return Content.styled(f" ! {words} ", alarm()) if used >= _HIGH_RAM * total else Content(words)
