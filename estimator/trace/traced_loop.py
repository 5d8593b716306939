"""The rules of a job's training loop, as the worker's request states them."""

from typing import Any

from ..formula.layer_context import norm_kind
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..model.families import LIGER_PATCHES

_COMPILED = ("norm", "mlp")


def loop_request(job: Job, family: str) -> dict[str, Any]:
    """Return how the job's loop differs from the Trainer's, for the worker's request.

    Args:
        job: the job.
        family: the config's ``model_type``, on which it depends what Liger-Kernel patches.
    """
    resolved = resolve_job(job)
    framework, training = resolved.framework, job.training
    compiles = training.compile
    liger = resolved.fused_kernels & (LIGER_PATCHES.get(family, frozenset()) | {"cross-entropy"})
    norm = norm_kind(framework, resolved.versions)
    own = norm == "fused"
    fused = set(_COMPILED) if compiles else set(liger) | ({"norm"} if own else set())
    return {
        "fused": sorted(fused) if job.training.mode == "train" else [],
        "torch_norm": norm == "torch" and training.mode == "train",
        "final_norm_eager": compiles and framework.compiles_blocks and not own,
        "in_place": not (compiles or own),
        "fuses_query_norms": compiles or own,
        "repeats_keys": framework.repeats_keys or resolved.versions.repeats_keys,
        "compiles": compiles,
        "masks_attention": compiles and framework.trainer and job.model.attention == "sdpa",
        "masks_per_block": resolved.masks_blocks_apart,
        "own_loss": not framework.trainer,
        "chunks_at_once": framework.chunked_loss == "at-once",
        "compiles_loss": resolved.compiles_loss,
        "casts_logits": framework.casts_logits or resolved.versions.holds_predictions,
        "keeps_outputs": resolved.keeps_outputs,
        "keeps_between_steps": resolved.keeps_between_steps and not resolved.versions.runs_longest_first,
        "fp32_sums": resolved.versions.adds_head_gradient_in_fp32,
        "autocast": framework.trainer or resolved.widths.autocast,
        "root_unit": not resolved.units_around_blocks,
        "last_block_stays": resolved.last_block_stays,
        "checkpoints_parts": resolved.checkpoints_parts,
        "accumulates_unsharded": framework.accumulates_unsharded,
        "casts_norm_first": not resolved.versions.scales_norms_in_fp32,
        "expands_keys": resolved.versions.expands_keys,
        "stable_embedding": resolved.versions.normalizes_embedding,
        "recomputes_whole_blocks": resolved.versions.recomputes_whole_blocks,
        "experts": _own_experts(resolved, family),
    }


def _own_experts(job: ResolvedJob, family: str) -> str:
    """Return the form of the framework's own mixture of experts; empty: it has transformers', or it is not known."""
    if family not in job.framework.own_expert_families:
        return ""
    return job.framework.own_experts or job.versions.titan_experts
