"""Memory of saving a checkpoint: state dicts that ranks gather on the GPU, and copies of them in host memory."""

from collections.abc import Iterator
from math import prod

from msgspec import Struct

from ..budget import Budget
from ..job.resolved_job import ResolvedJob, resolve_job
from ..model.rank_share import LocalParameters, Stage
from .buffers import weight_width
from .model_states import model_states


class SavedState(Struct, frozen=True, kw_only=True):
    """Bytes of a state dict that ranks put together, before and while they do."""

    whole: int
    """The state dict of all ranks of a pipeline stage."""
    largest: int
    """Its largest tensor."""
    around: int
    """Its part outside of the blocks, which is FSDP1's root unit."""
    block: int
    """Its part of one block, FSDP1's other units."""


def weights_to_save(job: ResolvedJob) -> str:
    """Return what of the weights is saved: by default the adapters of LoRA, else the full model."""
    saving = job.job.saving
    if saving is None:
        return "none"
    return saving.weights or ("adapters" if job.lora is not None else "full")


def saved_weights(job: ResolvedJob, stage: Stage) -> SavedState:
    """Return the weights of a stage that are saved, in the types in which they are stored."""
    only_adapters = weights_to_save(job) == "adapters"
    kept = [held for held in stage.parameters if held.trainable or not only_adapters]
    return _state((held, weight_width(held, job.widths)) for held in kept)


def _state(parts: Iterator[tuple[LocalParameters, float]]) -> SavedState:
    whole = around = blocks = largest = 0.0
    for held, width in parts:
        size = prod(held.group.shape) * held.tensors * width  # over all tensor- and expert-parallel ranks
        whole += size
        largest = max(largest, prod(held.group.shape) * width)
        if held.group.layered:
            blocks += size / max(1, held.tensors)
        else:
            around += size
    return SavedState(whole=round(whole), largest=round(largest), around=round(around), block=round(blocks))


def gathered_bytes(job: ResolvedJob, stage: Stage) -> int:
    """Return the bytes that a rank of this stage gathers at most while the job's checkpoint is saved.

    Sources, and what was counted on them with torch's profiler on a fake process group (torch 2.13):
    - FSDP2, full: ``get_model_state_dict`` gathers one parameter after the other in the type of its shard, and with
      ``cpu_offload`` the first rank copies it to the host at once (``_gather_state_dict``): one whole parameter, and
      under tensor parallelism its part of one rank besides. Without, all stay on the GPU of every rank. Sharded:
      nothing.
    - FSDP1, full: ``state_dict`` unshards a unit in full precision and moves it to the host before the next one
      (``_unshard_fsdp_state_params``, ``FlatParamHandle.to_cpu``); without offload the root unit stays while all
      others are cloned. Sharded state dicts unshard too, beside the root, and each rank keeps copies of its shards.
    - Optimizer states are gathered like that, one state at a time (``get_optimizer_state_dict``,
      ``optim_state_dict``).
    - ZeRO 3: ``_zero3_consolidated_16bit_state_dict`` gathers the parameters of one module. ZeRO 1 and 2, DDP and one
      GPU hold whole weights already, which are copied to the host tensor by tensor.
    """
    saving = job.job.saving
    if saving is None or job.shards.weights == 1:
        return 0
    what = weights_to_save(job)
    found = [_of_weights(job, saved_weights(job, stage), what=what, to_cpu=saving.to_cpu)]
    if saving.optimizer and what != "none" and not job.deepspeed:
        # one state of everything that trains: they are gathered one after the other
        widths, trained = job.widths, (held for held in stage.parameters if held.trainable)
        states = _state((held, widths.adapter if held.adapter else widths.state) for held in trained)
        found.append(_of_weights(job, states, what=what, to_cpu=saving.to_cpu))
    return max(found)


def _of_weights(job: ResolvedJob, state: SavedState, *, what: str, to_cpu: bool) -> int:
    if what == "none":
        return 0
    if job.strategy.flat_parameters and not job.deepspeed:
        return _by_unit(job, state, sharded=what == "sharded", to_cpu=to_cpu)
    if what == "sharded":
        return 0
    ranks = job.parallel.tensor
    at_once = state.largest + (state.largest // ranks if ranks > 1 else 0)
    return at_once if to_cpu or job.deepspeed else state.whole + at_once - state.largest


def _by_unit(job: ResolvedJob, state: SavedState, *, sharded: bool, to_cpu: bool) -> int:
    """Return the bytes of FSDP1's state dict: units of the blocks and the root, or one of the whole model."""
    one_unit = job.parallel.fsdp_units == "model"
    root, block = (state.whole, 0) if one_unit else (state.around, state.block)
    if sharded:
        return root + block + state.whole // job.shards.weights
    return max(root, block) if to_cpu else root + max(state.whole, state.whole - root + block)


_FILE_BYTES = 50 * 10**9
"""``max_shard_size`` of transformers 5."""


def saved_on_host(job: ResolvedJob, stages: tuple[Stage, ...]) -> tuple[int, bool]:
    """Return the bytes of host memory that saving takes in one rank, and whether only the first rank of all needs them.

    safetensors turns all tensors of a file into bytes before it writes (``safetensors/torch.py``, ``_flatten``);
    transformers 5 makes files of up to 50 GB, before of 5 GB (``save_pretrained``). ``torch.save`` copies one storage
    at a time. accelerate offloads sharded state dicts too (``set_state_dict_type``).

    Args:
        job: the job.
        stages: every pipeline stage, the alike once.
    """
    saving, what = job.job.saving, weights_to_save(job)
    if saving is None or what == "none":
        return 0, True
    weights = max(saved_weights(job, stage).whole for stage in stages)
    states = max(model_states(job, stage).saved for stage in stages) if saving.optimizer else 0
    if what == "sharded":
        return max(weights // job.shards.weights, states // job.shards.optimizer), False
    if job.shards.weights == 1 or job.deepspeed:  # states are written as they are: one storage at a time
        return (weights if job.deepspeed else min(weights, _FILE_BYTES)), True
    return max(weights, states), True


def checkpoint_bytes(budget: Budget) -> int:
    """Return the bytes of one checkpoint of all ranks together: weights and optimizer states; 0 for inference.

    transformers' Trainer writes the weights in their own dtype (with LoRA the adapters alone) and the optimizer states
    as they are, DeepSpeed's fp32 copy of the weights among them.
    """
    job, trained = resolve_job(budget.job), budget.model.trainable_parameters
    if not job.trains:
        return 0
    widths = job.widths
    saved = trained * widths.adapter if job.lora else budget.model.parameters * widths.weight
    return saved + (budget.saved_state_bytes or 0)
