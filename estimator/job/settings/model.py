"""The model of a job, its adapters, and the models that are held in memory beside it."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from ..task import Task
from .value_types import Attention, Dtype, Positive, Quantization


class ModelSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The model: by name or folder (``id``), or by its Hugging Face ``config`` written out."""

    id: str | None = None
    """Built-in name, hub id (in the local cache), folder with a config.json, or ``module:callable`` of your own."""
    task: Task = "causal-lm"
    """Purpose of the head on top of the model."""
    num_labels: Positive | None = None
    """Number of outputs of a classification head; absent: as many as the config says, else 2."""
    attention: Attention = "sdpa"
    """Implementation of attention, as transformers names it."""
    config: dict[str, Any] | None = None
    """The fields of a Hugging Face config.json, in place of ``id``."""
    trust_remote_code: bool = False
    """Run the Python code in the model's folder, in the worker process."""
    code_folder: str | None = None
    """Folder from which ``module:callable`` is imported; absent: the job file's folder, else the current one."""


class Lora(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Low-rank adapters over frozen, perhaps quantized, weights."""

    rank: Positive = 16
    """Rank of the LoRA matrices."""
    targets: list[str] | Literal["all-linear"] = field(default_factory=lambda: ["q_proj", "v_proj"])
    """Names of the linear layers that get adapters, or ``all-linear``."""
    quantization: Quantization = "none"
    """Format in which the frozen linear weights are stored: 4-bit (``nf4``, ``nf4-double``) for QLoRA, or 8-bit.

    ``int4`` is GPTQ or AWQ. A checkpoint that is stored in one of these formats has it where this is ``none``.
    """
    dropout: Annotated[float, Meta(ge=0, lt=1)] | None = None
    """Dropout probability of the adapters' input (``lora_dropout``); absent: the framework's default."""
    kbit_preparation: bool | None = None
    """Parameters that are not quantized are cast to fp32 (peft's ``prepare_model_for_kbit_training``); absent: as the
    framework does."""
    adapter_dtype: Dtype | None = None
    """Type of the adapters' weights; absent: the framework's choice."""


class OtherModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model that is held in memory beside the trained one, with frozen weights: no gradients, no optimizer state."""

    role: Literal["reference", "teacher", "reward", "critic", "ema", "other"] = "other"
    """Purpose of the model; ``ema`` is a moving average of the trained model's weights."""
    id: str | None = None
    """The model, as for ``model.id``; absent: a model like the trained one."""
    config: dict[str, Any] | None = None
    """The fields of a Hugging Face config.json, in place of ``id``."""
    task: Task | None = None
    """Purpose of the head on top of the model; absent: the same as the trained model's."""
    dtype: Dtype | None = None
    """Type of its weights; absent: that of the trained model's weights."""
    quantization: Quantization = "none"
    """Format in which its linear weights are stored."""
    sharded: bool = False
    """Shard it as the job's FSDP or ZeRO 3 shards the trained model."""
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
