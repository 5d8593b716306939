"""The rules of a job's training loop, as the worker's request states them."""

from typing import Any

from ..job import Job, resolve_job
from ..job.rules import norm_kind
from ..model.families import LIGER_PATCHES

_COMPILED = ("norm", "mlp")
_TITAN_EXPERTS = ("deepseek_v2", "deepseek_v3", "llama4", "llama4_text", "qwen3_moe")
"""Families whose mixture of experts torchtitan builds (``models/deepseek_v3``, ``models/qwen3``, ``models/llama4``)."""
_TUNE_EXPERTS = ("llama4", "llama4_text")


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
        "repeats_keys": framework.repeats_keys
        or ("torchtitan" in framework.libraries and resolved.versions.repeats_keys),
        "compiles": compiles,
        "masks_attention": compiles and framework.trainer and job.model.attention == "sdpa",
        "masks_per_block": resolved.masks_blocks_apart,
        "own_loss": not framework.trainer,
        "chunks_at_once": framework.chunked_loss == "at-once",
        "compiles_loss": resolved.compiles_loss,
        "casts_logits": _casts_logits(resolved),
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
        "recomputes_whole_blocks": "torchtitan" in framework.libraries and resolved.versions.recomputes_whole_blocks,
        "experts": _own_experts(resolved, family),
    }


def _own_experts(job: Any, family: str) -> str:
    """Return the form of the framework's own mixture of experts; empty: it has transformers', or it is not known."""
    if "torchtitan" in job.framework.libraries and family in _TITAN_EXPERTS:
        return str(job.versions.titan_experts)
    return "torchtune" if "torchtune" in job.framework.libraries and family in _TUNE_EXPERTS else ""


def _casts_logits(job: Any) -> bool:
    return job.framework.casts_logits or (job.versions.holds_predictions and "torchtitan" in job.framework.libraries)
