"""Versions of the frameworks of a job, and the defaults that depend on them."""

import re
from collections.abc import Mapping

from .settings import Setting

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


def version_tuple(text: str | None) -> tuple[int, ...] | None:
    """``5.2.0.dev0`` as ``(5, 2)``, enough to compare; None when it is not known."""
    numbers = _NUMBER.findall(text or "")
    return (int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0) if numbers else None


def framework_with_version(framework: str, versions: Mapping[str, str]) -> str:
    """``transformers 5.2.0``, or ``transformers (version not known, 5 assumed)``."""
    assumed = {"transformers": "5", "trl": "1.16", "peft": "0.17", "torch": "2.8"}[framework]
    known = versions.get(framework)
    return f"{framework} {known}" if known else f"{framework} (version not known, {assumed} assumed)"


def transformers_defaults(versions: Mapping[str, str]) -> dict[str, Setting]:
    """Defaults of TrainingArguments and ``from_pretrained`` (its ``training_args.py``)."""
    five = (version_tuple(versions.get("transformers")) or (5, 0)) >= (5, 0)
    fused = five and (version_tuple(versions.get("torch")) or (2, 8)) >= (2, 8)
    values = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "optim": "adamw_torch_fused" if fused else "adamw_torch",
        "activation_checkpointing": False,
        "dtype": "auto" if five else "float32",
        "fsdp_version_default": 2 if five else 1,
    }
    return _defaults(values, f"default of {framework_with_version('transformers', versions)}")


def trl_defaults(method: str, versions: Mapping[str, str]) -> dict[str, Setting]:
    """What TRL's configurations change (its ``base_config.py``, ``sft_config.py``, ``model_config.py``).

    SFT computes its loss in chunks by default since TRL 1.7 (huggingface/trl#5846).
    """
    version = version_tuple(versions.get("trl")) or (1, 16)
    values: dict[str, object] = {"activation_checkpointing": True, "bf16_unless_fp16": True}
    if method in ("sft", "dpo", "kto", "reward"):
        values["max_length"] = 1024
    if method == "sft" and version >= (1, 7):
        values["loss_type"] = "chunked_nll"
    if version >= (1, 0):
        values["dtype"] = "float32"
    return _defaults(values, f"default of {framework_with_version('trl', versions)}")


def _defaults(values: Mapping[str, object], origin: str) -> dict[str, Setting]:
    return {name: Setting(value=value, origin=origin, written=False) for name, value in values.items()}
