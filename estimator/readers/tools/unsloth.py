"""Unsloth's command: ``unsloth train --config x.yaml --batch-size 4``; its users' own scripts are read as scripts.

Names, meanings and defaults: ``unsloth_cli/config.py`` of 2026. It trains with TRL's SFTTrainer.
"""

from ..arguments.table import library, translate
from ..program.program import Program
from ..source.evidence import JobReading
from ..source.settings import LayeredSettings, Setting, as_word
from ..source.versions import transformers_defaults
from ..trainer.trainer_program import read_trainer
from .shared.settings_files import tool_layers
from .shared.tool import known_tool


def read(program: Program) -> JobReading:
    """Return the job of ``unsloth train``."""
    found = tool_layers(program, "config", "c")  # flags have no sections, which a file has
    layers = [{name.rpartition(".")[2]: setting for name, setting in layer.items()} for layer in found]
    settings, table = LayeredSettings(*layers), library("unsloth")
    kind, checkpointing = settings.find("training_type"), settings.find("gradient_checkpointing")
    lora, mode = kind is None or as_word(kind) != "full", as_word(checkpointing) or "unsloth"
    default = Setting.default(None, "unsloth's default")
    own = {
        "use_peft": (kind or default).with_value(lora),
        "activation_checkpointing": (checkpointing or default).with_value(mode not in ("none", "false", "no", "off")),
    }
    if mode == "unsloth":
        own["activation_offloading"] = (checkpointing or default).with_value(True)
    if not lora:
        own["load_in_4bit"] = default.with_value(False)
    written = {name: setting for name, setting in own.items() if setting.written}
    translated = [translate(layer, table)[0] for layer in layers]
    defaults = transformers_defaults(program.versions) | table.defaults("all") | own
    return read_trainer(program, [written, *translated, defaults], [], method=None)


TOOL = known_tool("unsloth", read)
