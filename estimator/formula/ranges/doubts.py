"""The sources of doubt of an estimate: what its figures rest on that was not checked against the real thing."""

from dataclasses import dataclass
from typing import Literal

from ...job import ResolvedJob

StepDoubt = Literal["checked", "framework", "compiled", "hybrid"]
"""How well a step's tensors are known.

``checked``: they were compared with what autograd saves, as those of transformers and LitGPT were; ``framework``: they
were read in the sources of another framework; ``compiled``: torch.compile decides; ``hybrid``: blocks that no rule
describes, such as those of state-space models.
"""
AllocatorDoubt = Literal["plain", "fsdp2", "fsdp1", "other"]
"""Whose streams the allocator serves: one only (``plain``), those of FSDP, or of another library."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """The sources of doubt of one estimate."""

    step: StepDoubt
    allocator: AllocatorDoubt


def doubts_of(job: ResolvedJob, *, hybrid: bool = False) -> Doubts:
    """Return the sources of doubt of a job.

    Args:
        job: the job.
        hybrid: the model has blocks that the rules do not know.
    """
    return Doubts(step=_step_doubt(job, hybrid), allocator=_allocator_doubt(job))


def _step_doubt(job: ResolvedJob, hybrid: bool) -> StepDoubt:
    if hybrid:
        return "hybrid"
    if job.training.compile:
        return "compiled"
    return "framework" if job.framework.activation_uncertainty else "checked"


def _allocator_doubt(job: ResolvedJob) -> AllocatorDoubt:
    if job.parallel.world_size == 1 or job.strategy.buckets:
        return "plain"
    if job.strategy.fsdp2:
        return "fsdp2"
    return "fsdp1" if job.strategy.flat_parameters else "other"
