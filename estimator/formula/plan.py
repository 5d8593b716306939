"""The plan of an estimate: the resolved job, the model's shape and parameters, its pipeline stages, and the GPU."""

from dataclasses import dataclass

from ..job.gpu_catalogue import Generation, Gpu, generation_of
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..model.architecture import Architecture
from ..model.parameters import Inventory
from ..model.rank_share import Stage, stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All inputs of a closed-form estimate, resolved once."""

    job: ResolvedJob
    arch: Architecture
    inventory: Inventory
    stages: tuple[Stage, ...]
    """Parameters of a rank of each pipeline stage."""
    gpu: Gpu | None
    """None: not known, so a Hopper GPU."""
    generation: Generation
    """CUDA's own memory on the GPU."""


def make_plan(job: Job, arch: Architecture, inventory: Inventory, *, gpu: Gpu | None = None) -> Plan:
    """Resolve a job on a model and a GPU.

    Raises:
        InputError: the job is spread over more than the model has, or its LoRA targets match nothing.
    """
    resolved = resolve_job(job)
    return Plan(
        job=resolved,
        arch=arch,
        inventory=inventory,
        stages=stages(resolved, inventory),
        gpu=gpu,
        generation=generation_of(gpu),
    )
