"""The sources of doubt of an estimate: what its figures rest on that was not checked against the real thing."""

from typing import Literal

from msgspec import Struct

from ..budget import Components
from ..job.resolved_job import ResolvedJob
from ..model.architecture import Architecture

StepDoubt = Literal["checked", "adapters", "framework", "compiled", "shape", "recurrent"]
"""Reason for the range of a step's tensors.

``checked``: they were compared with what autograd saves, as those of transformers and LitGPT were; ``adapters``:
likewise, but what adapted and quantized layers save depends on dtypes and dropout, which few jobs state; ``framework``:
they were read in the sources of another framework; ``compiled``: torch.compile decides; ``shape``: the family has no
rules, and is counted as a decoder of its shape; ``recurrent``: blocks are no attention, which no rule describes, and
which a trace runs without their fused kernels.
"""
AllocatorDoubt = Literal["plain", "fsdp2", "fsdp1", "other"]
"""Whose streams the allocator serves: one only (``plain``), those of FSDP, or of another library."""


class Doubts(Struct, frozen=True):
    """The sources of doubt of one estimate."""

    step: StepDoubt
    allocator: AllocatorDoubt


def doubts_of(job: ResolvedJob, *, known_family: bool = True, recurrent: bool = False) -> Doubts:
    """Return the sources of doubt of a job.

    Args:
        job: the job.
        known_family: rules describe the blocks of the model's family, or its own code was traced.
        recurrent: blocks of the model are recurrent.
    """
    return Doubts(
        step="recurrent" if recurrent else _step_doubt(job) if known_family else "shape",
        allocator=_allocator_doubt(job),
    )


def _step_doubt(job: ResolvedJob) -> StepDoubt:
    if job.training.compile:
        return "compiled"
    if not job.framework.checked_activations:
        return "framework"
    return "checked" if job.lora is None else "adapters"


def _allocator_doubt(job: ResolvedJob) -> AllocatorDoubt:
    if job.parallel.world_size == 1 or job.strategy.buckets:
        return "plain"
    if job.strategy.fsdp2:
        return "fsdp2"
    return "fsdp1" if job.strategy.flat_parameters else "other"


def longest_first_doubt(job: ResolvedJob, peak: Components) -> int:
    """Return how much less memory a run takes whose first micro-batch alone has the stated length.

    LitGPT's scripts before 0.2 ran the longest sample in the first micro-batch of a run (``finetune/lora.py``), when no
    gradients had accumulated; later ones had gradients, and shorter sequences of unknown lengths.

    Args:
        job: the job.
        peak: its highest moment.
    """
    if not (job.framework.keeps_fp32_logits and job.versions.runs_longest_first):
        return 0
    if job.training.gradient_accumulation == 1:
        return 0
    return min(peak.gradients, peak.activations + peak.logits)


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


def kept_cache_bytes(job: ResolvedJob, arch: Architecture) -> int:
    """Return the keys and values among a model's outputs, if a loop keeps these; ``use_cache`` may be off.

    transformers' own checkpointing turns it off, a wrapper's does not; without checkpointing autograd has saved them.
    """
    if not (job.training.keep_outputs and job.framework.transformers_models and job.recomputes):
        return 0
    split = job.parallel.pipeline * job.parallel.tensor
    return job.widths.compute * (arch.key_size + arch.value_size) * arch.layers * job.local_tokens // split
