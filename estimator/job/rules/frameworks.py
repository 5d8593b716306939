"""Training frameworks: the rules by which memory differs between them, one record per framework.

A new framework is one row of ``FRAMEWORKS``. The defaults describe a plain PyTorch training loop without LoRA. Sources
stand beside the formulas that ask for a rule.
"""

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from ..job import Job
    from ..settings import Software

RmsNorm = Literal["autograd", "fused", "litgpt", "torch", "torch-fp32"]
"""``autograd``: transformers' chain of operations; ``fused``: one kernel; ``litgpt``: its own chain of operations;
``torch``: torch's RMSNorm; ``torch-fp32``: likewise, of an fp32 copy. What these two are depends on versions."""
ChunkedLoss = Literal["one-by-one", "at-once", "without-logits"]
"""``one-by-one``: all logits exist, the loss of a chunk at a time; ``at-once``: a chunk runs forward and backward;
``without-logits``: TRL's, which makes the logits of a part at a time, and again in the backward pass."""
LIGER_KERNELS = frozenset(("norm", "mlp", "rope"))
"""Parts that Liger-Kernel patches by default beside the loss (``apply_liger_kernel_to_*``)."""
AvailableLoss = Literal["chunked", "fused-linear"]


class Framework(Struct, frozen=True, kw_only=True, eq=False):
    """Rules of one training framework that an estimate, a cause, a suggestion or a check depends on."""

    name: str
    """Value of the job file's ``training.framework``."""
    libraries: tuple[str, ...]
    """Distributions that it needs."""
    training_libraries: tuple[str, ...] = ()
    """Distributions that it needs for training only."""
    transformers_models: bool = False
    """Models are transformers' classes, wrapped as accelerate does: checkpointing and experts are its version's."""
    torchtitan_models: bool = False
    """Models and training loop are torchtitan's own, those of its version (``VersionRules``)."""
    litgpt_models: bool = False
    """Models and training loop are LitGPT's own, those of its version (``VersionRules``)."""
    own_expert_families: frozenset[str] = frozenset()
    """Families (``model_type``) whose mixture of experts it builds itself."""
    own_experts: Literal["", "torchtune"] = ""
    """Form of these experts; empty: the version decides (``VersionRules.titan_experts``)."""
    hub_weights: bool = False
    """It loads Hugging Face weights by itself, not only checkpoints of its own format."""
    checkpoint_file: str | None = None
    """File of its own checkpoint format that it loads in place of Hugging Face weights."""

    # --- precision
    low_precision_weights: bool = False
    """Mixed precision keeps 16-bit weights, fp32 gradients and fp32 master weights (Megatron's), not fp32 weights."""
    fp32_adapters: bool = False
    """LoRA adapters are fp32 whatever the weights are (peft's ``autocast_adapter_dtype``)."""
    autocasts_fused_experts: bool = True
    """Autocast casts experts whose weights lie in one tensor."""

    # --- blocks
    rms_norm: RmsNorm = "autograd"
    """Implementation of RMSNorm, which decides what it saves."""
    compiles_blocks: bool = False
    """``torch.compile`` covers the blocks one by one, and not the final norm."""
    fused_kernels: frozenset[str] = frozenset()
    """Parts of the blocks that it patches with fused kernels by default."""
    norm_backward_tensors: int = 2
    """fp32 tensors of the hidden size that are alive while an RMSNorm runs backward."""
    fused_qkv: bool = False
    """Queries, keys and values are one linear layer, of which LoRA adapts parts (the halves of a gated MLP are two);
    attention copies its output."""
    repeats_keys: bool = False
    """Attention copies keys and values to all query heads."""
    fused_eager_softmax: bool = False
    """Eager attention takes the softmax in one kernel that keeps its output in the compute type."""
    plain_softmax_families: bool = False
    """Models keep their family's own choice of the dtype of eager attention's softmax."""
    masks_sliding_window: bool = False
    """sdpa is given a mask of every pair of positions where a sliding window is shorter than the sequence."""
    fused_activations: bool = False
    """Activation functions are single kernels that save one tensor."""
    frees_mlp_first: bool = False
    """A block frees what its MLP saved before its attention runs backward."""
    embeddings_without_gradient: bool = False
    """Nothing before the first adapter has a gradient, so the first block's norm saves nothing under LoRA."""
    adapter_dropout: bool = False
    """LoRA adapters drop out their input by default, which saves the output and a mask."""
    own_adapters: bool = False
    """It makes LoRA adapters itself; otherwise peft does."""
    saves_split_inputs: bool = False
    """With sequence parallelism, linear layers save their input before it is gathered, and gather it again."""
    copies_flash_output: bool = False
    """It keeps sequences first: of several, flash-attn's output, which has the batch first, is copied."""
    masks_in_batch: bool = False
    """Each batch brings a mask of all pairs of positions, one byte each, which the forward step holds."""
    gathers_context: bool = False
    """Context parallelism gathers keys and values of all ranks at once, not of one rank at a time."""
    tensor_parallel_plan: bool = False
    """Tensor parallelism follows the plan of a transformers model (DTensor)."""

    # --- quantization
    quantizes_head: bool = False
    """bitsandbytes replaces the head's linear layer too (Lightning's plugin)."""
    unpacked_width: int = 2
    """Bytes per element while a quantized weight is unpacked: 4 where fp16 and the compute type exist at once."""

    # --- logits and loss
    splits_logits: bool = False
    """Tensor parallelism splits the logits over the vocabulary, and the loss works on the parts."""
    loss_in_place: bool = False
    """One fp32 copy of the logits becomes the softmax and then the gradient."""
    keeps_fp32_logits: bool = False
    """The model's outputs are cast to fp32, and variables of the script keep logits and loss until the next batch."""
    keeps_outputs: bool = False
    """A variable of the training loop holds the model's outputs until the backward pass is over."""
    frees_outputs_after_backward: bool = False
    """The variable that holds the logits belongs to a function that returns before the optimizer steps."""
    chunked_head: bool = False
    """Under LoRA the head runs by chunks of positions."""
    casts_logits: bool = False
    """The model returns fp32 logits, which it casts outside of what is compiled, unless the loss is chunked."""
    chunked_loss: ChunkedLoss = "one-by-one"
    compiles_loss: bool = False
    """``torch.compile`` covers the loss, unless ``casts_logits`` leaves it to eager mode."""
    may_leave_loss_eager: bool = False
    """A setting leaves the loss out of what is compiled (torchtitan's ``compile.components``)."""
    backward_fused_loss: bool = False
    """Its fused linear loss computes gradients in the backward pass (cut_cross_entropy), not in the forward pass."""
    loss_in_forward: bool = False
    """The loss is computed within the root module's forward pass."""

    # --- gradients, optimizer and loading
    gradient_buffer: bool = False
    """All gradients lie in one buffer that is allocated once and zeroed, and that serves as the reduction buckets."""
    accumulates_unsharded: bool = False
    """Gradient accumulation under FSDP reduces in the last micro-batch only (``no_sync``)."""
    pipeline_keeps_gathered: bool = False
    """With pipeline stages, FSDP keeps weights gathered and accumulates unsharded gradients."""
    last_block_stays: bool = False
    """FSDP2 keeps the last block gathered from its forward to its backward pass."""
    checkpoints_parts: bool = False
    """Over several ranks checkpointing wraps norms, attention and MLP of a block one by one."""
    units_around_blocks: bool = False
    """FSDP2 gathers embedding and head as units of their own, not with the root."""
    fp32_embedding_states: bool = False
    """8-bit optimizers keep the states of embeddings in fp32."""
    initializes_on_gpu: bool = False
    """Weights are created on the GPU and filled shard by shard, so that loading takes no host memory."""
    casts_while_loading: bool = False
    """Loading into another dtype than the checkpoint's makes a private copy of the weights in host memory."""
    transformer_engine: bool = False
    """TransformerEngine runs the linear layers, with a workspace of its own."""

    # --- batches
    pads_batches: bool = False
    """By default it pads each batch to its longest sequence, so that lengths differ from step to step."""

    # --- the allocator
    allocator_conf: str | None = None
    """``PYTORCH_CUDA_ALLOC_CONF`` of its launch script; None: it leaves torch's defaults."""

    # --- uncertainty
    slack: float = 0.0
    """Share of the allocated memory that fragmentation adds in this framework's training loop; 0: not measured."""
    lora_slack: float = 0.0
    """``slack`` where LoRA adapters are trained."""
    checked_activations: bool = False
    """Its activations and logits are checked against autograd."""

    # --- what it offers
    adapters: bool = True
    """It trains LoRA adapters."""
    bitsandbytes: bool = True
    """It takes bitsandbytes' optimizers."""
    offloads_activations: bool = False
    """It can offload saved activations to host memory."""
    selective_checkpointing: bool = False
    """It offers selective activation checkpointing."""
    selective_slowdown: float | None = None
    """Relative cost of selective checkpointing; None: half a forward pass, every second product being recomputed."""
    available_loss: AvailableLoss | None = None
    """The loss that it offers to save memory of logits."""
    loads_on_rank_zero: bool = False
    """It can load the checkpoint on one rank of a machine only (accelerate's ``cpu_ram_efficient_loading``)."""
    trainer: bool = False
    """Scripts start from the defaults of transformers' ``TrainingArguments``, and use its loss."""
    evaluates: bool = False
    """It runs evaluation with a batch size of its own default (the Trainer's ``per_device_eval_batch_size``)."""


_ROWS = (
    Framework(
        name="transformers",
        pads_batches=True,  # data/data_collator.py, DataCollatorWithPadding
        libraries=("torch", "transformers"),
        transformers_models=True,
        training_libraries=("accelerate",),
        hub_weights=True,
        fp32_adapters=True,
        autocasts_fused_experts=False,
        norm_backward_tensors=5,
        plain_softmax_families=True,
        masks_sliding_window=True,
        frees_mlp_first=True,
        embeddings_without_gradient=True,
        tensor_parallel_plan=True,
        chunked_loss="without-logits",
        compiles_loss=True,
        loss_in_forward=True,
        accumulates_unsharded=True,
        units_around_blocks=True,
        fp32_embedding_states=True,
        casts_while_loading=True,
        slack=0.1,
        lora_slack=0.06,
        checked_activations=True,
        offloads_activations=True,
        available_loss="fused-linear",
        loads_on_rank_zero=True,
        trainer=True,
        evaluates=True,
    ),
    Framework(
        name="torchtitan",
        allocator_conf="expandable_segments:True",  # run_train.sh, since a5e57e4a9 (2024-10-22)
        libraries=("torch", "torchtitan"),
        torchtitan_models=True,
        # models/deepseek_v3, models/qwen3, models/llama4
        own_expert_families=frozenset(("deepseek_v2", "deepseek_v3", "llama4", "llama4_text", "qwen3_moe")),
        rms_norm="torch",  # models/llama3/model.py; before March 2025 models/norms.py
        compiles_blocks=True,
        gathers_context=True,
        splits_logits=True,
        chunked_loss="at-once",
        compiles_loss=True,
        may_leave_loss_eager=True,
        pipeline_keeps_gathered=True,
        units_around_blocks=True,
        initializes_on_gpu=True,
        adapters=False,
        bitsandbytes=False,
        selective_checkpointing=True,
        available_loss="chunked",
    ),
    Framework(
        # torchtune 0.3 to 0.6: modules/attention.py, modules/transformer.py; full_finetune_* drop compile_loss' result
        name="torchtune",
        pads_batches=True,  # data/_collate.py, padded_collate_sft; packed=False
        libraries=("torch", "torchtune"),
        own_expert_families=frozenset(("llama4", "llama4_text")),
        own_experts="torchtune",
        rms_norm="torch-fp32",  # modules/rms_norm.py
        compiles_blocks=True,  # training/_compile.py
        hub_weights=True,
        repeats_keys=True,
        casts_logits=True,
        compiles_loss=True,
        offloads_activations=True,
        available_loss="chunked",
    ),
    Framework(
        name="litgpt",
        pads_batches=True,  # data/base.py, get_sft_collate_fn
        libraries=("torch", "litgpt"),
        litgpt_models=True,
        hub_weights=True,
        checkpoint_file="lit_model.pth",
        rms_norm="litgpt",
        fused_qkv=True,
        fused_activations=True,
        adapter_dropout=True,
        own_adapters=True,
        quantizes_head=True,
        unpacked_width=4,
        keeps_fp32_logits=True,
        chunked_head=True,
        accumulates_unsharded=True,
        checked_activations=True,
    ),
    Framework(
        # NeMo AutoModel 0.1 to 0.5: recipes/llm/train_ft.py, components/distributed/parallelizer.py
        name="automodel",
        libraries=("torch", "transformers", "nemo-automodel"),
        transformers_models=True,
        hub_weights=True,
        fused_kernels=LIGER_KERNELS,
        norm_backward_tensors=5,
        plain_softmax_families=True,
        masks_sliding_window=True,
        frees_mlp_first=True,
        tensor_parallel_plan=True,
        keeps_outputs=True,
        frees_outputs_after_backward=True,
        last_block_stays=True,
        checkpoints_parts=True,
        backward_fused_loss=True,
        accumulates_unsharded=True,
        initializes_on_gpu=True,
        available_loss="fused-linear",
    ),
    Framework(
        name="megatron",
        libraries=("torch", "megatron-core"),
        low_precision_weights=True,
        rms_norm="fused",
        fused_eager_softmax=True,
        fused_activations=True,
        saves_split_inputs=True,
        copies_flash_output=True,
        masks_in_batch=True,
        splits_logits=True,
        loss_in_place=True,
        gradient_buffer=True,
        initializes_on_gpu=True,
        transformer_engine=True,
        adapters=False,
        bitsandbytes=False,
        selective_checkpointing=True,
        selective_slowdown=0.04,
    ),
)
FRAMEWORKS = {row.name: row for row in _ROWS}
"""By the job file's ``training.framework``."""


# Memory behaviour that depends on library versions and their settings: the job file's ``[software]`` table.
#
# A version that the job does not state counts as the latest. Each rule names its source.


_TORCHTITAN = (
    *(((2, 4), 20240612, "0.0.1"), ((2, 8), 20250617, "0.0.2"), ((2, 8), 20250805, "0.1"), ((2, 9), 20251017, "0.1.1")),
    *(((2, 10), 20251226, "0.2"), ((2, 11), 20260406, "0.2.2")),
)
"""torchtitan's versions by the torch before which, and the nightly before which, there was no newer one."""

_MEGATRON_FSDP = (((2, 11), 20260226, "0.2.3"), ((2, 12), 20260622, "0.4"))
"""megatron-fsdp's likewise. NeMo AutoModel locks 0.2.3 in its releases until 0.5."""


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

    def __init__(self, software: "Software", *, four_bit: bool, titan: bool, litgpt: bool) -> None:
        self._software, self._four_bit, self._titan, self._litgpt = software, four_bit, titan, litgpt
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

    @cached_property
    def titan_experts(self) -> Literal["", "scatter", "matmul", "dispatch"]:
        """The form of torchtitan's mixture of experts (``models/moe``); empty: one that is not known.

        Outputs are added up by ``scatter_add``, by a product with the scores (0.2.1 to 0.2.2, pull request 1974), or by
        dispatchers, without padding (since April 2026, pull requests 2774, 2775 and 2842). Before August 2025 (pull
        request 1534), which 0.1.1 stands for, every model had its own.
        """
        if not self._titan or self.older("torchtitan", 0, 1, 1):
            return ""
        if self.older("torchtitan", 0, 2, 1):
            return "scatter"
        return "matmul" if self.older("torchtitan", 0, 3) else "dispatch"

    gathers_with_root = _before("torchtitan", 0, 2)
    """torchtitan leaves embedding and head to FSDP's root unit (before 0.2; models/llama3/infra/parallelize.py)."""
    frees_outside_units = _before("megatron_fsdp", 0, 5)
    """Megatron-FSDP frees weights outside of its units after each pass, and gathers units ahead when they run.

    Before 0.5 (``AllGatherPipeline.reset``, ``_root_pre_backward``): the first units are gathered while the loss runs.
    """
    lazy_states = _before("megatron_fsdp", 0, 4)
    """Megatron-FSDP's optimizer has no states before the first step (``fully_shard_optimizer`` before 0.4)."""
    reduces_whole_modules = _before("megatron_fsdp", 0, 3)
    """Megatron-FSDP copies the gradients of a module when all of them exist (``_post_backward`` before 0.3)."""


def version_rules(job: "Job") -> VersionRules:
    """Return the behaviour of the versions that a job states."""
    from .dtype_widths import is_four_bit  # which imports the settings, whose types are made of these tables

    framework = FRAMEWORKS[job.training.framework]
    return _rules(job.software, is_four_bit(job.lora), framework.torchtitan_models, framework.litgpt_models)


@lru_cache(maxsize=64)  # searches ask for the same versions thousands of times
def _rules(software: "Software", four_bit: bool, titan: bool, litgpt: bool) -> VersionRules:
    return VersionRules(software, four_bit=four_bit, titan=titan, litgpt=litgpt)


_OUTSIDE_OF_STEPS = ("loads_kernels_eagerly", "loads_whole_libraries", "knows_vllm", "knows_sglang")
"""Rules for what a step does not allocate."""


def steps_take_same_memory(job: "Job", *, torch: str, transformers: str) -> bool:
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


# Defaults of training libraries, on which memory depends: what each does where nothing is set, with its source.
#
# A job's ``"auto"`` stands for these values (``job.settled``), and readers of launch lines start from them.


AUTO = "auto"
"""Value of a job's setting that the library decides."""
STORED = "stored"
"""A default precision: the weights keep the type in which the checkpoint stores them."""
PRECISION, OPTIMIZER, ATTENTION = "training.precision", "training.optimizer", "model.attention"
CHECKPOINTING, PREPARATION = "training.activation_checkpointing", "lora.kbit_preparation"
LENGTH, SEQUENCES, SHARE = "training.sequence_length", "training.micro_batch", "inference.gpu_memory_utilization"
LONGEST = "longest"
"""A default length: the most positions of the model."""


class Default(Struct, frozen=True, kw_only=True):
    """The value of a setting that a library's plain program has where nothing is set."""

    library: str
    """Value of ``training.framework``, an engine that serves models, or ``peft`` (adapters over quantized weights)."""
    key: str
    """The setting, by its key in a job file."""
    value: str
    source: str
    before: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Versions before which it was ``older``."""
    older: str = ""


DEFAULTS = (
    Default(
        library="transformers",
        key=PRECISION,
        value=STORED,
        before=(("transformers", (5, 0)),),
        older="fp32",
        source="modeling_utils.py (from_pretrained: dtype='auto'), training_args.py (bf16, fp16: False)",
    ),
    Default(
        library="transformers",
        key=OPTIMIZER,
        value="adamw-fused",
        before=(("transformers", (5, 0)), ("torch", (2, 8))),
        older="adamw",
        source="training_args.py (optim: adamw_torch_fused with torch 2.8)",
    ),
    Default(
        library="transformers",
        key=ATTENTION,
        value="sdpa",
        before=(("transformers", (4, 36)), ("torch", (2, 1, 1))),
        older="eager",
        source="modeling_utils.py (_supports_sdpa), utils/import_utils.py (is_torch_sdpa_available)",
    ),
    Default(
        library="torchtitan",
        key=PRECISION,
        value="bf16-mixed",
        source="config/job_config.py (Training: dtype float32, mixed_precision_param bfloat16)",
    ),
    Default(
        library="torchtitan",
        key=OPTIMIZER,
        value="adamw-fused",
        source="config/job_config.py (Optimizer: name AdamW, implementation fused)",
    ),
    Default(library="torchtune", key=PRECISION, value="bf16", source="recipes/configs (dtype: bf16)"),
    Default(
        library="torchtune",
        key=OPTIMIZER,
        value="adamw-fused",
        source="recipes/configs (torch.optim.AdamW, fused: True)",
    ),
    Default(
        library="litgpt",
        key=PRECISION,
        value="bf16-mixed",
        source="litgpt/utils.py (get_default_supported_precision(training=True)); bf16 over quantized weights",
    ),
    Default(library="litgpt", key=OPTIMIZER, value="adamw", source="litgpt/finetune (optimizer: AdamW)"),
    Default(library="automodel", key=PRECISION, value="bf16", source="examples (torch_dtype: bf16)"),
    Default(library="automodel", key=OPTIMIZER, value="adamw", source="examples (torch.optim.Adam, AdamW)"),
    Default(
        library="megatron", key=PRECISION, value="bf16-mixed", source="examples (--bf16, which no script leaves out)"
    ),
    Default(
        library="megatron",
        key=OPTIMIZER,
        value="adamw-fused",
        source="core/optimizer/__init__.py (Adam: TransformerEngine's or apex' FusedAdam)",
    ),
    Default(
        library="peft",
        key=CHECKPOINTING,
        value="full",
        source="utils/other.py (prepare_model_for_kbit_training: use_gradient_checkpointing=True)",
    ),
    Default(
        library="peft",
        key=PREPARATION,
        value="true",
        source="utils/other.py (prepare_model_for_kbit_training: parameters that are not quantized become fp32)",
    ),
    Default(library="vllm", key=PRECISION, value=STORED, source="config/model.py (dtype='auto'; float32 becomes fp16)"),
    Default(
        library="sglang",
        key=PRECISION,
        value=STORED,
        source="configs/model_config.py (dtype='auto'; float32 becomes fp16)",
    ),
    Default(
        library="vllm", key=LENGTH, value=LONGEST, source="config/model.py (max_model_len: max_position_embeddings)"
    ),
    Default(library="sglang", key=LENGTH, value=LONGEST, source="server_args.py (context_length: the config's)"),
    Default(
        library="vllm", key=SEQUENCES, value="256", source="engine/arg_utils.py (max_num_seqs; 1024 on large GPUs)"
    ),
    Default(
        library="sglang",
        key=SEQUENCES,
        value="256",
        source="a usual number: server_args.py (max_running_requests) decides it by the cache",
    ),
    Default(
        library="vllm",
        key=SHARE,
        value="0.92",
        before=(("vllm", (0, 20)),),
        older="0.9",
        source="config/cache.py (gpu_memory_utilization)",
    ),
)
_PLAIN = {PRECISION: STORED, OPTIMIZER: "adamw"}
"""What a plain PyTorch loop does, for a library without rows of its own."""
_BY_NAME = {(row.library, row.key): row for row in DEFAULTS}


def serving_defaults(engine: str) -> dict[str, str]:
    """Return the sizes with which an engine serves a model where nothing is set, by job key, as they are written."""
    return {row.key: row.value for row in DEFAULTS if row.library == engine and row.key in (LENGTH, SEQUENCES, SHARE)}


def usual(library: str, key: str, versions: Mapping[str, str | None]) -> str:
    """Return the value of a setting that is not set; versions that are not stated count as the latest.

    Args:
        library: see ``Default.library``.
        key: of the setting.
        versions: by the library's name, as far as they are known.
    """
    row = _BY_NAME.get((library, key))
    if row is None:
        return _PLAIN[key]
    past = any(older(versions.get(name), *version) for name, version in row.before)
    return row.older if past else row.value


# Data-parallel strategies and precisions: what they shard, and the dtypes that they use, one record each.
#
# A new strategy is one row of ``STRATEGIES``, a new precision one row of ``PRECISIONS``.


ZeroStage = Literal[0, 1, 2, 3]
"""Sharded states (arXiv:1910.02054): 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too."""


class Shards(Struct, frozen=True, kw_only=True):
    """Ranks over which each kind of state is sharded; 1: every rank holds it whole."""

    weights: int
    gradients: int
    optimizer: int

    @classmethod
    def of_stage(cls, stage: ZeroStage, *, ranks: int) -> "Shards":
        """Return the shards of a ZeRO stage over that many ranks."""
        return cls(
            weights=ranks if stage >= 3 else 1,
            gradients=ranks if stage >= 2 else 1,
            optimizer=ranks if stage >= 1 else 1,
        )


class Strategy(Struct, frozen=True, kw_only=True, eq=False):
    """Rules of one data-parallel strategy."""

    name: str
    """Value of the job file's ``parallel.strategy``."""
    zero_stage: ZeroStage
    stages_by_sharding: Mapping[str, ZeroStage] = field(default_factory=dict)
    """Other stages, by the job file's ``parallel.sharding``."""
    full_sharding: str = "full"
    """Its own word for ``full``, which the job file takes too."""
    libraries: tuple[str, ...] = ()
    """Distributions that provide it, of which one is enough; empty: torch itself."""
    fsdp: bool = False
    """torch's fully sharded data parallel, version 1 or 2."""
    replicates: bool = True
    """Data-parallel ranks work on one model; False: nothing is reduced between them."""
    buckets: bool = False
    """Gradients are reduced in buckets that stay allocated (DDP)."""
    megatron_fsdp: bool = False
    """Megatron-FSDP."""
    deepspeed: bool = False
    """DeepSpeed's engine: 16-bit weights, and fp32 master weights in the optimizer."""
    low_precision_weights: bool = False
    """Mixed precision keeps 16-bit weights, fp32 gradients and fp32 master weights (Megatron's), not fp32 weights."""
    flat_parameters: bool = False
    """A unit is one flat parameter, whose gradient covers what is frozen in it too."""
    slack: float | None = None
    """Share of the allocated memory that the allocator holds besides; None: the framework's."""
    cpu_offload: tuple[Literal["optimizer", "all"], ...] = ()
    """Values of ``parallel.cpu_offload`` that it offers."""
    quantized_weights: bool = False
    """It works with 4-bit frozen weights."""

    @property
    def fsdp2(self) -> bool:
        """True if it shards each parameter by itself (FSDP2), not a flat parameter per unit."""
        return self.fsdp and not self.flat_parameters

    def stage(self, sharding: str) -> ZeroStage:
        """Return what is sharded under a value of the job file's ``parallel.sharding``."""
        return self.stages_by_sharding.get(sharding, self.zero_stage)


_STRATEGIES = (
    Strategy(name="none", zero_stage=0, replicates=False, quantized_weights=True),
    Strategy(name="ddp", zero_stage=0, buckets=True, quantized_weights=True),
    Strategy(
        name="fsdp1",
        zero_stage=3,
        stages_by_sharding={"none": 0},
        fsdp=True,
        flat_parameters=True,
        slack=0.12,
        cpu_offload=("all",),
    ),
    Strategy(name="fsdp2", zero_stage=3, fsdp=True, cpu_offload=("all",), quantized_weights=True),
    Strategy(name="zero1", zero_stage=1, libraries=("deepspeed",), deepspeed=True, cpu_offload=("optimizer",)),
    Strategy(name="zero2", zero_stage=2, libraries=("deepspeed",), deepspeed=True, cpu_offload=("optimizer",)),
    Strategy(
        name="zero3",
        zero_stage=3,
        libraries=("deepspeed",),
        deepspeed=True,
        slack=0.07,
        cpu_offload=("optimizer", "all"),
    ),
    Strategy(
        name="megatron-fsdp",
        zero_stage=3,
        stages_by_sharding={"none": 0, "optim": 1, "optim_grads": 2},
        full_sharding="optim_grads_params",
        libraries=("megatron-fsdp", "megatron-core"),
        megatron_fsdp=True,
        low_precision_weights=True,
    ),
)
STRATEGIES = {row.name: row for row in _STRATEGIES}
"""By the job file's ``parallel.strategy``."""


class Precision(Struct, frozen=True, kw_only=True, eq=False):
    """Dtypes of one setting of ``training.precision``."""

    name: str
    dtype: str
    """dtype in which matrices are multiplied, as torch names it."""
    width: int
    """Bytes per element of ``dtype``."""
    mixed: bool = False
    """Weights are fp32, and autocast or FSDP casts them to ``dtype``."""

    @property
    def half_weights(self) -> bool:
        """True if the weights themselves have 16 bits."""
        return self.width == 2 and not self.mixed


_PRECISIONS = (
    Precision(name="fp32", dtype="float32", width=4),
    Precision(name="fp16-mixed", dtype="float16", width=2, mixed=True),
    Precision(name="bf16-mixed", dtype="bfloat16", width=2, mixed=True),
    Precision(name="bf16", dtype="bfloat16", width=2),
    Precision(name="fp16", dtype="float16", width=2),
)
PRECISIONS = {row.name: row for row in _PRECISIONS}
"""By the job file's ``training.precision``."""
DTYPE_NAMES = {
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float16", "fp16", "half"), "fp16"),
    **dict.fromkeys(("float32", "fp32", "float"), "fp32"),
}
"""The job file's name for each name of a dtype."""
HALF = ("bf16", "fp16")
"""Dtypes of 16 bits."""
