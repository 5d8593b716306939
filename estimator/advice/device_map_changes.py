"""Changes that place a model by accelerate's device map: on several GPUs, or partly in CPU RAM."""

from collections.abc import Iterator

from ..job import BITSANDBYTES, ResolvedJob
from .change import MORE_GPUS_SLOWDOWN, Change

_IDLE_SLOWDOWN = 0.3
"""One GPU computes at a time, and tensor parallelism or FSDP would use all."""
_COPIES_SLOWDOWN = 9.0
"""Weights cross PCIe for every pass: 25 GB/s in place of 1 to 3 TB/s of the GPU's own memory, at the least."""
_SOURCE = "accelerate's guide to big model inference: layers run one GPU after the other, offloaded ones are copied"


def placed_on_more_gpus(job: ResolvedJob, gpus: int) -> Iterator[Change]:
    """Yield a device map over two, four, ... GPUs, for inference, and for adapters where one process trains them."""
    parallel = job.job.parallel
    if not _may_be_placed(job) or (job.trains and job.lora is None):
        return
    count = 2 * parallel.pipeline
    while count <= gpus:
        yield Change(
            kind="sharding",
            changes={"parallel.device_map": "auto", "parallel.pipeline": count},
            why=f"takes {count} GPUs, of which one computes at a time",
            slowdown=MORE_GPUS_SLOWDOWN * (count.bit_length() - 1) + _IDLE_SLOWDOWN,
            quality=0.0,
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
            quality=0.0,
            source=_SOURCE,
        )


def _may_be_placed(job: ResolvedJob) -> bool:
    """Return True for transformers' models in one process that is not split in another way."""
    parallel = job.job.parallel
    whole = parallel.world_size == parallel.pipeline and (parallel.pipeline == 1 or parallel.device_map is not None)
    return job.framework.trainer and whole and parallel.strategy == "none" and not isinstance(parallel.device_map, dict)
