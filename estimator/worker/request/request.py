"""Fields of a trace request: the tables of a job file, with the same names, meaning and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .user_code import UserCode


@dataclass(frozen=True)
class Training:
    """The job file's table ``training``."""

    framework: str = "transformers"
    micro_batch: int = 1
    sequence_length: int = 2048
    sequences_per_example: int = 1
    gradient_accumulation: int = 1
    precision: str = "bf16-mixed"
    optimizer: str = "adamw"
    optimizer_options: dict[str, Any] | None = None
    activation_checkpointing: str = "none"
    activation_offload: bool = False
    optimizer_in_backward: bool = False
    compile: bool = False
    loss: str = "full"
    fused_kernels: list[str] | None = None
    keep_outputs: bool | None = None
    loss_length: int | None = None
    reference_pass: bool = False
    mode: str = "train"

    @property
    def sequences(self) -> int:
        """Sequences of one forward pass."""
        return self.micro_batch * self.sequences_per_example

    @property
    def mixed(self) -> bool:
        """True under autocast, with fp32 weights."""
        return self.precision.endswith("-mixed")


@dataclass(frozen=True)
class Lora:
    """The job file's table ``lora``."""

    rank: int = 16
    targets: list[str] | str = field(default_factory=lambda: ["q_proj", "v_proj"])
    quantization: str = "none"
    dropout: float = 0.0
    fp32_parameters: str = "none"
    """What k-bit preparation casts to fp32: ``all`` that is not quantized, ``norms`` or ``none``."""
    adapter_dtype: str | None = None
    """None: peft's choice."""
    autocast: bool = False
    """Autocast is on although the weights have 16 bits."""


@dataclass(frozen=True)
class Parallel:
    """The job file's table ``parallel``."""

    strategy: str = "none"
    data_shard: int = 1
    data_replicate: int = 1
    tensor: int = 1
    sequence_parallel: bool = False
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    reshard_after_forward: bool = True
    fsdp_units: str | None = None
    fsdp_min_unit_parameters: int | None = None
    fsdp_wrap_classes: list[str] | None = None
    fsdp_backward_prefetch: str | None = None
    limit_all_gathers: bool | None = None
    original_parameters: bool | None = None
    reduce_dtype: str | None = None
    gradient_dtype: str | None = None
    sync_every_micro_batch: bool | None = None
    gradient_as_bucket_view: bool = False
    cpu_offload: str = "none"
    sharding: str = "full"
    double_buffer: bool = False
    outer_sharding: str = "none"
    main_weights: bool | None = None
    communication_unit: int | None = None
    load_on_rank_zero: bool = False
    tensor_plan: str | dict[str, str] | None = None
    param_dtype: str | None = None
    device_map: Any = None
    max_memory: dict[str, Any] | None = None

    @property
    def zero_stage(self) -> int:
        """Stage of DeepSpeed's ZeRO; 0: another strategy."""
        return int(self.strategy[-1]) if self.strategy.startswith("zero") else 0

    @property
    def megatron_fsdp(self) -> bool:
        """True if Megatron-FSDP runs the job: with one rank too, as it keeps gradients and weights in its own way."""
        return self.strategy == "megatron-fsdp"

    @property
    def world_size(self) -> int:
        """Ranks of the dimensions that a trace applies."""
        return self.tensor * (1 if self.zero_stage or self.megatron_fsdp else self.data_shard * self.copies)

    @property
    def copies(self) -> int:
        """Copies that a trace makes: two stand for any number, on which no rank's memory depends."""
        return 2 if self.flat_sharded and self.data_shard == 1 else min(self.data_replicate, 2)

    @property
    def sharded(self) -> bool:
        """True if FSDP2 shards the weights."""
        return self.strategy == "fsdp2" and self.data_shard > 1

    @property
    def flat_sharded(self) -> bool:
        """True if FSDP1 makes flat parameters, which hold a unit's parameters, sharded or not."""
        return self.strategy == "fsdp1" and (self.data_shard * self.data_replicate > 1 or self.cpu_offload == "all")

    @property
    def flat_whole(self) -> bool:
        """True if each rank holds FSDP1's flat parameters whole, as it does where one rank is to share them."""
        return self.flat_sharded and (self.sharding == "none" or self.data_shard == 1)


@dataclass(frozen=True)
class Loop:
    """How a training loop differs from the Trainer's, whose the defaults are; the caller has the rules."""

    fused: tuple[str, ...] = ()
    """Parts that fused kernels compute: norm, mlp, rope, cross-entropy."""
    torch_norm: bool = False
    """Norms are torch's RMSNorm before it was one kernel: its chain of operations multiplies in fp32."""
    final_norm_eager: bool = False
    """What is compiled are the blocks, and not the norm behind them."""
    in_place: bool = True
    """Fused kernels write gradients over other tensors."""
    fuses_query_norms: bool = False
    """Norms of queries and keys are fused too."""
    repeats_keys: bool = False
    """Attention copies keys and values to all query heads."""
    compiles: bool = False
    """What torch.compile makes of the blocks is among these settings."""
    masks_attention: bool = False
    """sdpa is given a mask of all pairs of positions."""
    masks_per_block: bool = False
    """Each block makes its own of it."""
    own_loss: bool = False
    """The loop takes the loss itself, from what the model returns."""
    chunks_at_once: bool = False
    """A chunk of a chunked loss runs forward and backward before the next one."""
    compiles_loss: bool = False
    """The loss is a compiled kernel."""
    casts_logits: bool = False
    """The model returns fp32 logits."""
    keeps_outputs: bool = False
    """A variable holds the model's outputs through the backward pass."""
    keeps_between_steps: bool = True
    """Only the next outputs replace them."""
    fp32_sums: bool = True
    """Liger-Kernel's linear loss adds a chunk's gradient of the head in fp32."""
    autocast: bool = True
    """Mixed precision is autocast; otherwise FSDP casts what it gathers."""
    root_unit: bool = False
    """FSDP2's root holds embedding, norm and head."""
    last_block_stays: bool = False
    """FSDP2 keeps the last block gathered."""
    checkpoints_parts: bool = False
    """Norms, attention and MLP of a block are checkpointed one by one."""
    accumulates_unsharded: bool = True
    """Gradients are reduced in the last micro-batch only."""
    casts_norm_first: bool = False
    """LitGPT's RMSNorm casts to 16 bits before it is scaled."""
    expands_keys: bool = False
    """LitGPT's attention expands keys and values before it rotates them."""
    stable_embedding: bool = False
    """LitGPT puts a norm after the embedding of a quantized model."""
    recomputes_whole_blocks: bool = False
    """A checkpointed block is recomputed to its end, not only to the last tensor that the backward pass needs."""
    experts: str = ""
    """The loop's own mixture of experts: a form of torchtitan's or ``torchtune``; empty: transformers'."""


@dataclass(frozen=True)
class OlderVersions:
    """What older versions that the job states do otherwise than those that are installed."""

    copies_shifted_logits: bool = False
    """The causal loss copies the fp32 logits without the last token."""
    casts_logits_in_model: bool = False
    """The model returns fp32 logits."""
    expert_names: list[str] | None = None
    """Experts are lists of linear layers of these names; None: they are fused, or there are none."""
    reduces_in_own_pool: bool = False
    """FSDP2 allocates the input of a reduce-scatter on the reducing stream, and frees it at once."""
    keeps_quantized_inputs: bool = False
    """The graph keeps the inputs of 4-bit layers."""
    zeroes_gradients: bool = False
    """Gradients are zeroed between steps, not freed."""
    reentrant_checkpoints: bool = False
    """Checkpointed blocks run forward without a graph (``use_reentrant``)."""
    checkpoints_without_gradient: bool = False
    """Checkpointing does not ask for a gradient at the first block's input."""
    frees_outside_units: bool = False
    """Megatron-FSDP frees weights outside of its units after each pass."""
    lazy_states: bool = False
    """Megatron-FSDP's optimizer has no states before the first step."""
    reduces_whole_modules: bool = False
    """Megatron-FSDP copies the gradients of a module when all of them exist."""


@dataclass(frozen=True)
class OptimizerClass:
    """An optimizer class of an installed library, and how the job makes it."""

    path: str
    """``module:class``."""
    options: dict[str, Any]
    """Keyword arguments."""
    own: bool = False
    """It is a class of the user's own, from the folder that the request's code names."""
    library: str | None = None
    """``module:class`` that ``path`` stands in for, which real steps on a GPU take; None: it is no stand-in."""


@dataclass(frozen=True)
class Trainable:
    """The rules that a job file's ``training.trainable`` makes."""

    rules: list[list[Any]]
    """A regular expression that is searched in a parameter's name, whether such a parameter trains, and its pattern.

    The pattern is empty if it may match no parameter.
    """
    otherwise: bool
    """Whether a parameter that matches none trains."""


@dataclass(frozen=True)
class Request:
    """One job to trace."""

    config: dict[str, Any]
    task: str = "causal-lm"
    attention: str = "sdpa"
    training: Training = field(default_factory=Training)
    optimizer: OptimizerClass | None = None
    """The class that ``training.optimizer`` stands for; None: no class can be traced, or the job takes no step."""
    lora: Lora | None = None
    trainable: Trainable | None = None
    """None: everything trains, or the adapters do."""
    parallel: Parallel = field(default_factory=Parallel)
    loop: Loop = field(default_factory=Loop)
    older: OlderVersions = field(default_factory=OlderVersions)
    checkpoints_units: bool = False
    """Checkpointing calls FSDP's units, reentrantly; by default it is inside of them."""
    zero: dict[str, Any] | None = None
    """The job file's table ``zero``; None: DeepSpeed's defaults."""
    rollout: bool = False
    """Text is generated during training."""
    cpu_kernels: bool = False
    """Leave allocations as torch makes them on the CPU; by default CUDA's kernels are imitated."""
    allocator: dict[str, Any] | None = None
    """Settings and capacity for the replay through the allocator model."""
    code: UserCode | None = None
    """Code that the user allows to run; None: only the installed libraries."""
    device: str = "cpu"
    """Type of the device that holds the tensors: fake ones are on the CPU."""

    @property
    def autocasts(self) -> bool:
        """True under autocast, whatever the dtype of the weights."""
        return self.training.mixed or (self.lora is not None and self.lora.autocast)


def read_request(message: dict[str, Any]) -> Request:
    """Return a worker's message as a request.

    Raises:
        TypeError: it has a field that job files do not have.
    """
    lora, optimizer = message.get("lora"), message.get("optimizer")
    training, parallel = Training(**message.get("training") or {}), Parallel(**message.get("parallel") or {})
    if parallel.megatron_fsdp and parallel.main_weights is None:
        parallel = replace(parallel, main_weights=training.mixed)
    if parallel.zero_stage or parallel.megatron_fsdp:  # their mixed precision is 16-bit weights, without autocast
        training = replace(training, precision=training.precision.partition("-")[0])
    return Request(
        config=message.get("config") or {},
        task=message.get("task", "causal-lm"),
        attention=message.get("attention", "sdpa"),
        training=training,
        optimizer=None if optimizer is None else OptimizerClass(**optimizer),
        lora=None if lora is None else Lora(**lora),
        trainable=read_trainable(message),
        older=OlderVersions(**message.get("older") or {}),
        checkpoints_units=bool(message.get("checkpoints_units")),
        parallel=parallel,
        loop=_read_loop(message.get("loop") or {}),
        zero=message.get("zero"),
        rollout=message.get("rollout") is not None,
        cpu_kernels=bool(message.get("cpu_kernels")),
        allocator=message.get("allocator"),
        code=read_user_code(message),
        device=message.get("device", "cpu"),
    )


def _read_loop(fields: dict[str, Any]) -> Loop:
    return Loop(**{**fields, "fused": tuple(fields.get("fused") or ())})


def read_user_code(message: dict[str, Any]) -> UserCode | None:
    """Return the code that a message allows to run, or None; before code can run, the libraries are imported."""
    if not message.get("code"):
        return None
    code = UserCode(**message["code"])
    code.prepare(("torch", "transformers", *(("peft",) if message.get("lora") else ())))
    return code


def read_trainable(message: dict[str, Any]) -> Trainable | None:
    """Return the rules of a message for which parameters train; None: it has none."""
    rules = message.get("trainable")
    return None if rules is None else Trainable(**rules)
