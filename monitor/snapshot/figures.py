"""Figures of a reading: bounds of those that files state, which anyone may have written, and why one is unknown."""

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_UNIX_SECONDS = 253_402_300_799
"""Unix seconds at the end of the year 9999, the last moment that ``datetime`` can express."""
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
DriverFigure = Annotated[int, Meta(ge=0)]
"""A driver may report any 64-bit number, which is recorded unchanged."""
Seconds = Annotated[float, Meta(ge=0, le=MAX_UNIX_SECONDS)]
Degrees = Annotated[int, Meta(ge=-1000, le=1_000_000)]
Watts = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Percent = Annotated[float, Meta(ge=0, le=1_000_000)]
"""Percent of one core: a process with many threads uses thousands."""
Load = Annotated[float, Meta(ge=0, le=1_000_000_000)]

NO_ANSWER = "NO_ANSWER"
"""Fault code: a driver call has not returned; the figures of the reading are from an earlier one."""
HOST_MEMORY = "HOST_MEMORY"
"""Fault code: the GPU has no memory of its own; the figures are the host's."""
NO_DRIVER = "NO_DRIVER"
"""Fault code: this machine's GPUs cannot be read at all."""
NOT_LISTED = "NOT_LISTED"
"""Fault code: the driver listed this GPU before, and does not any more."""
ASLEEP = "ASLEEP"
"""Fault code: the GPU is suspended to save power, and not queried, as that would wake it. It is not lost."""
FIRST_SAMPLE = "FIRST_SAMPLE"
"""Fault code: the figure is a rate, and there is one sample so far."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A failure to read something, with its reason."""

    field: str | None
    """The field of the reading that is unknown because of it; None: the fault is of the whole device or machine."""
    code: str
    """The driver's error code, such as ``NOT_SUPPORTED``."""
    message: str
    """One sentence for the user."""
