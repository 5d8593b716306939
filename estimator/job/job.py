"""A training job: the model, the training settings, parallelism, and the target GPU.

``Job`` is the one input of every estimate. Its fields are those of vramtop's job file (TOML), documented with their
defaults below. ``job_file`` decodes it; ``resolved_job`` looks up the rules that its values select.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from .rules import FRAMEWORKS, OPTIMIZERS, PRECISIONS, STRATEGIES, check_options
from .task import Task
from .trainable import check_patterns

Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""No count of sequences, tokens or ranks reaches the maximum, and sums below it stay exact."""
_DIMENSIONS = ("data_shard", "data_replicate", "tensor", "pipeline", "context", "expert")
MAX_GPUS = 2**20
"""The largest clusters that are published have some 100,000 GPUs (Meta 24,576 twice, 2024; xAI 200,000, 2025)."""
Version = Annotated[str, Meta(pattern=r"^v?\d+(\.\d+)*", max_length=64)]
EnvironmentName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]

if TYPE_CHECKING:
    FrameworkName: TypeAlias = str
    OptimizerName: TypeAlias = str
    PrecisionName: TypeAlias = str
    StrategyName: TypeAlias = str
else:  # the tables' rows are the values that a job file may give
    FrameworkName = Literal[tuple(FRAMEWORKS)]
    OptimizerName = Annotated[
        str,
        Meta(
            pattern=rf"^({'|'.join(OPTIMIZERS)}|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)$",
            max_length=200,
            extra={"choices": tuple(OPTIMIZERS)},
        ),
    ]
    PrecisionName = Literal[tuple(PRECISIONS)]
    StrategyName = Literal[tuple(STRATEGIES)]
UncertaintyDirection = Literal["no", "less", "more", "either"]
Attention = Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"]


class ModelSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The model: by name or folder (``id``), or by its Hugging Face ``config`` written out."""

    id: str | None = None
    """Built-in name, hub id (in the local cache), folder with a config.json, or ``module:callable``: the user's own."""
    task: Task = "causal-lm"
    """The head on top of the model."""
    num_labels: Positive | None = None
    """Outputs of a classification head; absent: as many as the config says, else 2."""
    attention: Attention = "sdpa"
    """The attention implementation, as transformers names it."""
    config: dict[str, Any] | None = None
    """The fields of a Hugging Face config.json, in place of ``id``."""
    trust_remote_code: bool = False
    """Code in the model's folder may be run, in the worker process."""
    code_folder: str | None = None
    """Folder from which ``module:callable`` is imported; absent: the job file's folder, else the current one."""


class Training(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a training step."""

    framework: FrameworkName = "transformers"
    """The framework whose loss, casts and buffers apply."""
    micro_batch: Positive = 1
    """Sequences per rank and forward pass."""
    sequence_length: Positive = 2048
    """Tokens per sequence."""
    sequences_per_example: Positive = 1
    """Sequences that one example of the micro-batch puts through the model: 2 for a chosen and a rejected one."""
    gradient_accumulation: Positive = 1
    """Forward and backward passes per optimizer step."""
    precision: PrecisionName = "bf16-mixed"
    """``*-mixed``: fp32 weights under autocast; otherwise the type of the weights."""
    optimizer: OptimizerName = "adamw"
    """Decides the bytes of state per trainable parameter; ``module:Class`` for a class that is not listed."""
    optimizer_options: dict[str, Any] | None = None
    """The optimizer's keyword arguments on which memory depends, such as ``{rank = 128}``; absent: its defaults."""
    activation_checkpointing: Literal["none", "full", "selective"] = "none"
    """Activations that are recomputed in the backward pass."""
    activation_offload: bool = False
    """Saved activations go to host memory."""
    trainable: list[str] | None = None
    """Patterns of the names of parameters that train (``trainable.py``); absent: all, or with [lora] the adapters."""
    trainable_parameters: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Number of parameters that train, where the running program reports it; it takes precedence over ``trainable``."""
    optimizer_in_backward: bool = False
    """Each gradient is applied and freed as it appears."""
    compile: bool = False
    """torch.compile is used."""
    loss: Literal["full", "chunked", "fused-linear", "log-probs", "fused-log-probs", "divergence"] = "full"
    """Implementation of the loss on the logits.

    ``log-probs``: log-probabilities of the given tokens, from all logits (DPO, GRPO); ``fused-log-probs``: of one
    example at a time (Liger-Kernel); ``divergence``: between all logits of student and teacher (GKD).
    """
    loss_length: Positive | None = None
    """Tokens at the end of each sequence whose logits are computed, such as the completion's; absent: all."""
    reference_pass: bool = False
    """A pass without gradients (the reference's) runs while what the forward pass saved exists."""
    mode: Literal["train", "inference"] = "train"
    """``inference``: no gradients, no optimizer."""

    def __post_init__(self) -> None:
        """Check the patterns and the optimizer's options.

        Raises:
            ValueError: a pattern is empty, or an option does not exist or has another type.
        """
        if self.trainable is not None:
            check_patterns(self.trainable)
        if self.optimizer_options is not None and self.optimizer_class is None:
            check_options(self.optimizer_options)

    @property
    def optimizer_class(self) -> str | None:
        """``module:Class`` if the optimizer is a class rather than a row of the table."""
        return self.optimizer if ":" in self.optimizer else None


class Lora(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Low-rank adapters over frozen, perhaps quantized, weights."""

    rank: Positive = 16
    """Rank of the adapter matrices."""
    targets: list[str] | Literal["all-linear"] = field(default_factory=lambda: ["q_proj", "v_proj"])
    """Names of the adapted linear layers, or ``all-linear``."""
    quantization: Literal["none", "nf4", "nf4-double", "int8"] = "none"
    """Storage format of the frozen linear weights."""


class OtherModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model that is held in memory beside the trained one, with frozen weights: no gradients, no optimizer state."""

    role: Literal["reference", "teacher", "reward", "critic", "ema", "other"] = "other"
    """What it is for. ``ema``: a moving average of the trained model's weights."""
    id: str | None = None
    """As ``model.id``; absent: a model like the trained one."""
    config: dict[str, Any] | None = None
    """The fields of a Hugging Face config.json, in place of ``id``."""
    task: Task | None = None
    """The head on top of the model; absent: the trained model's."""
    dtype: Literal["fp32", "bf16", "fp16"] | None = None
    """dtype of its weights; absent: that of the trained model's weights."""
    quantization: Literal["none", "nf4", "nf4-double", "int8"] = "none"
    """Storage format of its linear weights."""
    sharded: bool = False
    """The job's sharding of weights (FSDP, ZeRO 3) applies to it."""
    on_gpu: bool = True
    """False: it is kept in host memory."""
    count: Positive = 1
    """Number of such models."""
    forward: bool | None = None
    """Its forward pass runs in each step; absent: true, except for ``ema``."""

    @property
    def runs_forward(self) -> bool:
        """True if its forward pass runs in each step."""
        return self.role != "ema" if self.forward is None else self.forward


class Inference(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a served model, for ``training.mode = "inference"``.

    ``training.micro_batch`` is the number of concurrent sequences, ``training.sequence_length`` their maximum length.
    """

    engine: Literal["transformers", "vllm"] = "transformers"
    """The engine whose cache and buffers apply."""
    weights: Literal["auto", "fp8", "int8", "int4"] = "auto"
    """Storage format of the linear layers' weights (``int4``: AWQ or GPTQ); ``auto``: the compute dtype."""
    cache_dtype: Literal["auto", "fp8"] = "auto"
    """dtype of keys and values; ``auto``: the compute dtype."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """vLLM: share of the GPU's total that it takes; the part that weights and activations leave is cache."""
    prefill_tokens: Positive | None = None
    """vLLM: maximum tokens of one step (``max_num_batched_tokens``); absent: the default for the GPU."""


class Rollout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Text that the model generates during training, in the training process itself or through vLLM on its GPUs.

    A vLLM server on other GPUs takes none of this memory, and is no part of the job.
    """

    engine: Literal["transformers", "vllm"] = "transformers"
    """``vllm``: vLLM runs in the training process (TRL's ``colocate``) with a share of the GPU of its own."""
    micro_batches: Positive = 1
    """Micro-batches whose sequences a rank generates at once (TRL's ``steps_per_generation``)."""
    prompt_length: Positive | None = None
    """Tokens of a prompt, which run at once; absent: what ``training.loss_length`` leaves of a sequence."""
    gather_weights: bool = True
    """ZeRO 3: the whole weights are gathered while text is generated (TRL's ``ds3_gather_for_generation``)."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.3
    """vLLM: share of the GPU's total that it takes."""
    tensor: Positive = 1
    """vLLM: ranks over which it splits the weights."""
    sleep: bool = False
    """vLLM gives its memory back between rollouts (``vllm_enable_sleep_mode``)."""


class Parallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parallelism: the ranks over which the job is split, and the way it is split."""

    strategy: StrategyName = "none"
    """Data parallelism and its sharding."""
    data_shard: Positive = 1
    """Ranks that share one copy of the sharded states (FSDP, ZeRO)."""
    data_replicate: Positive = 1
    """Copies over which gradients are averaged (DDP's world, HSDP's outer dimension)."""
    tensor: Positive = 1
    """Tensor-parallel ranks."""
    sequence_parallel: bool = False
    """Norms and the residual stream are split over the tensor-parallel ranks too."""
    tensor_plan: str | None = None
    """``module:attribute``: styles by module, or a function of the model that returns them; absent: the model's own."""
    pipeline: Positive = 1
    """Pipeline stages."""
    context: Positive = 1
    """Ranks over which each sequence is split."""
    expert: Positive = 1
    """Ranks over which the experts are split; they are data-parallel ranks too."""
    reshard_after_forward: bool = True
    """FSDP: parameters are freed after the forward pass and gathered again for the backward pass."""
    fsdp_units: Literal["blocks", "model"] | None = None
    """FSDP gathers each block at once (the rest with the root), or the whole model; absent: as the framework does."""
    reduce_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """dtype in which gradients are reduced."""
    cpu_offload: Literal["none", "optimizer", "all"] = "none"
    """States that are kept in host memory."""
    sharding: Literal["full", "grad_op", "hybrid", "none", "optim", "optim_grads", "optim_grads_params"] = "full"
    """Megatron-FSDP: none, optim, optim_grads, optim_grads_params; FSDP1: full, grad_op, hybrid."""
    double_buffer: bool = False
    """Megatron-FSDP keeps its communication buffers between steps."""
    load_on_rank_zero: bool = False
    """FSDP: only rank 0 of a machine loads the checkpoint (accelerate's ``cpu_ram_efficient_loading``)."""

    def __post_init__(self) -> None:
        """Raise ValueError, which msgspec reports with the key, for more ranks than there are GPUs anywhere."""
        sizes = {name: getattr(self, name) for name in _DIMENSIONS}
        if max(self.world_size, self.expert) > MAX_GPUS:
            product = " x ".join(f"{name} {size:,}" for name, size in sizes.items() if size > 1)
            raise ValueError(f"{product} is more GPUs than any cluster has (at most {MAX_GPUS:,})")

    @property
    def data_ranks(self) -> int:
        """Ranks with different data: data_shard x data_replicate."""
        return self.data_shard * self.data_replicate

    @property
    def world_size(self) -> int:
        """GPUs that the job needs; expert parallelism reuses the data-parallel ones."""
        return self.data_ranks * self.tensor * self.pipeline * self.context


class Software(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Versions of libraries on which memory depends; absent: the latest. ``version_rules`` has the rules."""

    torch: Version | None = None
    cuda: Version | None = None
    """Version of the toolkit that torch was built with."""
    transformers: Version | None = None
    bitsandbytes: Version | None = None
    litgpt: Version | None = None
    torchtitan: Version | None = None
    trl: Version | None = None
    module_loading: Literal["lazy", "eager"] | None = None
    """``CUDA_MODULE_LOADING``; absent: the default of the versions."""
    cublas_workspace: Annotated[str, Meta(pattern=r"^(:[0-9]{1,9}:[0-9]{1,9}){1,9}$")] | None = None
    """``CUBLAS_WORKSPACE_CONFIG``, such as ``:4096:8``; absent: the GPU's default."""


class Uncertainties(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a range allows for, by components of a budget: missing (``less``), twice as large (``more``), or both."""

    weights: UncertaintyDirection = "no"
    gradients: UncertaintyDirection = "no"
    optimizer: UncertaintyDirection = "no"
    activations: UncertaintyDirection = "no"
    logits: UncertaintyDirection = "no"
    communication: UncertaintyDirection = "no"


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The GPU that the job is planned for."""

    gpu: str | None = None
    """Name in the GPU catalogue; absent: this machine's GPUs."""


class Run(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Requirements of a run beside the GPUs: no estimate depends on them; the preflight checks do."""

    output_dir: str | None = None
    """Folder for checkpoints; relative to the folder in which the job is started."""
    save_total_limit: Positive | None = None
    """Maximum number of checkpoints that are kept; absent: all."""
    logging_dir: str | None = None
    """Folder for logs; absent: ``output_dir``."""
    report_to: list[str] = field(default_factory=list)
    """Targets for metrics, by transformers' names: wandb, tensorboard, mlflow, ..."""
    inference_endpoint: str | None = None
    """URL of an inference service that the run calls, to judge or to generate text."""
    inference_key: EnvironmentName = "NSS_INFERENCE_KEY"
    """The environment variable with the key to that service."""
    required_environment: list[EnvironmentName] = field(default_factory=list)
    """Other environment variables that the run needs."""


class Job(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A training job, complete enough to estimate its memory."""

    name: str | None = None
    """Name for people."""
    model: ModelSpec = field(default_factory=ModelSpec)
    training: Training = field(default_factory=Training)
    lora: Lora | None = None
    """Absent: full fine-tuning."""
    inference: Inference | None = None
    """Absent: transformers' own generation."""
    rollout: Rollout | None = None
    """Absent: training generates no text."""
    other_models: list[OtherModel] = field(default_factory=list)
    """Models held beside the trained one: references, teachers, moving averages."""
    parallel: Parallel = field(default_factory=Parallel)
    target: Target = field(default_factory=Target)
    software: Software = field(default_factory=Software)
    unsure: Uncertainties = field(default_factory=Uncertainties)
    run: Run = field(default_factory=Run)

    @property
    def label(self) -> str:
        """The name, else the model's name, else ``job``."""
        return self.name or (self.model.id or "").rstrip("/").rpartition("/")[2] or "job"

    @property
    def served_by_vllm(self) -> bool:
        """True if vLLM runs the model, with as much cache as the GPU has room for."""
        return self.training.mode == "inference" and self.inference is not None and self.inference.engine == "vllm"

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step over all ranks."""
        return self.training.micro_batch * self.training.gradient_accumulation * self.parallel.data_ranks
