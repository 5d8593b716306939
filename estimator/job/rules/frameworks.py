"""Training frameworks: the rules by which memory differs between them, one record per framework.

A new framework is one row of ``FRAMEWORKS``. The defaults describe a plain PyTorch training loop without LoRA. Sources
stand beside the formulas that ask for a rule.
"""

from typing import Literal

from msgspec import Struct

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
