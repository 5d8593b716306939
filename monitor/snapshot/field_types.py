"""Bounds on figures read from files, which anyone may have written."""

from typing import Annotated

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
