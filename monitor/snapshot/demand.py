"""Demand: figures that the screen in front shows beyond memory. Only those are read in addition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from .gpu_details import DetailLevel
from .snapshot import GpuKey

ProcessFigure = Literal["sm_percent", "bandwidth_percent", "cpu_percent", "rss_bytes", "threads"]
"""A field of ``ProcessFigures``."""
DRIVER_FIGURES: frozenset[ProcessFigure] = frozenset({"sm_percent", "bandwidth_percent"})
"""Figures that cost a driver call for each GPU."""
HOST_FIGURES: frozenset[ProcessFigure] = frozenset({"cpu_percent", "rss_bytes", "threads"})
"""Figures that cost a file of ``/proc`` for each process."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a reading is to contain in addition; nothing by default."""

    process_figures: frozenset[ProcessFigure] = frozenset()
    """Figures that are shown of processes."""
    gpus: Mapping[GpuKey, DetailLevel] = msgspec.field(default_factory=dict)
    """GPUs of which details are shown; a MIG device counts as its GPU (``whole_gpu_key``)."""
    host: bool = False
    """The load of the host is shown."""

    def adds_to(self, before: Demand) -> bool:
        """Return True if it asks for all details of another GPU, for the host, or for other figures of processes."""
        gpus = (key for key, level in self.gpus.items() if level == "full" and before.gpus.get(key) != level)
        figures = self.process_figures - before.process_figures
        return (self.host and not before.host) or any(True for _ in gpus) or bool(figures)


class CurrentDemand(msgspec.Struct):
    """The demand of the screen in front: set on the UI thread, looked at by a source at every reading."""

    value: Demand = msgspec.field(default_factory=Demand)

    def show(self, demand: Demand) -> bool:
        """Have the next reading contain this; returns True if it should be read soon (``adds_to``)."""
        before, self.value = self.value, demand
        return self.value.adds_to(before)
