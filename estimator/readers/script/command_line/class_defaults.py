"""Defaults of the classes that parsers fill from the command line: TrainingArguments, TRL's configurations and models.

Only those on which scripts base a choice, or which they pass on to a model.
"""

from collections.abc import Mapping
from typing import Any

from ...source.versions import transformers_defaults
from ...trl.defaults import argument_defaults, trl_defaults
from ...trl.methods import method_of_class

_TRAINING: Mapping[str, Any] = {
    **dict.fromkeys(("do_train", "do_eval", "do_predict", "fp16", "bf16", "torch_compile", "use_cpu", "tf32"), False),
    **dict.fromkeys(("gradient_checkpointing", "push_to_hub", "overwrite_output_dir", "use_liger_kernel"), False),
    **dict.fromkeys(("resume_from_checkpoint", "deepspeed", "gradient_checkpointing_kwargs", "hub_token"), None),
    "seed": 42,
    "max_steps": -1,
    "num_train_epochs": 3.0,
    "fsdp": [],
    "predict_with_generate": False,
}
_MODEL: Mapping[str, Any] = {
    **dict.fromkeys(("use_dora", "trust_remote_code"), False),
    "lora_r": 16,
    "lora_target_modules": None,
    "lora_modules_to_save": None,
    "model_revision": "main",
}
"""Defaults of TRL's ModelConfig, beside those that the readers of TRL know."""


def class_defaults(name: str, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return the defaults of a class by its name."""
    if name == "ModelConfig":
        return {**_MODEL, **argument_defaults(versions)}
    found = {**_TRAINING, **_values(transformers_defaults(versions), *_SIZES)}
    method = method_of_class(name)
    if method is not None:
        own = trl_defaults(method.name, versions)
        found.update(_values(own, *own))
        found.update(argument_defaults(versions))
        found["bf16"] = found.get("bf16_unless_fp16", False)
    return found


_SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")


def _values(layer: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: layer[name].value for name in names if name in layer}
