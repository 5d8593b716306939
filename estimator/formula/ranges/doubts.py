"""The sources of doubt of an estimate: what its figures rest on that was not checked against the real thing."""

from typing import Literal

from msgspec import Struct

from ...job import ResolvedJob

StepDoubt = Literal["checked", "adapters", "framework", "compiled", "shape", "recurrent"]
"""Reason for the range of a step's tensors.

``checked``: they were compared with what autograd saves, as those of transformers and LitGPT were; ``adapters``:
likewise, but what adapted and quantized layers save depends on dtypes and dropout, which few jobs state; ``framework``:
they were read in the sources of another framework; ``compiled``: torch.compile decides; ``shape``: the family has no
rules, and is counted as a decoder of its shape; ``recurrent``: blocks are no attention, which no rule describes, and
which a trace runs without their fused kernels.
"""
AllocatorDoubt = Literal["plain", "fsdp2", "fsdp1", "other"]
"""Whose streams the allocator serves: one only (``plain``), those of FSDP, or of another library."""


class Doubts(Struct, frozen=True):
    """The sources of doubt of one estimate."""

    step: StepDoubt
    allocator: AllocatorDoubt


def doubts_of(job: ResolvedJob, *, known_family: bool = True, recurrent: bool = False) -> Doubts:
    """Return the sources of doubt of a job.

    Args:
        job: the job.
        known_family: rules describe the blocks of the model's family, or its own code was traced.
        recurrent: blocks of the model are recurrent.
    """
    return Doubts(
        step="recurrent" if recurrent else _step_doubt(job) if known_family else "shape",
        allocator=_allocator_doubt(job),
    )


def _step_doubt(job: ResolvedJob) -> StepDoubt:
    if job.training.compile:
        return "compiled"
    if not job.framework.checked_activations:
        return "framework"
    return "checked" if job.lora is None else "adapters"


def _allocator_doubt(job: ResolvedJob) -> AllocatorDoubt:
    if job.parallel.world_size == 1 or job.strategy.buckets:
        return "plain"
    if job.strategy.fsdp2:
        return "fsdp2"
    return "fsdp1" if job.strategy.flat_parameters else "other"
