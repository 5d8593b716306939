"""Activity of a process beside its GPU memory: its share of the GPU and of the processors, RAM and threads.

These figures are in a snapshot only where a screen asked for them (``demand``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:  # see field_types
    from msgspec import Meta

    from .fault import Fault
    from .field_types import Count, Percent

FIRST_SAMPLE = "FIRST_SAMPLE"
"""Fault code: the figure is a rate, and there is one sample so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures:
    """Figures of one process on one GPU, named as in ``ProcessFigure``; None: not asked for, or see ``faults``."""

    sm_percent: Percent | None = None
    """Time in which its kernels ran on the GPU's multiprocessors, in the last one to two seconds; None: not asked for,
    or unknown."""
    bandwidth_percent: Percent | None = None
    """Time in which it read or wrote the GPU's memory; None: not asked for, or unknown."""
    cpu_percent: Percent | None = None
    """Processor time, where 100 is one core; None: not asked for, or unknown."""
    rss_bytes: Count | None = None
    """Resident set size: its pages in RAM, also those that it shares with others; None: not asked for, or unknown."""
    threads: Count | None = None
    """Number of its threads; None: not asked for, or unknown."""
    faults: Annotated[tuple[Fault, ...], Meta(max_length=100)] = ()
    """Why figures that were asked for are unknown."""

    def fault(self, figure: str) -> Fault | None:
        """Return why a figure is unknown; None: it was not asked for, or is known."""
        return next((fault for fault in self.faults if fault.field == figure), None)
