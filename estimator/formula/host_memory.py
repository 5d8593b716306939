"""Host memory of a job: the RAM of a machine that its processes need to load the model, and to train.

Rules and their sources:
- ``from_pretrained`` maps safetensors files: weights loaded in the dtype they are stored in stay pages of the file,
  one copy for all ranks of a machine, which the system can drop; any other dtype is a private copy in each rank (seen
  in /proc/self/smaps_rollup, transformers 5.23). Under ZeRO 3 each rank keeps its partition only (``zero.Init``),
  under FSDP with ``cpu_ram_efficient_loading`` only rank 0 loads (accelerate, ``FullyShardedDataParallelPlugin``).
- ZeRO-Offload keeps an fp32 copy, two moments and an fp32 gradient of each partition on the host: 16 bytes per
  parameter, 18 with the weights (deepspeed/runtime/zero/stage3.py, ``estimate_zero3_model_states_mem_needs``).
- FSDP's ``CPUOffloadPolicy`` keeps the shards of weights, gradients and states in their own dtypes, pinned.
- torch rounds pinned blocks up to powers of two (ATen/core/CachingHostAllocator.h); DeepSpeed counts half as much
  again for buffers (``additional_buffer_factor=1.5``): the upper bound here.
"""

from ..common.records import replace
from ..common.sizes import MIB
from ..host_need import HostNeed
from ..job.job import Job
from ..job.resolved_job import ResolvedJob
from ..model.architecture import Architecture
from ..model.inventory import Inventory
from ..model.rank_share import Stage
from .activations.saved_activations import saved_activations
from .buffers import weight_width
from .checkpoint_saving import saved_on_host
from .model_states import state_rules
from .plan import Plan, make_plan

_PROCESS_BYTES = 430 * MIB
"""Python with torch and transformers imported: resident size, torch 2.13, transformers 5.23."""
_CUDA_BYTES = 900 * MIB
"""CUDA and its libraries besides: a process with one small module on the GPU took 1.3 GB (pytorch/pytorch#31767)."""
ASSUMPTION = (
    "Host memory: a process takes 1.3 GiB before any tensor, and checkpoints are safetensors files. Data loader "
    "workers and data are not counted."
)


def host_need(job: Job, arch: Architecture, inventory: Inventory) -> HostNeed:
    """Return the host memory that the rank of a job with the highest need takes.

    Raises:
        InputError: the job is spread over more than the model has, or its LoRA targets match nothing.
    """
    return host_need_of_plan(make_plan(job, arch, inventory))


def host_need_of_plan(plan: Plan) -> HostNeed:
    """Return the host memory of a job that is resolved already."""
    job = plan.job
    loaded, mapped = _loading(plan)
    weights, gradients, optimizer = _offloaded(job, plan.distinct_stages)
    if plan.placement is not None:
        weights += sum(module.size for module in plan.placement.host)
    activations = 0
    if job.training.activation_offload and job.trains:  # what the GPU would save without offloading
        kept = replace(job, training=replace(job.training, activation_offload=False))
        activations = max(
            saved_activations(kept, plan.arch, stage).all_layers_bytes * stage.in_flight
            for stage in plan.distinct_stages
        )
    saved, once = saved_on_host(job, plan.distinct_stages) if job.trains else (0, True)
    return HostNeed(
        process=_PROCESS_BYTES + _CUDA_BYTES,
        loaded=loaded,
        loads_once=job.parallel.load_on_rank_zero and job.strategy.fsdp,
        mapped=mapped,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        saving=saved,
        saves_once=once,
    )


def _loading(plan: Plan) -> tuple[int, int]:
    """Return (private copy of one rank, mapped pages of the machine)."""
    job, dtype = plan.job, plan.arch.dtype
    if job.framework.initializes_on_gpu:
        return 0, 0  # created on the GPU (to_empty), and filled from checkpoints shard by shard
    stored = 4 if dtype == "float32" else 2
    mapped = stored * plan.inventory.parameters
    same = job.widths.weight == stored and (not job.precision.half_weights or dtype in (None, job.precision.dtype))
    directly = plan.placement is not None  # each tensor goes to its device as it is read
    if same or directly or job.quantization or not job.framework.casts_while_loading or job.partitions_weights:
        return 0, mapped
    return max(stage.base_elements for stage in plan.distinct_stages) * job.widths.weight, mapped


def _offloaded(job: ResolvedJob, stages: tuple[Stage, ...]) -> tuple[int, int, int]:
    """Return (weights, gradients, optimizer states) that a rank keeps on the host, each of the largest stage."""
    if not job.trains or not (job.offloads_optimizer or job.optimizer.elsewhere):
        return 0, 0, 0
    weights, gradients, optimizer = zip(*(_offloaded_of_stage(job, stage) for stage in stages), strict=True)
    return max(weights), max(gradients), max(optimizer)


def _offloaded_of_stage(job: ResolvedJob, stage: Stage) -> tuple[int, int, int]:
    """Return (weights, gradients, optimizer states)."""
    rules, widths, shards = state_rules(job), job.widths, job.shards
    trained = [held for held in stage.parameters if held.trainable]
    elements = sum(held.elements for held in trained)
    optimizer = sum(rules.states(held) + (rules.master(held) if job.offloads_optimizer else 0) for held in trained)
    optimizer += sum(job.optimizer.host_copies * held.elements * weight_width(held, widths) for held in trained)
    gradient = 4 if job.deepspeed else widths.gradient if job.offloads_weights else 0
    weights = sum(held.elements * weight_width(held, widths) for held in stage.parameters)
    return (
        round(weights / shards.weights) if job.offloads_weights else 0,
        round(gradient * elements / shards.gradients) if job.offloads_optimizer else 0,
        round(optimizer / shards.optimizer),
    )
