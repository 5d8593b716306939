"""The correction of a budget by measured runs, and the runs that it rests on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .budget import Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A correction by measured runs, in words and figures."""

    sentence: str
    """The correction in words, with the uncorrected figure."""
    runs: int
    """Measured runs that it rests on."""
    jobs: int
    """Different jobs among them."""
    same_job: bool
    """Some of the runs are of this very job."""
    last: float
    """Unix seconds of the newest of the runs."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Bytes that were added, by mechanism: fixed, tokens, slack, context, nccl."""
    uncorrected: Peak
    """The peak without the correction."""
    uncorrected_outside_bytes: int
    """Bytes of that peak that never pass through torch's allocator."""
    uncorrected_steady_bytes: int
    """Bytes between steps without the correction."""
