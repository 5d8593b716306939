"""Bounds on figures read from files, which anyone may have written.

A module that only annotates with these names needs them in its namespace before msgspec decodes its dataclasses: see
``resolve_annotations``. Importing msgspec there would take a sixth of the time of ``vramtop --once``, which decodes
nothing.
"""

from typing import Annotated, Any

from msgspec import Meta

from vramtop.estimator.job.job import Job

from . import gpu_details, snapshot
from .snapshot import MAX_UNIX_SECONDS

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
DriverFigure = Annotated[int, Meta(ge=0)]
"""A driver may report any 64-bit number, which is recorded unchanged."""
Seconds = Annotated[float, Meta(ge=0, le=MAX_UNIX_SECONDS)]
Degrees = Annotated[int, Meta(ge=-1000, le=1_000_000)]
Watts = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Percent = Annotated[float, Meta(ge=0, le=1_000_000)]
"""Percent of one core: a process with many threads uses thousands."""
Load = Annotated[float, Meta(ge=0, le=1_000_000_000)]

_OWN_NAMES: dict[str, Any] = {
    "Meta": Meta,
    "Job": Job,
    "Count": Count,
    "DriverFigure": DriverFigure,
    "Seconds": Seconds,
    "Degrees": Degrees,
    "Watts": Watts,
    "Percent": Percent,
    "Load": Load,
}


def resolve_annotations() -> None:
    """Give the names in annotations of snapshots their meaning, so that msgspec can decode snapshots."""
    records = {name: each for module in (gpu_details, snapshot) for name, each in vars(module).items()}
    names = {name: each for name, each in records.items() if isinstance(each, type)} | _OWN_NAMES
    for module in (gpu_details, snapshot):
        vars(module).update(names)
