"""Load of the host: processors, RAM, swap and load, within the limits of vramtop's container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # see field_types
    from .field_types import Count, Load


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """The host at one moment; a figure that could not be read is None."""

    cpu_percent: Load | None = None
    """Share of ``cpus`` that was busy since the previous reading; None at the first one."""
    cpus: Load | None = None
    """Number of processors, or the container's limit."""
    cpu_limited: bool = False
    """``cpus`` is the container's limit, and ``cpu_percent`` what the container used."""
    ram_used_bytes: Count | None = None
    """Used RAM, without caches that the system drops on demand."""
    ram_total_bytes: Count | None = None
    """RAM, or the container's limit."""
    ram_limited: bool = False
    """The figures of the RAM are those of the container."""
    swap_used_bytes: Count | None = None
    """Used swap space."""
    swap_total_bytes: Count | None = None
    """Swap space; 0: the host has none."""
    load: tuple[Load, Load, Load] | None = None
    """Average number of tasks that run or wait, of the whole host, over 1, 5 and 15 minutes."""
