"""Host memory of a job: what its processes take of the machine's RAM while they load, and while they train.

Rules, and where they come from:
- ``from_pretrained`` maps safetensors files: weights loaded in the type they are stored in stay pages of the file,
  one copy for all ranks of a machine, which the system can drop; any other type is a private copy in each rank (seen
  in /proc/self/smaps_rollup, transformers 5.23). Under ZeRO 3 each rank keeps its partition alone (``zero.Init``),
  under FSDP with ``cpu_ram_efficient_loading`` only rank 0 loads (accelerate, ``FullyShardedDataParallelPlugin``).
- ZeRO-Offload keeps an fp32 copy, two moments and an fp32 gradient of each partition on the host: 16 bytes per
  parameter, 18 with the weights (deepspeed/runtime/zero/stage3.py, ``estimate_zero3_model_states_mem_needs``).
- FSDP's ``CPUOffloadPolicy`` keeps the shards of weights, gradients and states in their own types, pinned.
- torch rounds pinned blocks up to powers of two (ATen/core/CachingHostAllocator.h); DeepSpeed counts half as much
  again for buffers (``additional_buffer_factor=1.5``): the upper bound here.
"""

from ..budget.host_need import HostNeed
from ..common.sizes import MIB
from ..job.dtype_widths import Widths, read_widths, uses_zero
from ..job.frameworks import FRAMEWORKS
from ..job.job import Job
from ..job.job_file import with_changes
from ..job.optimizers import EIGHT_BIT_WIDTH, OPTIMIZERS
from ..model.architecture import Architecture
from ..model.parameters import Inventory
from ..model.rank_share import Stage, stages
from .activations.saved_activations import saved_activations
from .model_states import shards, state_bytes, weight_width

_PROCESS_BYTES = 430 * MIB
"""Python with torch and transformers imported: resident size, torch 2.13, transformers 5.23."""
_CUDA_BYTES = 900 * MIB
"""What CUDA and its libraries add: a process with one small module on the GPU took 1.3 GB (pytorch/pytorch#31767)."""
ASSUMPTION = (
    "Host memory: a process takes 1.3 GiB before any tensor, and checkpoints are safetensors files; data loader "
    "workers and the data itself are not counted."
)


def host_need(job: Job, arch: Architecture, inventory: Inventory) -> HostNeed:
    """What the fullest rank of a job takes of its machine's RAM.

    Raises:
        InputError: the job is spread over more than the model has, or its adapters fit nothing.
    """
    return host_need_of(job, arch, inventory, stages(job, inventory), read_widths(job))


def host_need_of(
    job: Job, arch: Architecture, inventory: Inventory, parts: tuple[Stage, ...], widths: Widths
) -> HostNeed:
    """The same where its pipeline stages and widths are known already."""
    loaded, mapped = _loading(job, arch, inventory, parts, widths)
    weights, gradients, optimizer = _offloaded(job, parts, widths)
    offloads = job.training.activation_offload and job.training.mode == "train"
    return HostNeed(
        process=_PROCESS_BYTES + _CUDA_BYTES,
        loaded=loaded,
        loads_once=job.parallel.load_on_rank_zero and job.parallel.strategy in ("fsdp1", "fsdp2"),
        mapped=mapped,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=max(_activations(job, arch, stage, widths) for stage in parts) if offloads else 0,
    )


def _loading(
    job: Job, arch: Architecture, inventory: Inventory, parts: tuple[Stage, ...], widths: Widths
) -> tuple[int, int]:
    """(private copy of one rank, mapped pages of the machine)."""
    if job.training.framework in ("torchtitan", "megatron"):
        return 0, 0  # made on the GPU (to_empty), and filled from checkpoints shard by shard
    stored = 4 if arch.dtype == "float32" else 2
    mapped = stored * inventory.parameters
    half = {"fp16": "float16", "bf16": "bfloat16"}.get(job.training.precision)
    same = widths.weight == stored and (half is None or arch.dtype in (None, half))
    quantized = job.lora is not None and job.lora.quantization != "none"
    if same or quantized or job.training.framework != "transformers" or job.parallel.strategy == "zero3":
        return 0, mapped
    return max(stage.base_elements for stage in parts) * widths.weight, mapped


def _offloaded(job: Job, parts: tuple[Stage, ...], widths: Widths) -> tuple[int, int, int]:
    """Weights, gradients and optimizer state that a rank keeps on the host, each of the fullest stage."""
    offload, paged = job.parallel.cpu_offload, OPTIMIZERS[job.training.optimizer].paged
    if job.training.mode != "train" or (offload == "none" and not paged):
        return 0, 0, 0
    found = [_offloaded_of(job, stage, widths) for stage in parts]
    return max(each[0] for each in found), max(each[1] for each in found), max(each[2] for each in found)


def _offloaded_of(job: Job, stage: Stage, widths: Widths) -> tuple[int, int, int]:
    """(weights, gradients, optimizer state)."""
    offload, split = job.parallel.cpu_offload, shards(job)
    trained = [held for held in stage.parameters if held.trainable]
    elements, rules = sum(held.elements for held in trained), OPTIMIZERS[job.training.optimizer]
    fp32_embeddings = FRAMEWORKS[job.training.framework].fp32_embedding_states
    if rules.paged:  # managed memory, which the driver moves to the host
        optimizer = rules.states * (EIGHT_BIT_WIDTH if rules.eight_bit else widths.state) * elements
    else:
        optimizer = sum(state_bytes(rules, held, widths, fp32_embeddings=fp32_embeddings) for held in trained)
    gradient = 4 if uses_zero(job) else widths.gradient if offload == "all" else 0
    weights = sum(held.elements * weight_width(held, widths) for held in stage.parameters) if offload == "all" else 0
    return (
        round(weights / split.weights),
        round(gradient * elements / split.gradients) if offload != "none" else 0,
        round(optimizer / split.optimizer),
    )


def _activations(job: Job, arch: Architecture, stage: Stage, widths: Widths) -> int:
    """What would be saved on the GPU, were it not offloaded."""
    kept = with_changes(job, {"training.activation_offload": False})
    return saved_activations(kept, arch, stage, widths).all_layers_bytes * stage.in_flight
