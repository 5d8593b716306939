"""Bytes by which memory differs if a quantized model is prepared for training otherwise than is assumed."""

from ...job import ResolvedJob
from ...model import Architecture


def preparation_doubt(job: ResolvedJob, arch: Architecture) -> tuple[int, int]:
    """Return how much less, and how much more, memory the other preparation takes; zeros where it is known.

    Preparing a model makes its residual stream fp32, of which checkpointing keeps one tensor per block, and what its
    quantized MLPs return, which checkpointing has of one block at a time; peft's function casts embedding and head too.

    Args:
        job: the job.
        arch: the model's architecture.
    """
    if not job.adapters.assumed:
        return 0, 0
    width = max(arch.mlp_size, arch.experts_per_token * arch.expert_mlp_size)
    mlp = (3 if arch.gated else 2) * width
    per_token = arch.hidden * arch.layers + mlp if job.recomputes else mlp * arch.layers
    blocks = 2 * per_token * job.local_tokens // (job.parallel.pipeline * job.parallel.tensor)
    if job.adapters.prepared != "none":
        return blocks, 0
    return 0, blocks + 2 * (1 if arch.tied else 2) * arch.vocab * arch.hidden
