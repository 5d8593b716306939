"""The plan of an estimate: the resolved job, the model's shape and parameters, its pipeline stages, and the GPU."""

from msgspec import Struct

from ..job import Generation, Gpu, Job, ResolvedJob, generation_of, resolve_job
from ..job.rules import Optimizer
from ..model import Architecture, Inventory, Stage, TrainedParameters, model_trained_parameters, stages


class Plan(Struct, frozen=True, kw_only=True):
    """All inputs of a closed-form estimate, resolved once."""

    job: ResolvedJob
    arch: Architecture
    inventory: Inventory
    stages: tuple[Stage, ...]
    """Parameters of a rank of each pipeline stage; stages that are alike are one object."""
    trained: TrainedParameters | None
    """Which of the model's own parameters train; None: the job does not say, so all or the adapters."""
    gpu: Gpu | None
    """None: not known, so a Hopper GPU."""
    generation: Generation
    """CUDA's own memory on the GPU."""

    @property
    def distinct_stages(self) -> tuple[Stage, ...]:
        """The stages, those that are alike once."""
        return tuple(dict.fromkeys(self.stages))


def make_plan(
    job: Job,
    arch: Architecture,
    inventory: Inventory,
    *,
    gpu: Gpu | None = None,
    optimizer: Optimizer | None = None,
) -> Plan:
    """Resolve a job on a model and a GPU, with an optimizer's rules in place of those that the job names, if given.

    Raises:
        InputError: the job is spread over more than the model has, or its LoRA targets match nothing.
    """
    resolved = resolve_job(job, optimizer=optimizer, experts=arch.moe_layers > 0)
    return Plan(
        job=resolved,
        arch=arch,
        inventory=inventory,
        stages=stages(resolved, inventory),
        trained=model_trained_parameters(resolved, inventory),
        gpu=gpu,
        generation=generation_of(gpu),
    )
