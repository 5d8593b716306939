"""Changes that make inference smaller; see ``changes`` for what the costs mean."""

from collections.abc import Iterator

from ..job.job import Inference, Job
from .change import Change, shorter_sequences


def for_inference(job: Job, gpus: int) -> Iterator[Change]:
    """What makes a model that transformers runs smaller, on so many GPUs at most."""
    training = job.training
    if training.precision in ("fp32", "bf16-mixed", "fp16-mixed"):
        yield Change(
            kind="precision",
            changes={"training.precision": "bf16"},
            why="weights in 16 bits",
            slowdown=-0.5,
            quality=0.05,
            source="as most checkpoints are stored",
        )
    yield from _fewer_at_once(job, 0.3)
    yield from _more_tensor_ranks(job, gpus)
    yield from shorter_sequences(job)


def _fewer_at_once(job: Job, slowdown: float) -> Iterator[Change]:
    batch, halvings = job.training.micro_batch, 0
    while batch > 1:
        batch, halvings = batch // 2, halvings + 1
        yield Change(
            kind="micro-batch",
            changes={"training.micro_batch": batch},
            why="fewer sequences at once",
            slowdown=slowdown * halvings,
            quality=0.0,
            source="each step reads all weights for fewer sequences",
        )


def for_vllm(job: Job, gpus: int) -> Iterator[Change]:
    """What makes a model that vLLM serves start, on so many GPUs at most."""
    inference = job.inference or Inference()
    for share in (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3):
        lower = inference.gpu_memory_utilization - share
        if not lower:
            continue
        yield Change(
            kind="utilization",
            changes={"inference.gpu_memory_utilization": share},
            why="less room beside vLLM" if lower < 0 else "less cache: fewer sequences at once",
            slowdown=round(-0.1 * lower if lower < 0 else 0.5 * lower, 3),
            quality=0.0,
            source="the share is taken at the start, and what weights leave of it is cache",
        )
    if inference.cache_dtype == "auto":
        yield Change(
            kind="cache",
            changes={"inference.cache_dtype": "fp8"},
            why="keys and values in 8 bits",
            slowdown=0.0,
            quality=0.05,
            source="vLLM's documentation of quantized caches",
        )
    if inference.weights == "auto":
        yield Change(
            kind="weights",
            changes={"inference.weights": "fp8"},
            why="weights in 8 bits; for cards since Ada and Hopper",
            slowdown=0.0,
            quality=0.1,
            source="99 % of the benchmarks' scores are kept (arXiv:2411.02355)",
        )
    yield from _fewer_at_once(job, 0.02)
    yield from _more_tensor_ranks(job, gpus)
    yield from shorter_sequences(job)


def _more_tensor_ranks(job: Job, gpus: int) -> Iterator[Change]:
    if job.training.framework == "transformers" and 2 * job.parallel.world_size <= gpus:
        yield Change(
            kind="sharding",
            changes={"parallel.tensor": 2 * job.parallel.tensor},
            why=f"takes {2 * job.parallel.world_size} GPUs",
            slowdown=0.2,
            quality=0.0,
            source="two reductions per block (arXiv:1909.08053)",
        )
