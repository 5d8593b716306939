"""LoRA adapters and quantization in a script: peft, bitsandbytes, unsloth."""

from typing import Any

from ...source import Setting, default_setting
from ..python import UNKNOWN, Call, Thing, plain, short_text
from .configs import DECISIVE_ARGUMENTS
from .model import Model
from .notes import Notes

_LORA_NAMES = {"r": "lora_r", "target_modules": "lora_target_modules"}
_OTHER_NAMES = {
    *("modules_to_save", "use_dora", "layers_to_transform", "rank_pattern", "exclude_modules", "target_parameters"),
    *("trainable_token_indices", "layer_replication"),
}
"""Arguments of ``LoraConfig`` that change memory in ways that are not counted."""
_QUANTIZATION_ARGUMENTS = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
UNSLOTH_CLASSES = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastTextModel")
_UNSLOTH_OTHER_PRECISIONS = ("load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")


class AdapterConfig(Thing):
    """``LoraConfig(...)`` or another configuration of peft."""

    def __init__(self, call: Call) -> None:
        self.kind, self.where, self.settings = call.name, call.where, dict[str, Setting]()
        self.unresolved: dict[str, str] = {}
        read_lora(call, self.settings, self.unresolved)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to an argument."""
        renamed = _LORA_NAMES.get(name, f"lora_{name}")
        if plain(value) is not UNKNOWN and (name in _LORA_NAMES or name in _OTHER_NAMES):
            text = f"{short_text(call.node)} = {plain(value)}"
            self.settings[renamed] = Setting(value=plain(value), origin=f"{call.where}: {text}")


class QuantizationConfig(Thing):
    """``BitsAndBytesConfig(...)``."""

    def __init__(self, call: Call) -> None:
        self.settings: dict[str, Setting] = {}
        self.unresolved: dict[str, str] = {}
        for name in _QUANTIZATION_ARGUMENTS:
            if name not in call.kwargs:
                continue
            setting = call.setting(name)
            if setting is None and name in DECISIVE_ARGUMENTS:
                self.unresolved[name] = _sentence(call, name)
            elif setting is not None and setting.value is not None:
                self.settings[name] = setting


def read_lora(call: Call, into: dict[str, Setting], unresolved: dict[str, str]) -> None:
    """Read the arguments of ``LoraConfig`` under the names of our settings."""
    for name in call.kwargs:
        if name not in _LORA_NAMES and name not in _OTHER_NAMES:
            continue
        setting = call.setting(name)
        if setting is None and name in DECISIVE_ARGUMENTS:
            unresolved[name] = _sentence(call, name)
        elif setting is not None and setting.value not in (None, False, [], {}):
            into[_LORA_NAMES.get(name, f"lora_{name}")] = setting


def add_adapters(model: Model, config: Any, call: Call, *, text: str = "") -> None:
    """Add adapters to a model: what it held so far is frozen."""
    if not model.has_adapters:
        model.train(None, value=False, call=call)
    model.has_adapters = True
    model.adapters_train = True
    model.put("use_peft", True, call.where, text or f"{call.name}(...)")
    if isinstance(config, AdapterConfig):
        model.settings.update(config.settings)
        model.unresolved.update(config.unresolved)
        if config.kind not in ("LoraConfig", "LoKrConfig"):
            _other_adapters(model.notes, config, call)


def load_adapters(model: Model, call: Call, *, trains: Any) -> None:
    """Load adapters that were trained before, whose rank only their files tell."""
    add_adapters(model, None, call)
    if trains is False:
        model.adapters_train = False
    model.notes.doubt(
        f"{call.where}: {call.name}(...) loads adapters whose rank and layers are not read.",
        *("gradients", "optimizer"),
        key="lora.rank",
    )


def _other_adapters(notes: Notes, config: AdapterConfig, call: Call) -> None:
    notes.doubt(
        f"{config.where}: {config.kind} is counted as LoRA adapters, of which it differs.",
        *("gradients", "optimizer", "activations"),
        key="lora.rank",
    )


def get_peft_model(call: Call, notes: Notes) -> Any:
    """Follow ``get_peft_model(model, config)``, and unsloth's method of that name."""
    model = call.value(0, "model")
    if not isinstance(model, Model):
        return UNKNOWN
    unsloth = call.owner in UNSLOTH_CLASSES
    add_adapters(model, call.value(1, "peft_config"), call)
    read_lora(call, model.settings, model.unresolved)
    if "r" not in call.kwargs and unsloth:
        _hint(model, "lora_r", 16)
    given = call.value(None, "use_gradient_checkpointing", default=UNKNOWN)
    if "use_gradient_checkpointing" in call.kwargs:
        shown = short_text(call.expression(None, "use_gradient_checkpointing"))
        text = f"use_gradient_checkpointing={shown}"
        model.put("activation_checkpointing", given not in (False, None), call.where, text)
        if given == "unsloth":
            model.put("activation_offloading", True, call.where, "use_gradient_checkpointing='unsloth'")
    elif unsloth:
        _hint(model, "activation_checkpointing", True)
        _hint(model, "activation_offloading", True)
    if unsloth:
        _hint(model, "lora_target_modules", "all-linear")
    notes.models = [each for each in notes.models if each is not model] + [model]
    return model


def hint_unsloth_loading(model: Model, call: Call) -> None:
    """Assume 4 bits unless set otherwise, and a loss that makes no logits (unsloth's ``loader.py``)."""
    _hint(model, "use_liger_kernel", True)
    perhaps_on = {name for name, value in call.kwargs.items() if value is True or plain(value) is UNKNOWN}
    if perhaps_on.isdisjoint(_UNSLOTH_OTHER_PRECISIONS):
        _hint(model, "load_in_4bit", True)
    _hint(model, "bnb_4bit_use_double_quant", True)


def _hint(model: Model, name: str, value: object) -> None:
    model.hints.setdefault(name, default_setting(value, "unsloth's default"))


def _sentence(call: Call, name: str) -> str:
    shown = f"{call.name}({name}={short_text(call.expression(None, name))})"
    return f"{call.where}: {shown} is only known when the script runs; its default is counted."
