"""The plan of an estimate: the resolved job, the model's shape and parameters, its pipeline stages, and the GPU."""

from msgspec import Struct

from ..job.gpu_catalogue import Generation, Gpu, generation_of
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..model.adapters import QuantizedLayers
from ..model.architecture import Architecture
from ..model.inventory import Inventory, ParameterGroup
from ..model.placement import Placement, place
from ..model.rank_share import Stage, model_trained_parameters, stages
from ..model.trained_parameters import TrainedParameters


class Plan(Struct, frozen=True, kw_only=True):
    """All inputs of a closed-form estimate, resolved once."""

    job: ResolvedJob
    arch: Architecture
    inventory: Inventory
    stages: tuple[Stage, ...]
    """Parameters of a rank of each pipeline stage; stages that are alike are one object."""
    placement: Placement | None
    """Devices of the modules; None: the job has no device map."""
    trained: TrainedParameters | None
    """The model's own parameters that train; None: the job does not say, so all or the adapters."""
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
) -> Plan:
    """Resolve a job on a model and a GPU.

    Raises:
        InputError: the job is spread over more than the model has, or its LoRA targets match nothing.
    """
    resolved = resolve_job(job)
    placement = _placement(resolved, inventory, gpu)
    return Plan(
        job=resolved,
        arch=arch,
        inventory=inventory,
        stages=stages(resolved, inventory, placement),
        placement=placement,
        trained=model_trained_parameters(resolved, inventory),
        gpu=gpu,
        generation=generation_of(gpu),
    )


_PLACED_WIDTHS = {"nf4": 0.5, "nf4-double": 0.5, "int8": 1.0}
"""Bytes per element by which a device map counts quantized weights (``param_element_size``, ``CustomDtype``)."""


def _placement(job: ResolvedJob, inventory: Inventory, gpu: Gpu | None) -> Placement | None:
    """Return where a device map places modules: it may fill all of a GPU but the CUDA context that asking takes."""
    if job.job.parallel.device_map is None:
        return None
    quantized = QuantizedLayers.of(job, inventory)
    # what preparation for k bits casts is placed before, and bitsandbytes' weights without their constants
    width = 2 if job.adapters.prepared == "all" else job.widths.weight
    plain = _PLACED_WIDTHS.get(job.quantization or "")

    def size(group: ParameterGroup) -> int:
        if plain is not None and group in quantized:
            return round(plain * group.elements)
        return quantized.stored_bytes(group, group.elements) or width * group.elements

    sizes = map(size, inventory.groups)
    return place(job, inventory, tuple(sizes), gpu_bytes=free_for_modules(gpu))


def free_for_modules(gpu: Gpu | None) -> int | None:
    """Return the memory of a GPU that a device map may fill; None: not known."""
    return None if gpu is None else gpu.total_bytes - generation_of(gpu).context_bytes
