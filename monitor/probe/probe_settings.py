"""Settings from a process's probe, by transformers' names; they take precedence over settings read elsewhere."""

from collections.abc import Mapping
from typing import Any

from vramtop.estimator.readers.source.settings import Setting

from .probe_reader import ProbeSample

_MODEL = "the running model (probe)"
_TRAINER = "the running Trainer (probe)"
_TRAINER_ARGUMENTS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "optim", "optim_args", "bf16", "fp16"),
    *("gradient_checkpointing", "activation_checkpointing", "torch_compile", "use_liger_kernel", "fsdp"),
    *("fsdp_config", "deepspeed", "max_length", "max_seq_length", "packing", "loss_type", "auto_find_batch_size"),
)
"""The trainer's arguments that memory depends on."""


def settings_from_probe(sample: ProbeSample | None) -> dict[str, Setting]:
    """Return the trainer's arguments and the model's facts; empty before training begins."""
    if sample is None:
        return {}
    trainer = sample.trainer or {}
    settings = {
        name: Setting(value=trainer[name], origin=f"{_TRAINER}: {name}")
        for name in _TRAINER_ARGUMENTS
        if trainer.get(name) not in (None, [], {}, "")
    }
    if sample.model:
        settings |= _model_settings(sample.model)
    return settings


def _model_settings(model: Mapping[str, Any]) -> dict[str, Setting]:
    values: dict[str, Any] = {}
    if dtype := _loaded_dtype(model.get("parameters") or {}):
        values["dtype"] = dtype
    if model.get("attention") in ("sdpa", "eager", "flash_attention_2", "flash_attention_3"):
        values["attn_implementation"] = model["attention"]
    if isinstance(model.get("gradient_checkpointing"), bool):
        values["activation_checkpointing"] = model["gradient_checkpointing"]
    if isinstance(model.get("config"), Mapping) and model["config"].get("model_type"):
        values["running_model_config"] = model["config"]
    lora = model.get("lora")
    if lora and lora.get("r"):
        values |= {"use_peft": True, "lora_r": lora["r"]}
        if lora.get("target_modules"):
            values["lora_target_modules"] = lora["target_modules"]
    return {name: Setting(value=value, origin=_MODEL) for name, value in values.items()}


def _loaded_dtype(parameters: Mapping[str, int]) -> str | None:
    """Return the dtype of most of the weights; quantized ones (``uint8 frozen``) do not show how they were loaded."""
    floating = {key: count for key, count in parameters.items() if "float" in key}
    return max(floating, key=lambda key: floating[key]).partition(" ")[0] if floating else None
