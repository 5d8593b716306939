"""Unsloth's command: ``unsloth train --config x.yaml --batch-size 4``; scripts of its users are read as scripts.

Names, meanings and defaults: ``unsloth_cli/config.py`` of 2026. It trains with TRL's SFTTrainer.
"""

from ..program.program import Program
from ..source.evidence import JobReading
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_word
from ..source.versions import transformers_defaults
from ..trainer.trainer_program import read_trainer
from .shared.merged_settings import tool_layers

_DEFAULTS = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "max_length": 2048,
    "lora_r": 64,
    "lora_target_modules": "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
    "load_in_4bit": True,
    "bnb_4bit_use_double_quant": True,
    "optim": "adamw_8bit",
    "bf16": True,
    "dtype": "bfloat16",
    "use_liger_kernel": True,  # its own loss makes no logits either
}
_RENAMED = {
    "model": "model_name_or_path",
    "batch_size": "per_device_train_batch_size",
    "max_seq_length": "max_length",
    "target_modules": "lora_target_modules",
}
_RESOLVED = ("training_type", "gradient_checkpointing")


def read(program: Program) -> JobReading:
    """The job of ``unsloth train``."""
    written = tuple(_flat(layer) for layer in tool_layers(program, "config", "c"))
    raw = LayeredSettings(*written)
    kind, checkpointing = raw.find("training_type"), raw.find("gradient_checkpointing")
    lora = kind is None or as_word(kind) != "full"
    mode = as_word(checkpointing) or "unsloth"
    values = {**_DEFAULTS, "use_peft": lora, "activation_checkpointing": mode not in ("none", "false", "no", "off")}
    if mode == "unsloth":
        values["activation_offloading"] = True
    if not lora:
        values["load_in_4bit"] = False
    said = {"use_peft": kind, "activation_checkpointing": checkpointing, "activation_offloading": checkpointing}
    defaults = {name: _default(value, said.get(name)) for name, value in values.items()}
    own = {name: setting for name, setting in defaults.items() if setting.written}
    layers = [own, *(_renamed(layer) for layer in written), transformers_defaults(program.versions) | defaults]
    return read_trainer(program, layers, [], method=None)


def _default(value: object, said: Setting | None) -> Setting:
    if said is not None:
        return Setting(value=value, origin=said.origin)
    return Setting(value=value, origin="unsloth's default", written=False)


def _flat(layer: SettingsLayer) -> dict[str, Setting]:
    """Sections of the file are left out of the names, as flags have none."""
    return {name.rpartition(".")[2]: setting for name, setting in layer.items()}


def _renamed(layer: SettingsLayer) -> dict[str, Setting]:
    return {_RENAMED.get(name, name): setting for name, setting in layer.items() if name not in _RESOLVED}
