"""A job as it may be where it does not say how it is."""

from msgspec import Struct

from ...job import Job


class OtherSide(Struct, frozen=True, kw_only=True):
    """Another job that the job may be, and what to say of it."""

    source: str
    """Setting that is left open; the alternatives of one source exclude each other."""
    job: Job
    sentence: str
    """Sentence about what is counted, without a full stop; ``{change}`` stands for ``takes 2.1 GiB more``."""
    is_warning: bool = False
    """The job says something that is not understood; otherwise it says nothing."""
