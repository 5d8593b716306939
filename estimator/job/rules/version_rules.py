"""Memory behaviour that depends on library versions and their settings: the job file's ``[software]`` table.

A version that the job does not state counts as the latest. Each rule names its source.
"""

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from .frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from ..job import Job
    from ..settings import Software

_TORCHTITAN = (
    *(((2, 4), 20240612, "0.0.1"), ((2, 8), 20250617, "0.0.2"), ((2, 8), 20250805, "0.1"), ((2, 9), 20251017, "0.1.1")),
    *(((2, 10), 20251226, "0.2"), ((2, 11), 20260406, "0.2.2")),
)
"""torchtitan's versions by the torch before which, and the nightly before which, there was no newer one."""

_MEGATRON_FSDP = (((2, 11), 20260226, "0.2.3"), ((2, 12), 20260622, "0.4"))
"""megatron-fsdp's likewise. NeMo AutoModel locks 0.2.3 in its releases until 0.5."""


class VersionRules(Struct, frozen=True, kw_only=True, eq=False):
    """Behaviour of the job's library versions, as flags.

    What torchtitan does is False or empty for jobs of other frameworks, and so is ``runs_longest_first`` of LitGPT.
    """

    keeps_quantized_inputs: bool
    """4-bit linear layers keep their input until their graph is freed, though the frozen weight does not need it.

    ``MatMul4Bit`` held it outside of autograd's saved tensors, so that backward did not free it (bitsandbytes before
    0.43.2, pull request 1270).
    """
    zeroes_gradients: bool
    """Gradients are zeroed in place between steps, not freed (``zero_grad`` before torch 2.0)."""
    saves_softmax_inputs: bool
    """Softmax and log-softmax save their input beside their output (torch before 1.11, pytorch/pytorch#64000)."""
    loads_kernels_eagerly: bool
    """All kernels are loaded into the CUDA context at once.

    CUDA loads modules lazily since 11.7, and torch asks for it since 1.13 (pytorch/pytorch#86509).
    """
    loads_whole_libraries: bool
    """Neither CUDA nor its libraries can load kernels lazily."""
    copies_shifted_logits: bool
    """The causal loss copies the fp32 logits without the last token (transformers before 4.49)."""
    casts_logits_in_model: bool
    """The model returns fp32 logits, so that the 16-bit ones are freed before the loss (transformers before 4.46)."""
    checkpoints_with_gradient: bool
    """Gradient checkpointing makes the embedding's output need a gradient, trained or not (transformers since 5.0)."""
    separates_experts: bool
    """Experts are linear layers of their own, not two tensors (transformers before 5.0).

    Each is called with its own tokens, and bitsandbytes quantizes linear layers only.
    """
    caches_latents: bool
    """Latent attention's cache holds the compressed latents, not every head's keys and values (transformers since 5.15:
    ``expand_kv`` in models/deepseek_v3/modeling_deepseek_v3.py comes after the cache; before 5.15 before it)."""
    scores_prompts: bool
    """``generate`` computes the logits of every token of a prompt, not of the last one (transformers before 4.45)."""
    checkpoints_units: bool
    """Gradient checkpointing calls the blocks, which may be FSDP's units, and reentrantly (transformers before 4.52).

    Since then a block checkpoints itself, inside of its unit (``modeling_layers.GradientCheckpointingLayer``).
    """
    scales_norms_in_fp32: bool
    """LitGPT's RMSNorm multiplies by its weight before it casts back to 16 bits (since 0.4.6)."""
    runs_longest_first: bool
    """LitGPT's scripts ran the longest sample in the first micro-batch only (before 0.2)."""
    expands_keys: bool
    """LitGPT expanded keys and values before it rotated them; values of one head needed no copy (before 0.5.5)."""
    normalizes_embedding: bool
    """LitGPT puts bitsandbytes' ``StableEmbedding`` into a quantized model (since 0.5, pull request 1770)."""
    leaves_loss_to_eager: bool
    """``compile`` covers torchtitan's blocks only, not its loss (before 0.1; pull requests 755 and 1033)."""
    gathers_log_softmax: bool
    """TRL's log-probabilities are gathered from a whole log-softmax (before 0.15)."""
    tiles_head: bool
    """TRL runs the head in tiles and makes no logits (since 1.15); before, in chunks that are recomputed."""
    counts_cuda_graphs: bool
    """vLLM's share of the GPU includes its CUDA graphs (since 0.20, VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)."""
    counts_nccl: bool
    """vLLM's share includes NCCL's buffers (before 0.11: its first snapshot was taken before they were allocated)."""
    counts_context: bool
    """vLLM's share includes everything that is in use on the GPU, other processes too (its V1 engine before 0.9)."""
    knows_vllm: bool
    """vLLM is one of the versions whose sources these rules were read from: 0.6 to 0.33."""
    knows_sglang: bool
    """SGLang is one of the versions whose sources were read: 0.4 to 0.5."""
    holds_predictions: bool
    """torchtitan's model casts its logits to fp32, and the loop's variable ``pred`` outlives the step.

    Until 2024-06-12 (pull request 391); 0.0.1 stands for that.
    """
    repeats_keys: bool
    """torchtitan copies keys and values to all query heads (before 0.2.2; pull request 2259)."""
    adds_head_gradient_in_fp32: bool
    """Liger-Kernel's fused linear loss casts each chunk's gradient of the head to fp32 (since 0.6.2, 2025-08).

    It is assumed to be of the time of the stated torch or transformers.
    """
    fuses_norms: bool
    """torch's RMSNorm is one kernel on CUDA (since torch 2.9).

    Before, it was a chain of operations that keeps its input and the normalized input in fp32 (``rms_norm_composite``
    in ATen/native/layer_norm.cpp).
    """
    chains_norms: bool
    """torchtitan's RMSNorm is Python's chain of operations, as transformers' (before 0.1; pull request 985)."""
    chains_fp32_norms: bool
    """So is torchtune's (before 0.5, which is of the time of torch 2.6)."""
    reduces_in_own_pool: bool
    """FSDP2 allocates the input of a reduce-scatter on the stream that reduces (torch before 2.5).

    Its pool is no other tensor's (``foreach_reduce`` in torch 2.3 and 2.4, _composable/fsdp/_fsdp_collectives.py).
    """
    titan_experts: Literal["", "scatter", "matmul", "dispatch"]
    """The form of torchtitan's mixture of experts (``models/moe``); empty: one that is not known.

    Outputs are added up by ``scatter_add``, by a product with the scores (0.2.1 to 0.2.2, pull request 1974), or by
    dispatchers, without padding (since April 2026, pull requests 2774, 2775 and 2842). Before August 2025 (pull request
    1534), which 0.1.1 stands for, every model had its own.
    """
    recomputes_whole_blocks: bool
    """torchtitan recomputes checkpointed blocks to their end (since August 2025, pull request 1580, ``early_stop``)."""
    gathers_with_root: bool
    """torchtitan leaves embedding and head to FSDP's root unit (before 0.2; models/llama3/infra/parallelize.py)."""
    frees_outside_units: bool
    """Megatron-FSDP frees weights outside of its units after each pass, and gathers units ahead when they run.

    Before 0.5 (``AllGatherPipeline.reset``, ``_root_pre_backward``): the first units are gathered while the loss runs.
    """
    lazy_states: bool
    """Megatron-FSDP's optimizer has no states before the first step (``fully_shard_optimizer`` before 0.4)."""
    reduces_whole_modules: bool
    """Megatron-FSDP copies the gradients of a module when all of them exist (``_post_backward`` before 0.3)."""


def older(version: str | None, *than: int) -> bool:
    """Return True if a stated version precedes another; pre-releases count as their release.

    Args:
        version: by its usual name; None: not stated, so the latest.
        than: the other version's first numbers.
    """
    if version is None:
        return False
    from packaging.version import InvalidVersion, Version  # 4 ms, for jobs that state versions only

    try:
        return Version(version).release[: len(than)] < than
    except InvalidVersion:
        return False


def _of_its_time(
    stated: str | None, torch: str | None, releases: tuple[tuple[tuple[int, int], int, str], ...]
) -> str | None:
    """Return a library's version: as stated, or the one of the time of the stated torch."""
    if stated is not None or torch is None:
        return stated
    nightly = re.search(r"dev(20\d{6})", torch)
    for before, date, version in releases:
        if int(nightly[1]) < date if nightly else older(torch, *before):
            return version
    return None


def version_rules(job: "Job") -> VersionRules:
    """Return the behaviour of the versions that a job states."""
    from ..quantization import is_four_bit  # which imports the settings, whose types are made of these tables

    framework = FRAMEWORKS[job.training.framework]
    return _rules(job.software, is_four_bit(job.lora), framework.torchtitan_models, framework.litgpt_models)


def _titan_experts(torchtitan: str | None) -> Literal["", "scatter", "matmul", "dispatch"]:
    if older(torchtitan, 0, 1, 1):
        return ""
    if older(torchtitan, 0, 2, 1):
        return "scatter"
    return "matmul" if older(torchtitan, 0, 3) else "dispatch"


@lru_cache(maxsize=64)  # searches ask for the same versions thousands of times
def _rules(software: "Software", four_bit: bool, titan: bool, litgpt: bool) -> VersionRules:
    whole = older(software.torch, 1, 13) or older(software.cuda, 11, 7)
    loading, torchtitan = software.module_loading, _of_its_time(software.torchtitan, software.torch, _TORCHTITAN)
    megatron = _of_its_time(software.megatron_fsdp, software.torch, _MEGATRON_FSDP)
    return VersionRules(
        keeps_quantized_inputs=four_bit and older(software.bitsandbytes, 0, 43, 2),
        zeroes_gradients=older(software.torch, 2, 0),
        saves_softmax_inputs=older(software.torch, 1, 11),
        loads_kernels_eagerly=whole if loading is None else loading == "eager",
        loads_whole_libraries=whole,
        copies_shifted_logits=older(software.transformers, 4, 49),
        casts_logits_in_model=older(software.transformers, 4, 46),
        checkpoints_with_gradient=not older(software.transformers, 5, 0),
        separates_experts=older(software.transformers, 5),
        caches_latents=not older(software.transformers, 5, 15),
        scores_prompts=older(software.transformers, 4, 45),
        checkpoints_units=older(software.transformers, 4, 52),
        scales_norms_in_fp32=not older(software.litgpt, 0, 4, 6),
        runs_longest_first=litgpt and older(software.litgpt, 0, 2),
        expands_keys=older(software.litgpt, 0, 5, 5),
        normalizes_embedding=not older(software.litgpt, 0, 5),
        leaves_loss_to_eager=titan and older(torchtitan, 0, 1),
        gathers_log_softmax=older(software.trl, 0, 15),
        tiles_head=not older(software.trl, 1, 15),
        counts_cuda_graphs=not older(software.vllm, 0, 20),
        counts_nccl=older(software.vllm, 0, 11),
        counts_context=older(software.vllm, 0, 9),
        knows_vllm=older(software.vllm, 0, 34) and not older(software.vllm, 0, 6),
        knows_sglang=older(software.sglang, 0, 6) and not older(software.sglang, 0, 4),
        holds_predictions=titan and older(torchtitan, 0, 0, 2),
        repeats_keys=titan and older(torchtitan, 0, 2, 2),
        adds_head_gradient_in_fp32=not (older(software.torch, 2, 8) or older(software.transformers, 4, 55)),
        fuses_norms=not older(software.torch, 2, 9),
        chains_norms=titan and older(torchtitan, 0, 1),
        chains_fp32_norms=older(software.torch, 2, 6),
        reduces_in_own_pool=older(software.torch, 2, 5) or (software.torch is None and older(torchtitan, 0, 0, 2)),
        recomputes_whole_blocks=titan and not older(torchtitan, 0, 1, 1),
        titan_experts=_titan_experts(torchtitan) if titan else "",
        gathers_with_root=titan and older(torchtitan, 0, 2),
        frees_outside_units=older(megatron, 0, 5),
        lazy_states=older(megatron, 0, 4),
        reduces_whole_modules=older(megatron, 0, 3),
    )


def steps_take_same_memory(job: "Job", *, torch: str, transformers: str, latents: bool = False) -> bool:
    """Return True if a step traced with these versions takes the memory of the versions that the job states.

    The worker takes older versions' loss, experts, checkpointing and gradients on newer ones; not the other way round.

    Args:
        job: the job.
        torch: the version that traces.
        transformers: likewise.
        latents: the model has latent attention, whose cache no worker fills as older versions did.
    """
    stated = job.software
    traced = replace(job, software=replace(stated, torch=torch, transformers=transformers))
    asked, found = version_rules(job), version_rules(traced)
    if job.model.attention == "eager" and asked.saves_softmax_inputs != found.saves_softmax_inputs:
        return False  # attention's softmax kept its input, which no newer torch does
    caches = stated.transformers and latents and job.training.mode == "inference"
    if caches and asked.caches_latents != found.caches_latents:
        return False
    if stated.transformers and job.training.mode == "inference" and asked.scores_prompts != found.scores_prompts:
        return False
    pairs = [(asked.zeroes_gradients, found.zeroes_gradients)] if stated.torch else []
    if stated.transformers:
        pairs += [
            (asked.copies_shifted_logits, found.copies_shifted_logits),
            (asked.casts_logits_in_model, found.casts_logits_in_model),
            (not asked.checkpoints_with_gradient, not found.checkpoints_with_gradient),
        ]
    return all(old or not installed for old, installed in pairs)
