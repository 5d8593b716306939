"""Tells what tool or library a configuration file was written for, by its names; where they leave it open, says so."""

from pathlib import Path
from typing import Literal

from ..common import InputError
from .tools import all_tools
from .tools.shared import TRAINER_KEYS, ConfigTable, Tool, ToolKeys, has_any

Library = Literal["accelerate", "DeepSpeed", "TRL", "transformers"]
"""Libraries whose files are read without a ``Tool``."""
HINT = "give a job file, a training tool's own configuration, or the launch line after --"
_ACCELERATE = ("distributed_type", "compute_environment", "fsdp_config", "deepspeed_config")
_DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
_MODEL = "model_name_or_path"
_BATCH = "per_device_train_batch_size"
_DATA = ("dataset_name", "dataset_config", "datasets", "dataset_text_field")
_OF_SFT = (
    *("packing", "padding_free", "completion_only_loss", "assistant_only_loss", "dataset_text_field", "eos_token"),
    *("chat_template_path", "packing_strategy", "pad_to_multiple_of"),
)
_OF_OTHER_METHODS = {
    "kto": ("desirable_weight", "undesirable_weight"),
    "grpo": ("num_generations", "max_completion_length", "reward_funcs", "reward_model_name_or_path"),
    "dpo": ("beta", "label_smoothing", "precompute_ref_log_probs", "ref_model_name_or_path", "max_prompt_length"),
}
"""Names that TRL's methods other than SFT have; the first method that has one of a file's names is suggested."""


def tool_of_table(table: ConfigTable, path: Path) -> Tool | Library:
    """Return the tool or the library that a file was written for.

    Raises:
        InputError: it is of no known tool, or its names are those of several.
    """
    tools = [tool for tool in all_tools() if tool.is_config(table)]
    if len(tools) > 1:
        names = " or ".join(tool.name for tool in tools)
        raise InputError(f"{path}: may be a configuration of {names}; give the launch line after --, which tells")
    if tools:
        return tools[0]
    library = _library(table, path)
    if library is None:
        raise InputError(f"{path}: not known as a configuration of a training tool{_likeness(table)}; {HINT}")
    return library


def is_surely_sft(table: ConfigTable) -> bool:
    """Return True if a file of TRL has names that only its SFT has."""
    return has_any(table, *_OF_SFT)


def _library(table: ConfigTable, path: Path) -> Library | None:
    if has_any(table, *_ACCELERATE) and _MODEL not in table:
        return "accelerate"
    if has_any(table, *_DEEPSPEED):
        return "DeepSpeed"
    if _MODEL in table and has_any(table, *_DATA, *_OF_SFT):
        other = next((method for method, names in _OF_OTHER_METHODS.items() if has_any(table, *names)), None)
        if other is not None and not is_surely_sft(table):
            example = f"-- trl {other} --config {path.name}"
            raise InputError(f"{path}: may be for several of TRL's commands; give the launch line, such as {example}")
        return "TRL"
    if _BATCH in table:
        return "transformers"
    return "TRL" if _MODEL in table and has_any(table, "output_dir", "gradient_checkpointing") else None


def _likeness(table: ConfigTable) -> str:
    """Return the tools with which a file shares names, as a part of a sentence; empty if it shares none."""
    keys = {**TRAINER_KEYS, **{tool.name: tool.keys for tool in all_tools()}}
    shared = {name: sorted(_top_level_names(own) & table.keys()) for name, own in keys.items()}
    best = sorted((name for name in shared if shared[name]), key=lambda name: -len(shared[name]))[:3]
    parts = [f"{name} ({', '.join(shared[name][:3])})" for name in best]
    return f" (it shares names with {', '.join(parts)})" if parts else ""


def _top_level_names(keys: ToolKeys) -> set[str]:
    names = [key.name for key in keys.settings.values()] + list(keys.derived.values())
    return {name.partition(".")[0] for name in names}
