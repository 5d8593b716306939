"""Settings of a model that generates text: a served one, or one that generates during training."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from .value_types import Positive


class Inference(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a served model, for ``training.mode = "inference"``.

    ``training.micro_batch`` is the number of concurrent sequences, ``training.sequence_length`` their maximum length.
    """

    engine: Literal["transformers", "vllm", "sglang"] = "transformers"
    """Engine that serves the model: its cache and buffers are counted."""
    weights: Literal["auto", "fp8", "int8", "int4", "nf4", "nf4-double", "mxfp4"] = "auto"
    """Format of the linear weights (``int4``: AWQ or GPTQ); ``auto``: as the checkpoint stores them."""
    cache_dtype: Literal["auto", "fp8"] = "auto"
    """Type of the key-value cache; ``auto``: the type of computation."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Share of the GPU's memory that vLLM or SGLang takes (``mem_fraction_static``); what weights leave is cache."""
    cache_bytes: Annotated[int, Meta(ge=1, le=2**50)] | None = None
    """vLLM: size of the key-value cache in bytes, in place of a share (``kv_cache_memory_bytes``)."""
    prefill_tokens: Positive | None = None
    """vLLM: most tokens in one step (``max_num_batched_tokens``); absent: its default for the GPU."""
    cuda_graphs: bool = True
    """vLLM: steps are recorded as CUDA graphs, which take memory (off by ``enforce_eager``)."""
    sleep: bool = False
    """vLLM: it gives its memory back while it sleeps (``enable_sleep_mode``)."""


class Rollout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Text that the model generates during training, in the training process itself or through vLLM on its GPUs.

    A vLLM server on other GPUs takes none of this memory, and is no part of the job.
    """

    engine: Literal["transformers", "vllm"] = "transformers"
    """Engine that generates text in training; ``vllm``: vLLM in the training process (TRL calls this ``colocate``)."""
    micro_batches: Positive = 1
    """Micro-batches whose sequences a rank generates at once (TRL's ``steps_per_generation``)."""
    prompt_length: Positive | None = None
    """Tokens of a prompt, which run at once; absent: what ``training.loss_length`` leaves of a sequence."""
    gather_weights: bool = True
    """ZeRO 3 gathers the whole weights while text is generated (TRL's ``ds3_gather_for_generation``)."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.3
    """vLLM's share of the GPU's memory."""
    tensor: Positive = 1
    """Ranks over which vLLM splits the weights."""
    sleep: bool = False
    """vLLM gives its memory back between rollouts (``vllm_enable_sleep_mode``)."""
