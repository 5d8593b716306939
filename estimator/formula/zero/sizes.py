"""DeepSpeed's sizes, in elements, with its defaults (``runtime/zero/config.py``)."""

from functools import lru_cache

from msgspec import Struct

from ...job import ResolvedJob, Zero


class ZeroSizes(Struct, frozen=True, kw_only=True):
    """DeepSpeed's settings of one job, in elements; the job's, or the defaults."""

    bucket: int
    """Gradients that are reduced at a time."""
    buckets: int
    """Allocated buckets: two where communication overlaps in stages 1 and 2, none without contiguous gradients."""
    prefetch: int
    live: int
    """Weights gathered at once, at most."""
    reuse: int
    """Weights that are used again within that many stay gathered."""
    persists: int
    """Elements of the largest parameter that stays gathered."""
    sub_group: int


def zero_sizes(job: ResolvedJob) -> ZeroSizes:
    """Return the sizes of a job's buckets and of what it gathers."""
    return _sizes(job.zero, job.partitions_weights, job.offloads_optimizer)


@lru_cache(maxsize=64)
def _sizes(zero: Zero, gathers: bool, offloads: bool) -> ZeroSizes:
    contiguous = zero.contiguous_gradients or (offloads and not gathers)
    overlaps = bool(zero.overlap_comm) and not gathers
    return ZeroSizes(
        bucket=_or(zero.reduce_bucket, 500_000_000),
        buckets=(2 if overlaps else 1) if contiguous else 0,
        prefetch=_or(zero.prefetch_bucket, 50_000_000),
        live=_or(zero.max_live_parameters, 1_000_000_000),
        reuse=_or(zero.max_reuse_distance, 1_000_000_000),
        persists=_or(zero.persistence_threshold, 100_000),
        sub_group=max(1, _or(zero.sub_group, 1_000_000_000)),
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
