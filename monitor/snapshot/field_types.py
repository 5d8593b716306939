"""Ranges that hold where a file is read, which anybody may have written.

Whoever decodes a dataclass whose module names these only in annotations gives it ``NAMES`` first: msgspec looks them up
there, and importing it takes a sixth of the time of ``vramtop --once``, which decodes nothing.
"""

from typing import Annotated, Any

from msgspec import Meta

from vramtop.estimator.job.job import Job

from .snapshot import LATEST

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Reading = Annotated[int, Meta(ge=0)]
"""What a driver says may be anything in 64 bits, and is recorded as it was."""
Seconds = Annotated[float, Meta(ge=0, le=LATEST)]
Degrees = Annotated[int, Meta(ge=-1000, le=1_000_000)]
Watts = Annotated[float, Meta(ge=0, le=1_000_000_000)]

NAMES: dict[str, Any] = {
    "Meta": Meta,
    "Job": Job,
    "Count": Count,
    "Reading": Reading,
    "Seconds": Seconds,
    "Degrees": Degrees,
    "Watts": Watts,
}
