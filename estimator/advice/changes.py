"""Changes of a job that lower the memory it needs: their record, their tables' rows, and those of every kind of job."""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import msgspec

from ..job.resolved_job import ResolvedJob
from ..job.rules.dtype_widths import BITSANDBYTES

HOST_LOADING = "loading"
"""The kind of changes that lower host memory only."""
FEWER_GPUS = "fewer GPUs"
"""The kind of changes that every suggestion has for a job that needs more GPUs than there are."""
MORE_GPUS_SLOWDOWN = 0.2
"""Cost of each doubling of the GPUs: other jobs cannot use them."""
IDLE_SLOWDOWN = 0.3
"""One GPU computes at a time, and tensor parallelism or FSDP would use all."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """New values of some settings, and their cost in speed and quality."""

    kind: str
    """Changes of one kind exclude each other."""
    changes: dict[str, Any]
    """Dotted job keys and their new values."""
    why: str
    """Description of the cost, in a few words."""
    slowdown: float = 0.0
    """Share by which a step takes longer; negative if it gets faster."""
    quality: float = 0.0
    """Loss of quality on the scale of ``slowdown``; 0: the same result."""
    source: str
    """Source of the costs."""

    @property
    def cost(self) -> float:
        """Slowdown and loss of quality together, by which changes are ranked."""
        return max(0.0, self.slowdown) + self.quality


Proposal = Callable[[ResolvedJob, int], Iterator[Change]]
"""Yields the changes that suit a job, given the number of GPUs that there are: a ``ChangeRule`` or a function."""


class ChangeRule(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table of changes: the jobs that it applies to, the settings that it changes, and its cost."""

    kind: str
    applies: Callable[[ResolvedJob], bool]
    changes: Mapping[str, Any] | Callable[[ResolvedJob], dict[str, Any]]
    """Dotted job keys and their new values, or a function of the job that returns them."""
    why: str
    slowdown: float | Callable[[ResolvedJob], float] = 0.0
    """Share by which a step takes longer, or a function of the job that returns it."""
    quality: float = 0.0
    source: str

    def __call__(self, job: ResolvedJob, _gpus: int) -> Iterator[Change]:
        """Yield the change if it applies to the job."""
        if self.applies(job):
            yield Change(
                kind=self.kind,
                changes=self.changes(job) if callable(self.changes) else dict(self.changes),
                why=self.why,
                slowdown=self.slowdown(job) if callable(self.slowdown) else self.slowdown,
                quality=self.quality,
                source=self.source,
            )


def shorter_sequences(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
    """Yield sequences of half the length, a quarter, ... down to 512 tokens."""
    length, halvings = job.training.sequence_length, 1
    while length % 2 == 0 and length >= 1024:
        length //= 2
        yield Change(
            kind="length",
            changes={"training.sequence_length": length},
            why="truncates longer sequences",
            quality=0.5 * halvings,
            source="nothing is lost if the examples are that short",
        )
        halvings += 1


_REDUCED = ("pipeline", "data_replicate", "data_shard", "context", "tensor")
"""The sizes that are reduced first come first: a shorter pipeline idles less."""
_FURTHER_DOWN = 0.01
"""Cost of each size that is passed over, so that the first of them is preferred."""


def fewer_gpus(job: ResolvedJob, gpus: int) -> Iterator[Change]:
    """Yield smaller sizes of one dimension, with which a job takes no more GPUs than there are; else of several."""
    parallel, needed = job.job.parallel, job.job.parallel.world_size
    sizes = {name: getattr(parallel, name) for name in _REDUCED}
    found = [
        {name: size // factor}
        for name, size in sizes.items()
        if (factor := next((n for n in range(2, size + 1) if size % n == 0 and needed // n <= gpus), None))
    ]
    if needed > gpus and not found:
        found = [_reduced(sizes, needed, gpus)]
    for changed in found if needed > gpus else []:
        ratio = prod(sizes[name] for name in changed) // prod(changed.values())
        batch = prod(sizes[name] // size for name, size in changed.items() if name.startswith("data_"))
        accumulation = batch * job.training.gradient_accumulation
        kept = {"training.gradient_accumulation": accumulation} if batch > 1 and job.trains else {}
        same = ", the same global batch" if kept else ""
        yield Change(
            kind=FEWER_GPUS,
            changes={**{f"parallel.{name}": size for name, size in changed.items()}, **kept},
            why=f"takes {needed // ratio} GPU{'s' * (needed > ratio)} instead of {needed}{same}",
            slowdown=round(ratio - 1.0 + _FURTHER_DOWN * [*sizes].index(next(iter(changed))), 3),
            source="each GPU does the work of several",
        )


def _reduced(sizes: Mapping[str, int], needed: int, gpus: int) -> dict[str, int]:
    """Return the sizes that are reduced one after the other, each as far as it has to be."""
    changed: dict[str, int] = {}
    for name, size in sizes.items():
        if needed > gpus and size > 1:
            factor = next((n for n in range(2, size) if size % n == 0 and needed // n <= gpus), size)
            changed[name], needed = size // factor, needed // factor
    return changed


_COPIES_SLOWDOWN = 9.0
"""Weights cross PCIe for every pass: 25 GB/s in place of 1 to 3 TB/s of the GPU's own memory, at the least."""
_SOURCE = "accelerate's guide to big model inference: GPUs run their layers in turn, and offloaded layers are copied"


def placed_on_more_gpus(job: ResolvedJob, gpus: int) -> Iterator[Change]:
    """Yield device maps over 2, 4, ... GPUs: for inference, and for adapters that one process trains."""
    parallel = job.job.parallel
    if not _may_be_placed(job) or (job.trains and job.lora is None):
        return
    count = 2 * parallel.pipeline
    while count <= gpus:
        yield Change(
            kind="sharding",
            changes={"parallel.device_map": "auto", "parallel.pipeline": count},
            why=f"takes {count} GPUs; only one computes at a time",
            slowdown=MORE_GPUS_SLOWDOWN * (count.bit_length() - 1) + IDLE_SLOWDOWN,
            source=_SOURCE,
        )
        count *= 2


def partly_in_cpu_ram(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
    """Yield a device map on one GPU, which leaves in CPU RAM what does not fit; for inference only."""
    whole = job.quantization in BITSANDBYTES  # which refuses to leave weights in CPU RAM
    if _may_be_placed(job) and not job.trains and not whole and job.job.parallel.device_map is None:
        yield Change(
            kind="sharding",
            changes={"parallel.device_map": "auto"},
            why="weights that do not fit stay in CPU RAM: many times slower",
            slowdown=_COPIES_SLOWDOWN,
            source=_SOURCE,
        )


def _may_be_placed(job: ResolvedJob) -> bool:
    """Return True for transformers' models in one process that is not split in another way."""
    parallel = job.job.parallel
    whole = parallel.world_size == parallel.pipeline and (parallel.pipeline == 1 or parallel.device_map is not None)
    return job.framework.trainer and whole and parallel.strategy == "none" and not isinstance(parallel.device_map, dict)


def halved(batch: int) -> Iterator[tuple[int, int]]:
    """Yield half a batch, a quarter, ... down to 1, each behind its number of halvings."""
    halvings = 0
    while batch > 1:
        batch, halvings = batch // 2, halvings + 1
        yield halvings, batch
