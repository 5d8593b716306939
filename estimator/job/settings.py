"""The settings of a job: its tables as records, with one sentence on each field."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from .rules.frameworks import FRAMEWORKS
from .rules.library_defaults import AUTO
from .rules.optimizers.table import OPTIMIZERS, check_options
from .rules.strategies import PRECISIONS, STRATEGIES
from .trainable import check_patterns

Task = Literal[
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "feature-extraction",
    "multiple-choice",
    "next-sentence-prediction",
    "pretraining",
    "text-encoding",
    "table-question-answering",
    "image-text-to-text",
    "multimodal-lm",
    "visual-question-answering",
    "document-question-answering",
    "image-classification",
    "zero-shot-image-classification",
    "masked-image-modeling",
    "image-segmentation",
    "semantic-segmentation",
    "instance-segmentation",
    "universal-segmentation",
    "object-detection",
    "zero-shot-object-detection",
    "depth-estimation",
    "normal-estimation",
    "pointmap-estimation",
    "pose-estimation",
    "keypoint-detection",
    "keypoint-matching",
    "mask-generation",
    "image-matting",
    "image-to-image",
    "video-classification",
    "text-recognition",
    "table-recognition",
    "speech-seq2seq",
    "ctc",
    "rnnt",
    "tdt",
    "audio-classification",
    "audio-frame-classification",
    "audio-xvector",
    "audio-tokenization",
    "text-to-spectrogram",
    "text-to-waveform",
    "time-series-prediction",
    "decision",
    "backbone",
]
"""The heads of transformers' auto classes: ``causal-lm`` is ``AutoModelForCausalLM``."""

Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""No count of sequences, tokens or ranks reaches the maximum, and sums below it stay exact."""
Version = Annotated[str, Meta(pattern=r"^v?\d+(\.\d+)*", max_length=64)]
EnvironmentName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
Attention = Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"]
Dtype = Literal["fp32", "bf16", "fp16"]
Quantization = Literal["none", "nf4", "nf4-double", "int8", "int4"]
FusedKernel = Literal["norm", "mlp", "rope", "cross-entropy"]

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
            pattern=rf"^({'|'.join((AUTO, *OPTIMIZERS))}|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)$",
            max_length=200,
            extra={"choices": (AUTO, *OPTIMIZERS)},
        ),
    ]
    _PRECISIONS = (AUTO, *PRECISIONS)
    PrecisionName = Literal[_PRECISIONS]
    StrategyName = Literal[tuple(STRATEGIES)]


class ModelSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The model: by name or folder (``id``), or by its Hugging Face ``config`` written out."""

    id: str | None = None
    """Built-in name, hub id, folder with a config.json, or ``module:callable`` of your own."""
    task: Task = "causal-lm"
    """Head on top of the model."""
    num_labels: Positive | None = None
    """Outputs of a classification head; absent: the config's, else 2."""
    attention: Attention = "sdpa"
    """Attention kernel, as transformers names it."""
    config: dict[str, Any] | None = None
    """The fields of a Hugging Face config.json, in place of ``id``."""
    trust_remote_code: bool = False
    """Run the Python code in the model's folder, in the worker."""
    code_folder: str | None = None
    """Folder of ``module:callable``; absent: the job file's, else the current one."""


class Lora(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Low-rank adapters over frozen, perhaps quantized, weights."""

    rank: Positive = 16
    """Rank of the LoRA matrices."""
    targets: list[str] | Literal["all-linear"] = field(default_factory=lambda: ["q_proj", "v_proj"])
    """Linear layers that get adapters."""
    quantization: Quantization = "none"
    """Format of the frozen linear weights: 4-bit (``nf4``, ``nf4-double``) for QLoRA, or 8-bit.

    ``int4`` is GPTQ or AWQ. With ``none``, a quantized checkpoint keeps its format.
    """
    quantize_experts: bool = False
    """Experts that are fused into one tensor are quantized too (axolotl's ``quantize_moe_experts``)."""
    dropout: Annotated[float, Meta(ge=0, lt=1)] | None = None
    """Dropout of the adapters' input (``lora_dropout``); absent: the framework's."""
    kbit_preparation: bool | None = None
    """Cast unquantized parameters to fp32 (peft's ``prepare_model_for_kbit_training``); absent: as the framework."""
    adapter_dtype: Dtype | None = None
    """Type of the adapters' weights; absent: the framework's."""
    autocast: bool | None = None
    """Adapters run under autocast over 16-bit weights (the Trainer's ``bf16``); absent: after ``kbit_preparation``."""


class OtherModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model with frozen weights, held in memory beside the trained one."""

    role: Literal["reference", "teacher", "reward", "critic", "ema", "other"] = "other"
    """Purpose of the model; ``ema`` is a moving average of the trained model's weights."""
    id: str | None = None
    """Model, as ``model.id``; absent: a model like the trained one."""
    config: dict[str, Any] | None = None
    """The fields of a Hugging Face config.json, in place of ``id``."""
    task: Task | None = None
    """Its head; absent: as the trained model's."""
    dtype: Dtype | None = None
    """Type of its weights; absent: as the trained model's."""
    quantization: Quantization = "none"
    """Format of its linear weights."""
    sharded: bool = False
    """The job's FSDP or ZeRO 3 shards it too."""
    on_gpu: bool = True
    """Keep it on the GPU; false: in CPU RAM."""
    count: Positive = 1
    """Number of such models."""
    forward: bool | None = None
    """Its forward pass runs in each step; absent: true, except for ``ema``."""

    @property
    def runs_forward(self) -> bool:
        """True if its forward pass runs in each step."""
        return self.role != "ema" if self.forward is None else self.forward


UncertaintyDirection = Literal["no", "less", "more", "either"]


MAX_CONF = 500
"""Characters of the longest settings of torch's allocator that are read."""


class Software(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Versions of libraries on which memory depends; absent: the latest."""

    torch: Version | None = None
    """Version of torch."""
    cuda: Version | None = None
    """Version of the CUDA toolkit that torch was built with."""
    transformers: Version | None = None
    """Version of transformers."""
    bitsandbytes: Version | None = None
    """Version of bitsandbytes."""
    peft: Version | None = None
    """Version of peft."""
    litgpt: Version | None = None
    """Version of LitGPT."""
    torchtitan: Version | None = None
    """Version of torchtitan."""
    megatron_fsdp: Version | None = None
    """Version of megatron-fsdp; absent: that of the time of the stated torch."""
    trl: Version | None = None
    """Version of TRL."""
    vllm: Version | None = None
    """Version of vLLM."""
    sglang: Version | None = None
    """Version of SGLang."""
    module_loading: Literal["lazy", "eager"] | None = None
    """When CUDA loads kernels (``CUDA_MODULE_LOADING``); absent: the versions' default."""
    cublas_workspace: Annotated[str, Meta(pattern=r"^(:[0-9]{1,9}:[0-9]{1,9}){1,9}$")] | None = None
    """cuBLAS workspace (``CUBLAS_WORKSPACE_CONFIG``), such as ``:4096:8``; absent: the GPU's default."""
    allocator_conf: Annotated[str, Meta(max_length=MAX_CONF)] | None = None
    """Settings of torch's allocator (``PYTORCH_CUDA_ALLOC_CONF``); absent: those in vramtop's own environment."""


class Uncertainties(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Errors that a range allows for, by component: missing (``less``), twice as large (``more``), or both."""

    weights: UncertaintyDirection = "no"
    """Possible error of the weights."""
    gradients: UncertaintyDirection = "no"
    """Possible error of the gradients."""
    optimizer: UncertaintyDirection = "no"
    """Possible error of the optimizer state."""
    activations: UncertaintyDirection = "no"
    """Possible error of the activations."""
    logits: UncertaintyDirection = "no"
    """Possible error of logits and loss."""
    communication: UncertaintyDirection = "no"
    """Possible error of the communication buffers; ``more``: sharded weights and their gradients whole on each GPU."""
    older: dict[str, Any] = field(default_factory=dict)
    """Settings that differ with older libraries, where the versions are not known: the range holds both jobs."""
    between: dict[str, list[int]] = field(default_factory=dict)
    """Other sizes that settings may have which nothing states: the range holds the job at each."""
    script: str | None = None
    """Script from which the settings were read without running it; absent: none was."""

    def directions(self) -> dict[str, str]:
        """Return the components that may differ, each with its direction."""
        names = ("weights", "gradients", "optimizer", "activations", "logits", "communication")
        return {name: getattr(self, name) for name in names if getattr(self, name) != "no"}


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The GPU that the job is planned for."""

    gpu: str | None = None
    """Its name in the catalogue; absent: this machine's GPUs."""
    devices: list[str] = field(default_factory=list)
    """GPUs of this machine that the job uses, by UUID; empty: any."""


class Program(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A program of the user's: what it allocates in a rehearsal (`--rehearse`) is the budget."""

    command: str = ""
    """Command that starts it, as in a shell."""
    folder: str | None = None
    """Folder in which it starts; absent: the current one."""
    python: str | None = None
    """Interpreter that runs it; absent: the command's."""
    gpus: Positive = 1
    """GPUs that it finds; a launcher that starts more processes says so itself."""
    steps: Positive = 3
    """Steps of each optimizer, the first included."""
    timeout: Annotated[float, Meta(gt=0)] = 600
    """Seconds after which it is ended."""
    offline: bool = False
    """It has no network."""
    data: str | None = None
    """``synthetic``: stand-ins for missing data sets; absent: such a program fails.

    Sizes may follow: ``synthetic,items=1000,words=2048,image=1024x1024,seconds=30,columns=question+answer``.
    """
    kept: str | None = None
    """Name of the only saved rehearsal that counts."""
    file: str | None = None
    """Job file that the program was read from; absent: it was typed."""

    @property
    def words(self) -> list[str]:
        """The words of the command; empty: it is none."""
        try:
            return shlex.split(self.command)
        except ValueError:  # a quotation without an end
            return []


class Run(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Requirements that the preflight checks compare; no estimate depends on them."""

    output_dir: str | None = None
    """Folder for checkpoints."""
    save_total_limit: Positive | None = None
    """Most checkpoints that are kept; absent: all."""
    logging_dir: str | None = None
    """Folder for logs; absent: ``output_dir``."""
    report_to: list[str] = field(default_factory=list)
    """Services for metrics, as transformers names them."""
    inference_endpoint: str | None = None
    """URL of an inference service that the run calls."""
    inference_key: EnvironmentName = "NSS_INFERENCE_KEY"
    """Variable with the key to that service."""
    required_environment: list[EnvironmentName] = field(default_factory=list)
    """Other variables that the run needs."""


DeviceMap = Literal["auto", "balanced", "balanced_low_0", "sequential"] | dict[str, int | str]
"""A rule by which accelerate places modules, or the device of each module: a GPU's number, ``cpu`` or ``disk``."""
_DIMENSIONS = ("data_shard", "data_replicate", "tensor", "pipeline", "context", "expert")
MAX_GPUS = 2**20
"""The largest clusters that are published have some 100,000 GPUs (Meta 24,576 twice, 2024; xAI 200,000, 2025)."""


class Parallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parallelism: the ranks over which the job is split, and the way it is split."""

    strategy: StrategyName = "none"
    """Data parallelism: copies of the model (ddp), or shards of it (FSDP, ZeRO)."""
    data_shard: Positive = 1
    """GPUs that share one copy of what FSDP or ZeRO shards."""
    data_replicate: Positive = 1
    """Copies of the model: DDP's GPUs, or the outer dimension of HSDP."""
    tensor: Positive = 1
    """GPUs over which each layer is split (tensor parallelism)."""
    sequence_parallel: bool = False
    """Tensor parallelism splits norms and the residual stream too."""
    tensor_plan: str | dict[str, str] | None = None
    """Tensor-parallel plan of your own, as ``module:attribute``; absent: the model's own.

    Also a table with a style of transformers' plans for each module, layer numbers as ``*``. The attribute is a dict
    of styles or a function that returns one; the closed form counts the model's own plan.
    """
    pipeline: Positive = 1
    """Number of pipeline stages."""
    context: Positive = 1
    """GPUs over which each sequence is split (context parallelism)."""
    expert: Positive = 1
    """GPUs over which the experts are split; they are data-parallel GPUs too."""
    reshard_after_forward: bool = True
    """FSDP frees gathered parameters after the forward pass, and gathers them again."""
    fsdp_units: Literal["blocks", "model"] | None = None
    """Unit that FSDP gathers at once; absent: the framework's."""
    param_dtype: Dtype | None = None
    """Type in which FSDP2 gathers and computes; absent: the precision's."""
    fsdp_min_unit_parameters: Positive | None = None
    """FSDP1 makes units of at least so many parameters (size-based wrapping), not of blocks."""
    fsdp_wrap_classes: list[str] | None = None
    """Classes of modules that become FSDP units; absent: the model's blocks."""
    fsdp_backward_prefetch: Literal["pre", "post", "none"] | None = None
    """FSDP1 gathers the next unit before or after this one's gradients; absent: pre."""
    limit_all_gathers: bool | None = None
    """FSDP1 runs ahead of the GPU by two gathered units at most; absent: true."""
    original_parameters: bool | None = None
    """FSDP1 keeps the model's own parameters (``use_orig_params``); absent: true, and false over quantized weights."""
    reduce_dtype: Dtype | None = None
    """Type in which gradients are reduced; absent: fp32, and the compute type under accelerate's FSDP.

    Megatron-FSDP outside of Megatron-LM reduces in the weights' type.
    """
    gradient_dtype: Dtype | None = None
    """Type in which gradients accumulate (DeepSpeed, Megatron-FSDP); absent: the strategy's."""
    sync_every_micro_batch: bool | None = None
    """Reduce gradients after every micro-batch, not only the last; absent: as the framework."""
    gradient_as_bucket_view: bool = False
    """DDP's gradients are views of its buckets."""
    cpu_offload: Literal["none", "optimizer", "all"] = "none"
    """States in CPU RAM: slower."""
    sharding: Literal[
        "full", "grad_op", "hybrid", "hybrid_grad_op", "none", "optim", "optim_grads", "optim_grads_params"
    ] = "full"
    """Sharded states: full, grad_op, hybrid, hybrid_grad_op or none for FSDP1; Megatron-FSDP has its own names."""
    double_buffer: bool = False
    """Megatron-FSDP keeps its communication buffers between steps."""
    outer_sharding: Literal["none", "optim"] = "none"
    """Megatron-FSDP shards optimizer states over ``data_replicate`` too."""
    main_weights: bool | None = None
    """Megatron-FSDP keeps an fp32 copy of the weights (``main_params_dtype``); absent: under mixed precision."""
    communication_unit: Positive | None = None
    """Megatron-FSDP gathers and reduces about that many elements ahead (``suggested_communication_unit_size``)."""
    load_on_rank_zero: bool = False
    """Only a machine's first rank loads the checkpoint (accelerate's ``cpu_ram_efficient_loading``)."""
    device_map: DeviceMap | None = None
    """Place modules on ``pipeline`` GPUs of one process, as transformers' ``device_map``.

    ``auto`` and ``balanced`` fill GPUs evenly, ``balanced_low_0`` leaves room on the first, ``sequential`` fills one
    after the other; the rest goes to CPU RAM, then to the disk. A table names the device of each module: a GPU's
    number, ``cpu`` or ``disk``.
    """
    max_memory: dict[str, int | str] | None = None
    """Most that ``device_map`` places on a device, as ``{0 = "20GiB", cpu = "60GiB"}``; absent: what is free on it."""

    def __post_init__(self) -> None:
        """Raise ValueError, which msgspec reports with the key, for more ranks than there are GPUs anywhere.

        Also for a device map beside a strategy: accelerate trains such a model in one process only.
        """
        sizes = {name: getattr(self, name) for name in _DIMENSIONS}
        if max(self.world_size, self.expert) > MAX_GPUS:
            product = " x ".join(f"{name} {size:,}" for name, size in sizes.items() if size > 1)
            raise ValueError(f"{product} is more GPUs than any cluster has (at most {MAX_GPUS:,})")
        if self.device_map is not None and self.world_size > self.pipeline:
            raise ValueError(
                "device_map runs in one process: of the parallel sizes, only pipeline may be larger than 1"
            )

    @property
    def without_tables(self) -> "Parallel":
        """These settings without tables, so that they can be hashed; a device map makes no pipeline."""
        if self.device_map is None and self.max_memory is None and self.tensor_plan is None:
            return self
        pipeline = 1 if self.device_map is not None else self.pipeline  # one process, without a schedule
        return replace(self, device_map=None, max_memory=None, tensor_plan=None, pipeline=pipeline)

    @property
    def data_ranks(self) -> int:
        """Ranks with different data: data_shard x data_replicate."""
        return self.data_shard * self.data_replicate

    @property
    def world_size(self) -> int:
        """GPUs that the job needs; expert parallelism reuses the data-parallel ones."""
        return self.data_ranks * self.tensor * self.pipeline * self.context

    @property
    def processes(self) -> int:
        """Processes of the job: one for each GPU, and with ``device_map`` one for all."""
        return self.world_size if self.device_map is None else 1


class Inference(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a served model, for ``training.mode = "inference"``.

    ``training.micro_batch`` is the number of concurrent sequences, ``training.sequence_length`` their maximum length.
    """

    engine: Literal["transformers", "vllm", "sglang"] = "transformers"
    """Engine that serves the model."""
    weights: Literal["auto", "fp8", "int8", "int4", "nf4", "nf4-double", "mxfp4"] = "auto"
    """Format of the linear weights (``int4``: AWQ or GPTQ); ``auto``: as the checkpoint stores them."""
    cache_dtype: Literal["auto", "fp8"] = "auto"
    """Type of the key-value cache; ``auto``: the type of computation."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Share of the GPU that vLLM or SGLang takes (``mem_fraction_static``); what weights leave is cache."""
    cache_bytes: Annotated[int, Meta(ge=1, le=2**50)] | None = None
    """vLLM: size of the key-value cache in bytes, in place of a share (``kv_cache_memory_bytes``)."""
    prefill_tokens: Positive | None = None
    """vLLM: most tokens in one step (``max_num_batched_tokens``); absent: its default for the GPU."""
    cuda_graphs: bool = True
    """vLLM: steps are recorded as CUDA graphs, which take memory (off by ``enforce_eager``)."""
    sleep: bool = False
    """vLLM: it gives its memory back while it sleeps (``enable_sleep_mode``)."""


class Rollout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Text that the model generates in training, in the training process or through vLLM on its GPUs.

    A vLLM server on other GPUs is no part of the job.
    """

    engine: Literal["transformers", "vllm"] = "transformers"
    """Engine that generates text; ``vllm``: in the training process (TRL's ``colocate``)."""
    micro_batches: Positive = 1
    """Micro-batches whose sequences a rank generates at once (TRL's ``steps_per_generation``)."""
    prompt_length: Positive | None = None
    """Tokens of a prompt; absent: what ``training.loss_length`` leaves of a sequence."""
    gather_weights: bool = True
    """ZeRO 3 gathers whole weights for it (TRL's ``ds3_gather_for_generation``)."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.3
    """vLLM's share of the GPU's memory."""
    tensor: Positive = 1
    """Ranks over which vLLM splits the weights."""
    sleep: bool = False
    """vLLM gives its memory back between rollouts (``vllm_enable_sleep_mode``)."""


class Training(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a training step."""

    framework: FrameworkName = "transformers"
    """Library that runs the training loop."""
    micro_batch: Positive = 1
    """Sequences per GPU in one forward pass."""
    sequence_length: Positive = 2048
    """Tokens per sequence, after truncation or packing."""
    sequences_per_example: Positive = 1
    """Sequences of one example: 2 for a chosen and a rejected one (DPO)."""
    gradient_accumulation: Positive = 1
    """Forward and backward passes per optimizer step."""
    evaluation_batch: Positive | None = None
    """Sequences per GPU and forward pass of evaluation; absent: evaluation is not counted."""
    evaluation_loss: Literal["training", "full"] = "training"
    """Computation of the loss in evaluation: as in training, or from all logits, as Liger-Kernel does by default."""
    precision: PrecisionName = AUTO
    """Type of weights and computation; ``auto``: as the framework does; ``*-mixed``: fp32 weights under autocast.

    ``docs/reference/frameworks.md`` has each framework's default.
    """
    optimizer: OptimizerName = AUTO
    """The optimizer, by name or as ``module:Class``; ``auto``: the framework's."""
    optimizer_options: dict[str, Any] | None = None
    """Its arguments on which memory depends, such as ``{rank = 128}``."""
    activation_checkpointing: Literal["none", "full", "selective"] = "none"
    """Recompute activations in the backward pass: slower, less memory."""
    activation_offload: bool = False
    """Keep saved activations in CPU RAM until the backward pass: slower."""
    trainable: list[str] | None = None
    """Patterns of parameters that train; ``!`` in front freezes; absent: all, or with LoRA the adapters."""
    trainable_parameters: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Number of parameters that train; overrides ``trainable``."""
    optimizer_in_backward: bool = False
    """Apply and free each gradient as soon as it is computed."""
    compile: bool = False
    """The model runs under torch.compile."""
    loss: Literal["full", "chunked", "fused-linear", "unsloth", "log-probs", "fused-log-probs", "divergence"] = "full"
    """Computation of the loss from the logits.

    ``full``: from all logits at once; ``chunked``: from a part at a time; ``fused-linear``: without storing them
    (Liger-Kernel); ``unsloth``: from as many as 4 GiB hold in fp32; ``log-probs``: log-probabilities of the given
    tokens (DPO, GRPO); ``fused-log-probs``: of one example at a time (Liger-Kernel); ``divergence``: between student
    and teacher (GKD).
    """
    fused_kernels: list[FusedKernel] | None = None
    """Parts with fused kernels (Liger-Kernel, Unsloth), which save less; absent: the framework's.

    ``norm``: RMS and layer norms; ``mlp``: the product of a gated MLP; ``rope``: rotary embeddings;
    ``cross-entropy``: the loss, which writes its gradient over the logits. NeMo AutoModel has the first three. An empty
    list: none. Models that Liger-Kernel does not patch stay as they are.
    """
    keep_outputs: bool | None = None
    """A variable keeps the model's outputs through the backward pass; absent: as in the framework."""
    loss_length: Positive | None = None
    """Last tokens of a sequence whose logits are computed, such as the completion; absent: all.

    With an encoder and a decoder: tokens of the targets, which the decoder reads; absent: as many as the encoder reads.
    """
    reference_pass: bool = False
    """A reference model's forward pass runs while activations are held."""
    varying_lengths: bool | None = None
    """Batch lengths differ: neither packed nor padded to one length."""
    mode: Literal["train", "inference"] = "train"
    """``inference``: the model generates text; no gradients, no optimizer."""

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


_Elements = Annotated[int, Meta(ge=0, le=2**53)]
"""DeepSpeed takes 0 as well, for a bucket that holds one parameter at a time."""


class Zero(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """DeepSpeed's ZeRO settings on which memory depends, in elements."""

    reduce_bucket: _Elements | None = None
    """Gradients reduced at a time (``reduce_bucket_size``); absent: 5e8."""
    allgather_bucket: _Elements | None = None
    """Updated weights gathered at a time (``allgather_bucket_size``), stages 1 and 2; absent: 5e8."""
    overlap_comm: bool | None = None
    """A second bucket fills while the first is reduced (``overlap_comm``); absent: in stage 3 only."""
    contiguous_gradients: bool = True
    """Gradients are copied to a bucket as they are produced (``contiguous_gradients``)."""
    prefetch_bucket: _Elements | None = None
    """Weights gathered ahead of use, stage 3 (``stage3_prefetch_bucket_size``); absent: 5e7."""
    max_live_parameters: _Elements | None = None
    """Most weights gathered at once, stage 3 (``stage3_max_live_parameters``); absent: 1e9."""
    max_reuse_distance: _Elements | None = None
    """Weights used again within that many stay gathered, stage 3 (``stage3_max_reuse_distance``); absent: 1e9."""
    persistence_threshold: _Elements | None = None
    """Smaller parameters are never sharded, stage 3 (``stage3_param_persistence_threshold``); absent: 1e5."""
    sub_group: _Elements | None = None
    """Elements stepped at a time, stage 3 (``sub_group_size``); absent: 1e9."""


class Saving(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Contents of a checkpoint, and how ranks put it together."""

    weights: Literal["full", "sharded", "adapters", "none"] | None = None
    """Weights that are saved; absent: the adapters alone with LoRA, else the full model.

    ``full``: gathered on the first rank (FULL_STATE_DICT, ``stage3_gather_16bit_weights_on_model_save``,
    ``save_consolidated``); ``sharded``: each rank saves its shard (SHARDED_STATE_DICT).
    """
    to_cpu: bool = True
    """Move gathered parameters to CPU RAM one at a time; false: they stay on the GPU until all are there."""
    optimizer: bool = False
    """Optimizer states are saved too."""
