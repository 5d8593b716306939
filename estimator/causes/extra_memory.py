"""Memory that a job may hold besides what its settings describe: states of another type, another communicator."""

from collections.abc import Iterator

from ..budget import Budget, Components
from ..common.sizes import MIB
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from .cause_search import RARE, SOME, UNLIKELY, Cause

_COMMUNICATOR_BYTES = 688 * MIB
"""NCCL's buffers of one more communicator (4 x A100, NVIDIA/nccl#964)."""


def extra_memory_causes(job: Job, budget: Budget) -> Iterator[Cause]:
    """Yield every such cause that a job may have.

    Args:
        job: the job as it was read.
        budget: its quick estimate.
    """
    step = budget.phase("optimizer step")
    if step is not None:
        yield from _fp32_states(resolve_job(job), step.components)
    if job.parallel.world_size > 1:
        yield Cause(
            name="communicator",
            description="there is one more NCCL communicator",
            plausibility=RARE,  # groups made by hand, or a second library's
            outside_bytes=_COMMUNICATOR_BYTES,
        )


def _fp32_states(job: ResolvedJob, states: Components) -> Iterator[Cause]:
    if not job.precision.half_weights or job.lora or job.deepspeed or job.megatron_precision:
        return
    yield Cause(
        name="fp32 gradients",
        description="gradients are kept in fp32",
        plausibility=UNLIKELY,
        allocated_bytes=states.gradients,  # 4 bytes in place of 2
    )
    if states.optimizer:
        yield Cause(
            name="master weights",
            description="the optimizer keeps fp32 master weights and states",
            plausibility=SOME,
            allocated_bytes=2 * states.weights + states.optimizer,  # 4 bytes each, the states in place of 2
        )
