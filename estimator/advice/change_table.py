"""The changes that are searched to make a job fit, by the kind of job."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from ..job import BF16_CAPABILITY, Gpu, Job, ResolvedJob, resolve_job
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


def candidate_changes(job: Job, *, gpus: int = 1, gpu: Gpu | None = None) -> tuple[Change, ...]:
    """Return every change that may lower the memory that the job needs, the cheapest first.

    Args:
        job: the job to change.
        gpus: number of GPUs that there are, for sharding the job further.
        gpu: what they are; None: not known, so that they compute in every type.
    """
    resolved = resolve_job(job)
    found: Iterator[Change] = (change for propose in CHANGES[_workload(resolved)] for change in propose(resolved, gpus))
    if gpu is not None and gpu.compute_capability < BF16_CAPABILITY:
        found = _before_ampere(found, resolved)
    return tuple(sorted(found, key=lambda change: change.cost))


def _before_ampere(changes: Iterator[Change], job: ResolvedJob) -> Iterator[Change]:
    """Yield the changes with fp16 in place of bf16, without those that a GPU before Ampere has no kernels for."""
    for change in changes:
        precision = str(change.changes.get("training.precision", ""))
        if "fp8" in change.changes.values() or (precision == "bf16" and job.trains and job.lora is None):
            continue  # nothing trains in plain fp16: its gradients vanish
        half = {"training.precision": precision.replace("bf16", "fp16")} if precision else {}
        yield replace(change, changes=change.changes | half)


def _workload(job: ResolvedJob) -> Workload:
    if job.is_served:
        return "vllm"
    return "training" if job.trains else "inference"
