"""Why a process holds something else than its budget: what was seen of it, and the answer in lines."""

from collections.abc import Collection

from textual.content import Content

from vramtop.estimator.divergence import Counters, Divergence, Observation
from vramtop.monitor.board import ProcessRow
from vramtop.monitor.snapshot import ProcessCounters

from .terminal import clean
from .words import MUTED


def observation_of(row: ProcessRow, assumed: Collection[str] = ()) -> Observation | None:
    """What was seen of a process that diverges from its budget; None for one that does not, or was never seen.

    Args:
        row: how it stands.
        assumed: dotted keys of its job that nobody wrote down.
    """
    comparison, counters = row.comparison, row.process.counters
    if comparison is None or not comparison.diverges:
        return None
    high = comparison.high_water
    most = comparison.observed_bytes if high is None else high.size_bytes
    if most is None:
        return None
    return Observation(
        device_bytes=most,
        now_bytes=row.process.used_bytes,
        counters=None if counters is None else _told(counters),
        assumed=assumed,
    )


def why_content(divergence: Divergence) -> Content:
    """One sentence, and below it the parts that differ and what would predict them, the likeliest first."""
    head, below = divergence.sentence, divergence.lines
    said = next((line for line in below if head.endswith(f"; {line}")), None)
    if said is not None:  # it is the first of those below
        head = f"{head.removesuffix(said).rstrip('; ')}; the budget would be"
    lines = [Content.assemble(("Why? ", "bold"), clean(head))]
    lines += [Content.assemble(("  · ", MUTED), clean(line)) for line in below]
    return Content("\n").join(lines)


def _told(counters: ProcessCounters) -> Counters:
    return Counters(
        allocated_bytes=counters.allocated_bytes,
        reserved_bytes=counters.reserved_bytes,
        allocated_peak_bytes=counters.allocated_peak_bytes,
        reserved_peak_bytes=counters.reserved_peak_bytes,
        retries=counters.retries,
        out_of_memory=counters.out_of_memory,
    )
