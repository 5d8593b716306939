"""Bytes that a rank's GPU holds of other ranks' shards while a checkpoint is saved.

Sources, and what was counted on them with torch's profiler on a fake process group (torch 2.13):
- FSDP2, full: ``get_model_state_dict`` gathers one parameter after the other in the type of its shard, and with
  ``cpu_offload`` the first rank copies it to the host at once (``_gather_state_dict``): one whole parameter, and under
  tensor parallelism its part of one rank besides. Without, all stay on the GPU of every rank. Sharded: nothing.
- FSDP1, full: ``state_dict`` unshards a unit in full precision and moves it to the host before the next one
  (``_unshard_fsdp_state_params``, ``FlatParamHandle.to_cpu``); without offload the root unit stays while all others are
  cloned. Sharded state dicts unshard too, beside the root, and each rank keeps copies of its shards.
- Optimizer states are gathered like that, one state at a time (``get_optimizer_state_dict``, ``optim_state_dict``).
- ZeRO 3: ``_zero3_consolidated_16bit_state_dict`` gathers the parameters of one module. ZeRO 1 and 2, DDP and one GPU
  hold whole weights already, which are copied to the host tensor by tensor.
"""

from ...job import ResolvedJob
from ...model import Stage
from .saved_state import SavedState, saved_optimizer, saved_weights, weights_to_save


def gathered_bytes(job: ResolvedJob, stage: Stage) -> int:
    """Return the bytes that a rank of this stage gathers at most while the job's checkpoint is saved."""
    saving = job.job.saving
    if saving is None or job.shards.weights == 1:
        return 0
    what = weights_to_save(job)
    weights = saved_weights(job, stage)
    found = [_of_weights(job, weights, what=what, to_cpu=saving.to_cpu)]
    if saving.optimizer and what != "none" and not job.deepspeed:
        states = saved_optimizer(job, stage)
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
