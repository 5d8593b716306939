"""The changes that are searched to make a job fit, by the kind of job."""

from typing import Literal

from ..job import Job, ResolvedJob, resolve_job
from .change import Change, Proposal
from .inference_changes import INFERENCE_CHANGES, VLLM_CHANGES
from .training_changes import TRAINING_CHANGES

Workload = Literal["training", "inference", "vllm"]

CHANGES: dict[Workload, tuple[Proposal, ...]] = {
    "training": TRAINING_CHANGES,
    "inference": INFERENCE_CHANGES,
    "vllm": VLLM_CHANGES,
}
"""A new change is one row of its table; changes of equal cost are tried in the order of the rows."""


def candidate_changes(job: Job, *, gpus: int = 1) -> tuple[Change, ...]:
    """Return every change that may lower the memory that the job needs, the cheapest first.

    Args:
        job: the job to change.
        gpus: number of GPUs that there are, for sharding the job further.
    """
    resolved = resolve_job(job)
    found = [change for propose in CHANGES[_workload(resolved)] for change in propose(resolved, gpus)]
    return tuple(sorted(found, key=lambda change: change.cost))


def _workload(job: ResolvedJob) -> Workload:
    if job.is_served:
        return "vllm"
    return "training" if job.trains else "inference"
