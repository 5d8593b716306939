"""Copies of a checkpoint in host memory: of the whole model on the rank that writes it, or of each rank's shard.

safetensors turns all tensors of a file into bytes before it writes (``safetensors/torch.py``, ``_flatten``);
transformers 5 makes files of up to 50 GB, before of 5 GB (``save_pretrained``). ``torch.save`` copies one storage at a
time. accelerate offloads sharded state dicts too (``set_state_dict_type``).
"""

from ...job import ResolvedJob
from ...model import Stage
from ..model_states import model_states
from .saved_state import saved_weights, weights_to_save

_FILE_BYTES = 50 * 10**9
"""``max_shard_size`` of transformers 5."""


def saved_on_host(job: ResolvedJob, stages: tuple[Stage, ...]) -> tuple[int, bool]:
    """Return the bytes of host memory that saving takes in one rank, and whether only the first rank of all needs them.

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
        shard = max(weights // job.shards.weights, states // job.shards.optimizer)
        return shard, False
    if job.shards.weights == 1 or job.deepspeed:  # states are written as they are: one storage at a time
        return (weights if job.deepspeed else min(weights, _FILE_BYTES)), True
    return max(weights, states), True
