"""Memory behaviour that depends on library versions and their settings: the job file's ``[software]`` table.

A version that the job does not state counts as the latest. Each rule names its source.
"""

import re
from functools import cached_property, lru_cache

from msgspec.structs import replace

from ...common.library_versions import older
from ..job import Job
from ..settings import Software
from .dtype_widths import is_four_bit
from .frameworks import FRAMEWORKS

_TORCHTITAN = (
    *(((2, 4), 20240612, "0.0.1"), ((2, 8), 20250617, "0.0.2"), ((2, 8), 20250805, "0.1"), ((2, 9), 20251017, "0.1.1")),
    *(((2, 10), 20251226, "0.2"), ((2, 11), 20260406, "0.2.2")),
)
"""torchtitan's versions by the torch before which, and the nightly before which, there was no newer one."""

_MEGATRON_FSDP = (((2, 11), 20260226, "0.2.3"), ((2, 12), 20260622, "0.4"))
"""megatron-fsdp's likewise. NeMo AutoModel locks 0.2.3 in its releases until 0.5."""


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


def _before(library: str, *version: int) -> "cached_property[bool]":
    """Return the rule that holds for versions of a library before one."""
    return cached_property(lambda rules: rules.older(library, *version))


def _since(library: str, *version: int) -> "cached_property[bool]":
    """Return the rule that holds for versions of a library from one on."""
    return cached_property(lambda rules: not rules.older(library, *version))


class VersionRules:
    """Behaviour of the job's library versions, as flags; a version that is not stated is the latest.

    What torchtitan does is False or empty for jobs of other frameworks, and so is ``runs_longest_first`` of LitGPT.

    Args:
        software: the versions that a job states.
        four_bit: its frozen weights have 4 bits.
        titan: torchtitan's models and training loop.
        litgpt: LitGPT's.
    """

    def __init__(self, software: Software, *, four_bit: bool, titan: bool, litgpt: bool) -> None:
        self._software, self._four_bit, self._litgpt = software, four_bit, litgpt
        self._torchtitan = _of_its_time(software.torchtitan, software.torch, _TORCHTITAN)
        self._of_their_time = {
            "torchtitan": self._torchtitan if titan else None,
            "megatron_fsdp": _of_its_time(software.megatron_fsdp, software.torch, _MEGATRON_FSDP),
        }

    def older(self, library: str, *than: int) -> bool:
        """Return True if the job's version of a library precedes one."""
        known = self._of_their_time
        return older(known[library] if library in known else getattr(self._software, library), *than)

    @cached_property
    def keeps_quantized_inputs(self) -> bool:
        """4-bit linear layers keep their input until their graph is freed, though the frozen weight does not need it.

        ``MatMul4Bit`` held it outside of autograd's saved tensors, so that backward did not free it (bitsandbytes
        before 0.43.2, pull request 1270).
        """
        return self._four_bit and self.older("bitsandbytes", 0, 43, 2)

    zeroes_gradients = _before("torch", 2, 0)
    """Gradients are zeroed in place between steps, not freed (``zero_grad`` before torch 2.0)."""
    saves_softmax_inputs = _before("torch", 1, 11)
    """Softmax and log-softmax save their input beside their output (torch before 1.11, pytorch/pytorch#64000)."""

    @cached_property
    def loads_kernels_eagerly(self) -> bool:
        """All kernels are loaded into the CUDA context at once.

        CUDA loads modules lazily since 11.7, and torch asks for it since 1.13 (pytorch/pytorch#86509).
        """
        loading = self._software.module_loading
        return self.loads_whole_libraries if loading is None else loading == "eager"

    @cached_property
    def loads_whole_libraries(self) -> bool:
        """Neither CUDA nor its libraries can load kernels lazily."""
        return self.older("torch", 1, 13) or self.older("cuda", 11, 7)

    copies_shifted_logits = _before("transformers", 4, 49)
    """The causal loss copies the fp32 logits without the last token (transformers before 4.49)."""
    casts_logits_in_model = _before("transformers", 4, 46)
    """The model returns fp32 logits, so that the 16-bit ones are freed before the loss (transformers before 4.46)."""
    trainer_fuses_loss = _since("transformers", 4, 45)
    """TrainingArguments take ``use_liger_kernel`` (transformers since 4.45, huggingface/transformers#32860)."""
    checkpoints_with_gradient = _since("transformers", 5, 0)
    """Gradient checkpointing makes the embedding's output need a gradient, trained or not (transformers since 5.0)."""
    keeps_quantized_on_gpu = _since("transformers", 5, 0)
    """Each rank keeps the quantized model whole on its GPU until FSDP shards it (transformers since 5.0).

    Before, a weight went to the host as soon as it was quantized (``_load_state_dict_into_meta_model``, 4.57).
    """
    separates_experts = _before("transformers", 5)
    """Experts are linear layers of their own, not two tensors (transformers before 5.0).

    Each is called with its own tokens, and bitsandbytes quantizes linear layers only.
    """
    skips_own_linear = _since("transformers", 5, 5)
    """bitsandbytes quantizes no subclass of ``nn.Linear`` (transformers since 5.5, ``replace_with_bnb_linear``)."""
    caches_latents = _since("transformers", 5, 15)
    """Latent attention's cache holds the compressed latents, not every head's keys and values (transformers since 5.15:
    ``expand_kv`` in models/deepseek_v3/modeling_deepseek_v3.py comes after the cache; before 5.15 before it)."""
    scores_prompts = _before("transformers", 4, 45)
    """``generate`` computes the logits of every token of a prompt, not of the last one (transformers before 4.45)."""
    checkpoints_units = _before("transformers", 4, 52)
    """Gradient checkpointing calls whole blocks, reentrantly; they may be units of FSDP (transformers before 4.52).

    Since then a block checkpoints itself, inside of its unit (``modeling_layers.GradientCheckpointingLayer``).
    """
    scales_norms_in_fp32 = _since("litgpt", 0, 4, 6)
    """LitGPT's RMSNorm multiplies by its weight before it casts back to 16 bits (since 0.4.6)."""

    @cached_property
    def runs_longest_first(self) -> bool:
        """LitGPT's scripts ran the longest sample in the first micro-batch only (before 0.2)."""
        return self._litgpt and self.older("litgpt", 0, 2)

    expands_keys = _before("litgpt", 0, 5, 5)
    """LitGPT expanded keys and values before it rotated them; values of one head needed no copy (before 0.5.5)."""
    leaves_loss_to_eager = _before("torchtitan", 0, 1)
    """``compile`` covers torchtitan's blocks only, not its loss (before 0.1; pull requests 755 and 1033)."""
    gathers_log_softmax = _before("trl", 0, 15)
    """TRL's log-probabilities are gathered from a whole log-softmax (before 0.15)."""
    tiles_head = _since("trl", 1, 15)
    """TRL runs the head in tiles and makes no logits (since 1.15); before, in chunks that are recomputed."""
    counts_cuda_graphs = _since("vllm", 0, 20)
    """vLLM's share of the GPU includes its CUDA graphs (since 0.20, VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)."""
    counts_nccl = _before("vllm", 0, 11)
    """vLLM's share includes NCCL's buffers (before 0.11: its first snapshot was taken before they were allocated)."""
    prefills_at_once = _before("vllm", 0, 8)
    """vLLM takes a whole prompt in one step unless chunked prefill is turned on (its V0 engine)."""
    counts_context = _before("vllm", 0, 9)
    """vLLM's share includes everything that is in use on the GPU, other processes too (its V1 engine before 0.9)."""

    @cached_property
    def knows_vllm(self) -> bool:
        """The vLLM is one of the versions whose sources these rules were read from: 0.6 to 0.33."""
        return self.older("vllm", 0, 34) and not self.older("vllm", 0, 6)

    @cached_property
    def knows_sglang(self) -> bool:
        """SGLang is one of the versions whose sources were read: 0.4 to 0.5."""
        return self.older("sglang", 0, 6) and not self.older("sglang", 0, 4)

    holds_predictions = _before("torchtitan", 0, 0, 2)
    """torchtitan's model casts its logits to fp32, and the loop's variable ``pred`` outlives the step.

    Until 2024-06-12 (pull request 391); 0.0.1 stands for that.
    """
    repeats_keys = _before("torchtitan", 0, 2, 2)
    """torchtitan copies keys and values to all query heads (before 0.2.2; pull request 2259)."""

    @cached_property
    def repeats_keys_for_sdpa(self) -> bool:
        """Transformers copies keys and values to all query heads before it calls sdpa.

        Since 4.54, with torch 2.5 or newer, sdpa groups the heads itself (``use_gqa_in_sdpa`` in
        integrations/sdpa_attention.py, huggingface/transformers#39412).
        """
        return self.older("transformers", 4, 54) or self.older("torch", 2, 5)

    @cached_property
    def lays_heads_out(self) -> bool:
        """Transformers makes queries, keys and values contiguous before it calls sdpa (4.48 to 4.55).

        Before 4.48 it did so only for a mask (integrations/sdpa_attention.py).
        """
        return self.older("transformers", 4, 56) and not self.older("transformers", 4, 48)

    @cached_property
    def adds_head_gradient_in_fp32(self) -> bool:
        """Liger-Kernel's fused linear loss casts each chunk's gradient of the head to fp32 (since 0.6.2, 2025-08).

        It is assumed to be of the time of the stated torch or transformers.
        """
        return not (self.older("torch", 2, 8) or self.older("transformers", 4, 55))

    fuses_norms = _since("torch", 2, 9)
    """torch's RMSNorm is one kernel on CUDA (since torch 2.9).

    Before, it was a chain of operations that keeps its input and the normalized input in fp32 (``rms_norm_composite``
    in ATen/native/layer_norm.cpp).
    """
    chains_norms = _before("torchtitan", 0, 1)
    """torchtitan's RMSNorm is Python's chain of operations, as transformers' (before 0.1; pull request 985)."""
    chains_fp32_norms = _before("torch", 2, 6)
    """So is torchtune's (before 0.5, which is of the time of torch 2.6)."""

    @cached_property
    def reduces_in_own_pool(self) -> bool:
        """FSDP2 allocates the input of a reduce-scatter on the stream that reduces (torch before 2.5).

        Its pool is no other tensor's (``foreach_reduce`` in torch 2.3 and 2.4, _composable/fsdp/_fsdp_collectives.py).
        """
        titan = self._software.torch is None and older(self._torchtitan, 0, 0, 2)
        return self.older("torch", 2, 5) or titan

    gathers_with_root = _before("torchtitan", 0, 2)
    """torchtitan leaves embedding and head to FSDP's root unit (before 0.2; models/llama3/infra/parallelize.py)."""
    frees_outside_units = _before("megatron_fsdp", 0, 5)
    """Megatron-FSDP frees weights outside of its units after each pass, and gathers units ahead when they run.

    Before 0.5 (``AllGatherPipeline.reset``, ``_root_pre_backward``): the first units are gathered while the loss runs.
    """
    reduces_whole_modules = _before("megatron_fsdp", 0, 3)
    """Megatron-FSDP copies the gradients of a module when all of them exist (``_post_backward`` before 0.3)."""


def version_rules(job: Job) -> VersionRules:
    """Return the behaviour of the versions that a job states."""
    framework, four_bit = FRAMEWORKS[job.training.framework], is_four_bit(job.lora)
    return _rules(job.software, four_bit=four_bit, titan=framework.torchtitan_models, litgpt=framework.litgpt_models)


_rules = lru_cache(maxsize=64)(VersionRules)  # searches ask for the same versions thousands of times


_OUTSIDE_OF_STEPS = ("loads_kernels_eagerly", "loads_whole_libraries", "knows_vllm", "knows_sglang")
"""Rules for what a step does not allocate."""


def steps_take_same_memory(job: Job, *, torch: str, transformers: str) -> bool:
    """Return True if a step taken with these versions takes the memory of the versions that the job states.

    Args:
        job: the job.
        torch: the version that takes it.
        transformers: likewise.
    """
    stated = job.software
    found = {name: own for name, own in (("torch", torch), ("transformers", transformers)) if getattr(stated, name)}
    asked, taken = version_rules(job), version_rules(replace(job, software=replace(stated, **found)))
    names = [name for name, rule in vars(VersionRules).items() if isinstance(rule, cached_property)]
    return all(getattr(asked, name) == getattr(taken, name) for name in names if name not in _OUTSIDE_OF_STEPS)
