"""Names of transformers' and TRL's own settings, for writing changes down; tools built on them share some.

Only names that stand for one job key and nothing else; the readers understand many more.
"""

from collections.abc import Mapping
from typing import Any

from .tool_record import ToolKey, ToolKeys

OPTIMIZER_NAMES = {
    "adamw-fused": "adamw_torch_fused",
    "adamw-8bit": "adamw_bnb_8bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
}
"""transformers' names of optimizers."""
CHECKPOINTING_SWITCH: Mapping[Any, Any] = {"full": True, "none": False}
"""Activation checkpointing as a tool writes it that switches it on or off."""


def batch_keys(*, batch: str, length: str, accumulation: str = "gradient_accumulation_steps") -> dict[str, ToolKey]:
    """Return the settings of micro-batch, accumulation and sequence length."""
    return {
        "training.micro_batch": ToolKey(name=batch),
        "training.gradient_accumulation": ToolKey(name=accumulation),
        "training.sequence_length": ToolKey(name=length),
    }


_TRL = {
    **batch_keys(batch="per_device_train_batch_size", length="max_length"),
    "training.activation_checkpointing": ToolKey(name="gradient_checkpointing", values=CHECKPOINTING_SWITCH),
    "training.activation_offload": ToolKey(name="activation_offloading"),
    "training.optimizer": ToolKey(name="optim", values=OPTIMIZER_NAMES),
    "training.loss": ToolKey(name="use_liger_kernel", values={"fused-linear": True}),
    "model.attention": ToolKey(name="attn_implementation"),
    "training.precision": ToolKey(name="dtype", values={"bf16": "bfloat16"}),
    "lora.rank": ToolKey(name="lora_r", also={"use_peft": True}),
    "lora.targets": ToolKey(name="lora_target_modules"),
    "lora.quantization": ToolKey(name="load_in_4bit", values={"nf4-double": True}, also={"use_bnb_nested_quant": True}),
}
_IN_TRAINING_ARGUMENTS = (
    *("training.micro_batch", "training.gradient_accumulation", "training.activation_checkpointing"),
    *("training.optimizer", "training.loss"),
)
TRAINER_KEYS: Mapping[str, ToolKeys] = {
    "TRL": ToolKeys(settings=_TRL),
    "transformers": ToolKeys(settings={key: _TRL[key] for key in _IN_TRAINING_ARGUMENTS}),
}
"""Programs that are read without a ``Tool`` of their own, by the name that ``tool_of_line`` has for them."""
