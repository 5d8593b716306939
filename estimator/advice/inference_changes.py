"""The tables of changes for inference jobs, whose costs have the scale of those for training jobs."""

from collections.abc import Iterator

from ..job.resolved_job import ResolvedJob
from ..job.settings import Inference
from .changes import (
    MORE_GPUS_SLOWDOWN,
    Change,
    ChangeRule,
    Proposal,
    halved,
    partly_in_cpu_ram,
    placed_on_more_gpus,
    shorter_sequences,
)


def _inference(job: ResolvedJob) -> Inference:
    return job.inference or Inference()


def _fewer_sequences(slowdown: float) -> Proposal:
    """Return a proposal of half the sequences at once, a quarter, ...

    Args:
        slowdown: cost of each halving.
    """

    def propose(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
        for halvings, batch in halved(job.training.micro_batch):
            yield Change(
                kind="micro-batch",
                changes={"training.micro_batch": batch},
                why="fewer sequences at once",
                slowdown=slowdown * halvings,
                source="each step reads all weights for fewer sequences",
            )

    return propose


def _other_utilizations(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
    """Yield other shares of the GPU's memory that vLLM takes."""
    for share in (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3):
        lower = _inference(job).gpu_memory_utilization - share
        if not lower:
            continue
        yield Change(
            kind="utilization",
            changes={"inference.gpu_memory_utilization": share},
            why="leaves less for other processes" if lower < 0 else "less KV cache: fewer sequences at once",
            slowdown=round(-0.1 * lower if lower < 0 else 0.5 * lower, 3),
            source="vLLM reserves its share at startup and fills the part that is left after the weights with KV cache",
        )


def _more_tensor_ranks(job: ResolvedJob, gpus: int) -> Iterator[Change]:
    """Yield tensor parallelism over two, four, ... times as many GPUs, up to those that there are."""
    apart = job.job.parallel.device_map is not None or (job.quantization is not None and not job.is_served)
    factor = 2
    while job.framework.tensor_parallel_plan and not apart and factor * job.parallel.world_size <= gpus:
        yield Change(
            kind="sharding",
            changes={"parallel.tensor": factor * job.parallel.tensor},
            why=f"takes {factor * job.parallel.world_size} GPUs",
            slowdown=MORE_GPUS_SLOWDOWN * (factor.bit_length() - 1),
            source="two reductions per block (arXiv:1909.08053)",
        )
        factor *= 2


INFERENCE_CHANGES: tuple[Proposal, ...] = (
    ChangeRule(
        kind="precision",
        applies=lambda job: not job.precision.half_weights,
        changes={"training.precision": "bf16"},
        why="weights in 16 bits",
        slowdown=-0.5,
        quality=0.05,
        source="most checkpoints are stored in 16 bits",
    ),
    ChangeRule(
        kind="weights",
        applies=lambda job: (
            job.quantization is None and job.job.parallel.device_map is None and job.parallel.tensor == 1
        ),
        changes={"inference.weights": "nf4-double"},
        why="weights in 4 bits",
        slowdown=0.3,
        quality=0.2,
        source="weights are dequantized for every product (arXiv:2305.14314)",
    ),
    _fewer_sequences(slowdown=0.3),
    _more_tensor_ranks,
    placed_on_more_gpus,
    partly_in_cpu_ram,
    shorter_sequences,
)
"""Changes for models that transformers runs."""
VLLM_CHANGES: tuple[Proposal, ...] = (
    _other_utilizations,
    ChangeRule(
        kind="cache",
        applies=lambda job: _inference(job).cache_dtype == "auto",
        changes={"inference.cache_dtype": "fp8"},
        why="keys and values in 8 bits",
        quality=0.05,
        source="vLLM's documentation of quantized caches",
    ),
    ChangeRule(
        kind="weights",
        applies=lambda job: _inference(job).weights == "auto",
        changes={"inference.weights": "fp8"},
        why="weights in 8 bits",
        quality=0.1,
        source="99 % of the benchmarks' scores are kept (arXiv:2411.02355)",
    ),
    _fewer_sequences(slowdown=0.02),
    _more_tensor_ranks,
    shorter_sequences,
)
"""For models that vLLM serves."""
