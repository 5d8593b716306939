"""Defaults of training libraries, on which memory depends: what each does where nothing is set, with its source.

A job's ``"auto"`` stands for these values (``job.settled``), and readers of launch lines start from them.
"""

from collections.abc import Mapping

from msgspec import Struct

from ...common.library_versions import older

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
    oldest: tuple[str, tuple[tuple[str, tuple[int, ...]], ...]] = ("", ())
    """The value before that, and the versions before which it was so."""


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
        oldest=("adamw-hf", (("transformers", (4, 32)),)),
        source="training_args.py (optim: adamw_torch_fused with torch 2.8; adamw_hf until 4.31.0)",
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
    """Return a library's default for a setting; a version that is not stated counts as the latest.

    Args:
        library: see ``Default.library``.
        key: of the setting.
        versions: by the library's name, as far as they are known.
    """
    row = _BY_NAME.get((library, key))
    if row is None:
        return _PLAIN[key]
    for value, before in (row.oldest, (row.older, row.before)):
        if any(older(versions.get(name), *version) for name, version in before):
            return value
    return row.value
