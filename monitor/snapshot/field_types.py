"""Bounds on figures read from files, which anyone may have written.

A module that only annotates with these names needs ``ANNOTATION_NAMES`` in its namespace before msgspec decodes its
dataclasses. Importing msgspec there would take a sixth of the time of ``vramtop --once``, which decodes nothing.
"""

from typing import Annotated, Any

from msgspec import Meta

from vramtop.estimator.job import Job

from .process_figures import ProcessFigures
from .snapshot import MAX_UNIX_SECONDS, Fault

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
DriverFigure = Annotated[int, Meta(ge=0)]
"""A driver may report any 64-bit number, which is recorded unchanged."""
Seconds = Annotated[float, Meta(ge=0, le=MAX_UNIX_SECONDS)]
Degrees = Annotated[int, Meta(ge=-1000, le=1_000_000)]
Watts = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Percent = Annotated[float, Meta(ge=0, le=1_000_000)]
"""Of one core: a process with many threads uses thousands."""

ANNOTATION_NAMES: dict[str, Any] = {
    "Meta": Meta,
    "Job": Job,
    "Count": Count,
    "DriverFigure": DriverFigure,
    "Seconds": Seconds,
    "Degrees": Degrees,
    "Watts": Watts,
    "Percent": Percent,
    "Fault": Fault,
    "ProcessFigures": ProcessFigures,
}
