"""Bytes by which memory differs if a quantized model is prepared for training otherwise than is assumed."""

from ...job import ResolvedJob
from ...model import Architecture


def preparation_doubt(job: ResolvedJob, arch: Architecture) -> tuple[int, int]:
    """Return how much less, and how much more, memory the other preparation takes; zeros where it is known.

    Preparing a model makes its residual stream fp32, of which checkpointing keeps one tensor per block, and what its
    quantized MLPs return; peft's function casts embedding and head too.

    Args:
        job: the job.
        arch: the model's architecture.
    """
    if not job.adapters.assumed:
        return 0, 0
    width = max(arch.mlp_size, arch.experts_per_token * arch.expert_mlp_size)
    per_block = arch.hidden if job.recomputes else (3 if arch.gated else 2) * width
    blocks = 2 * per_block * arch.layers * job.local_tokens // (job.parallel.pipeline * job.parallel.tensor)
    if job.adapters.prepared != "none":
        return blocks, 0
    return 0, blocks + 2 * (1 if arch.tied else 2) * arch.vocab * arch.hidden
