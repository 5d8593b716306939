"""Configs: the defaults of transformers' classes (its ``models/<family>``, version 5), and what a script changes."""

import re
from collections.abc import Mapping
from typing import Any

from ..arguments.table import scripts
from ..source.settings import Setting
from .values import UNKNOWN, Attribute, Call, Thing, short_text

CONFIG_DEFAULTS = scripts().config
"""``model_type`` and defaults by what a class's name begins with: ``Llama`` of ``LlamaConfig``."""
_FIELD_NAMES = scripts().aliases["config"]
"""Names that families have for a field which transformers also offers under its general name."""
_SHAPE_FIELDS = scripts().names["shape_fields"]
"""Fields on which parameters or activations depend."""
_ADDS_PARTS = re.compile(r"lora|adapter|prefix|pre_?seq|prompt|quant|experts|compress")
"""In the names of config fields by which a model's own code adds or changes parts."""
_OF_THE_WEIGHTS = {
    *("attn_implementation", "dtype", "torch_dtype"),
    *("bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage", "bnb_4bit_compute_dtype"),
}
"""Fields that ``from_pretrained`` takes too."""
_CHECKPOINTS = "gradient_checkpointing"
"""Field of which a model takes note when it is made (``_backward_compatibility_gradient_checkpointing``)."""
LENGTH_ARGUMENTS = scripts().aliases["argument"]["length"]
NAME_ARGUMENTS = ("pretrained_model_name_or_path", "model_name")
_NOT_FIELDS = {
    *("load_in_4bit", "load_in_8bit", *NAME_ARGUMENTS, *LENGTH_ARGUMENTS),
    *scripts().names["no_fields_of_a_config"],
}
"""Arguments of ``from_pretrained`` that are no fields of the config."""


class ModelConfig(Thing):
    """A model's config.

    Args:
        call: what makes it; its keywords are fields.
        kind: what its class begins with, such as ``Llama``; None: that of the model it is loaded from.
        source: the model whose config it is; None: it has the class's defaults.
    """

    def __init__(self, call: Call, *, kind: str | None, source: Setting | None) -> None:
        self._kind, self.source = kind, source
        self._find_config = call.notes.find_config
        self._changes: dict[str, Setting] = {}
        self.settings: dict[str, Setting] = {}
        """``attn_implementation``, ``dtype`` and checkpointing, which may be set on the config too."""

    def _base(self) -> Mapping[str, Any] | None:
        return CONFIG_DEFAULTS.get(self._kind or "") if self.source is None else self._find_config(self.source.value)

    def _field(self, name: str) -> str:
        """Return the name under which the config has a field."""
        base = self._base() or {}
        return name if name in base else next((each for each in _FIELD_NAMES.get(name, ()) if each in base), name)

    def table(self) -> dict[str, Any] | None:
        """Return the whole config; None: unknown."""
        base = self._base()
        changes = {self._field(name): setting.value for name, setting in self._changes.items()}
        return None if base is None else {**base, **changes}

    def changed(self) -> dict[str, Setting]:
        """Return the changes that make another model of it."""
        base = self._base() or {}
        changes = {self._field(name): (name, setting) for name, setting in self._changes.items()}
        return {
            name: setting
            for field, (name, setting) in changes.items()
            if (name in _SHAPE_FIELDS or field in base) and (not base or base.get(field) != setting.value)
        }

    def take(self, name: str, setting: Setting, call: Call) -> None:
        """Take a new value for a field."""
        value, name = setting.value, name.lstrip("_")
        if name in _OF_THE_WEIGHTS:
            self.settings |= {name: setting} if value is not None else {}
        elif name == _CHECKPOINTS:
            self.settings["activation_checkpointing"] = setting
        elif value is UNKNOWN:
            if name in _SHAPE_FIELDS - {"num_labels"}:
                call.notes.doubt(setting.origin)
        elif name in ("id2label", "label2id") and isinstance(value, dict):
            self._changes.setdefault("num_labels", setting.with_value(len(value)))
        elif not isinstance(value, dict):
            if value and _ADDS_PARTS.search(name) and name not in (self._base() or ()):
                call.notes.doubt(f"{setting.origin} may add or change parts of the model; vramtop does not follow it.")
            if value and name == "output_attentions":
                sentence = f"{setting.origin} keeps the scores of attention, which are not counted."
                call.notes.doubt(sentence, key="model.attention")
            self._changes[name] = setting

    def take_keywords(self, call: Call, label: str) -> None:
        """Take the keywords of a call as fields."""
        for name in call.kwargs:
            if name not in _NOT_FIELDS:
                self.take(name, call.setting(name, label), call)

    def attribute(self, name: str) -> Any:
        """Return a field's value, or a method."""
        known = {**(self.table() or {}), **{each: setting.value for each, setting in self._changes.items()}}
        return known.get(self._field(name), Attribute(self, name))

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to a field."""
        self.take(name, call.setting(0), call)

    def method(self, call: Call) -> Any:
        """Note ``config.update({...})``, which is not read."""
        if call.name.startswith("update"):
            call.doubt(f"{short_text(call.node)} may change the model and is not read.")
        return self.table() or UNKNOWN if call.name == "to_dict" else self
