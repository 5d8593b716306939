"""Unsloth's command: ``unsloth train --config x.yaml --batch-size 4``; its users' own scripts are read as scripts.

Names, meanings and defaults: ``unsloth_cli/config.py`` of 2026. It trains with TRL's SFTTrainer.
"""

from ..arguments.table import library, translate
from ..program.program import Program
from ..source.evidence import JobReading, LayeredSettings, Setting, SettingsLayer, as_word, default_setting
from ..source.versions import transformers_defaults
from ..trainer.trainer_program import read_trainer
from .shared import known_tool, tool_layers


def read(program: Program) -> JobReading:
    """Return the job of ``unsloth train``."""
    layers = [_without_sections(layer) for layer in tool_layers(program, "config", "c")]
    settings, table = LayeredSettings(*layers), library("unsloth")
    kind, checkpointing = settings.find("training_type"), settings.find("gradient_checkpointing")
    lora = kind is None or as_word(kind) != "full"
    mode = as_word(checkpointing) or "unsloth"
    values: dict[str, object] = {
        "use_peft": lora,
        "activation_checkpointing": mode not in ("none", "false", "no", "off"),
    }
    if mode == "unsloth":
        values["activation_offloading"] = True
    if not lora:
        values["load_in_4bit"] = False
    deciding = {"use_peft": kind, "activation_checkpointing": checkpointing, "activation_offloading": checkpointing}
    defaults = {name: _value_or_default(value, deciding.get(name)) for name, value in values.items()}
    written = {name: setting for name, setting in defaults.items() if setting.written}
    translated = [translate(layer, table)[0] for layer in layers]
    defaults = transformers_defaults(program.versions) | table.defaults("all") | defaults
    return read_trainer(program, [written, *translated, defaults], [], method=None)


def _value_or_default(value: object, deciding: Setting | None) -> Setting:
    """Return a value with the origin of the setting that decides it, or as unsloth's default."""
    return deciding.with_value(value) if deciding is not None else default_setting(value, "unsloth's default")


def _without_sections(layer: SettingsLayer) -> dict[str, Setting]:
    """Return the layer without the file's sections in its names, as flags have none."""
    return {name.rpartition(".")[2]: setting for name, setting in layer.items()}


TOOL = known_tool("unsloth", read)
