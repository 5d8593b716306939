"""Configurations that a script makes and changes: a model's config, and the arguments of a trainer."""

import re
from collections.abc import Mapping
from typing import Any

from ...source import MODEL_STATES, NULL_IS_NO_LIMIT, NULL_IS_WRONG, UNKNOWN_TABLE, Setting
from ...trl import TRAINER_NAMES
from ..command_line import Parsed, class_defaults
from ..python import PLAIN, UNKNOWN, Attribute, Call, Thing, as_number, plain, short_text
from .config_defaults import CONFIG_DEFAULTS, SHAPE_FIELDS, general_name
from .notes import Notes

TRAINING_CONFIG = re.compile(rf"[A-Za-z0-9]*TrainingArguments|(Async)?({TRAINER_NAMES})(v2)?Config|ModelConfig")
SIZE_ARGUMENTS = ("per_device_train_batch_size", "max_length")
"""Arguments whose default is hardly meant where a script computes them: the user is asked for the value."""
LENGTH_ARGUMENTS = (
    *("max_length", "max_seq_length", "max_seq_len", "block_size", "seq_length", "seq_len", "sequence_length"),
)
_CONFIG_METHODS = (
    *("update", "update_from_string", "to_dict", "from_dict", "save_pretrained", "to_diff_dict", "push_to_hub"),
)
DECISIVE_ARGUMENTS = {
    *("per_device_train_batch_size", "gradient_accumulation_steps", "optim", "bf16", "fp16", "dtype", "torch_dtype"),
    *("activation_checkpointing", "gradient_checkpointing", "max_length", "max_seq_length", "fsdp", "deepspeed"),
    *("load_in_4bit", "load_in_8bit", "attn_implementation", "use_liger_kernel", "r", "target_modules"),
}
"""Arguments without whose values the estimate may be about another job."""
_SETTINGS_OF_OLD_TRAINERS = (
    *("max_length", "max_seq_length", "max_prompt_length", "max_completion_length", "packing", "beta", "loss_type"),
    *("precompute_ref_log_probs", "model_init_kwargs"),
)
"""What TRL's trainers took themselves before 0.13, and their configurations since."""


_ADDS_PARTS = re.compile(r"lora|adapter|prefix|pre_?seq|prompt|quant|experts|compress")
"""In the names of config fields by which a model's own code adds or changes parts."""


class ModelConfig(Thing):
    """A model's config.

    Args:
        notes: where doubts are noted.
        kind: what its class begins with, such as ``Llama``; None: that of the model it is loaded from.
        source: the model whose config it is; None: it has the class's defaults.
    """

    def __init__(self, notes: Notes, *, kind: str | None, source: Setting | None) -> None:
        self._notes, self.kind, self.source = notes, kind, source
        self.changes: dict[str, Setting] = {}
        """Fields that the script sets."""
        self.settings: dict[str, Setting] = {}
        """``attn_implementation`` and ``dtype``, which may be set on the config too."""

    def base(self) -> Mapping[str, Any] | None:
        """Return the config without the script's changes; None: unknown."""
        if self.source is not None:
            return self._notes.find_config(str(self.source.value))
        if self.kind is not None and self.kind in CONFIG_DEFAULTS:
            name, table = CONFIG_DEFAULTS[self.kind]
            return {"model_type": name, **table}
        return None

    def table(self) -> dict[str, Any] | None:
        """Return the whole config; None: unknown."""
        base = self.base()
        if base is None:
            return None
        found = dict(base)
        for name, setting in self.changes.items():
            found[general_name(name, base)] = setting.value
        return found

    def changed(self) -> dict[str, Setting]:
        """Return the changes that make another model of it."""
        base = self.base()
        if base is None:
            return {name: setting for name, setting in self.changes.items() if name in SHAPE_FIELDS}
        return {
            field: setting
            for field, setting in self.changes.items()
            if (field in SHAPE_FIELDS or general_name(field, base) in base)
            and base.get(general_name(field, base)) != setting.value
        }

    def set_field(self, field: str, value: Any, where: str, text: str) -> None:
        """Take a new value for a field."""
        known = plain(value)
        if field in ("attn_implementation", "_attn_implementation", "dtype", "torch_dtype"):
            name = field.lstrip("_")
            if known not in (UNKNOWN, None):
                self.settings[name] = Setting(value=known, origin=f"{where}: {text}")
            elif known is UNKNOWN:
                self._notes.unresolved[name] = f"{where}: {text} is only known when the script runs."
        elif known is UNKNOWN:
            if field in SHAPE_FIELDS - {"num_labels"}:
                sentence = f"{where}: {text} changes the model and is only known when the script runs."
                self._notes.doubt(sentence, *MODEL_STATES, "activations", "logits")
        elif field in ("id2label", "label2id"):
            if isinstance(known, dict) and len(known) > 2:  # a loop over labels that are not known fills in one
                self.changes.setdefault("num_labels", Setting(value=len(known), origin=f"{where}: {text}"))
        elif isinstance(known, (*PLAIN, list)):
            if known and _ADDS_PARTS.search(field) and field not in (self.base() or ()):
                sentence = f"{where}: {text} may add or change parts of the model, and is not followed."
                self._notes.assume(sentence, *MODEL_STATES, "activations", "logits")
            self.changes[field] = Setting(value=known, origin=f"{where}: {text}")

    def attribute(self, name: str) -> Any:
        """Return a field's value, or a method."""
        if name in ("text_config", "get_text_config"):
            return Attribute(self, name)
        if name in self.changes:
            return self.changes[name].value
        if name in _CONFIG_METHODS:
            return Attribute(self, name)
        table = self.table()
        if table is None:
            return UNKNOWN
        return table.get(general_name(name, table), UNKNOWN)

    def has(self, name: str) -> Any:
        """Return whether it has a field; UNKNOWN for one that is not known."""
        return True if self.attribute(name) is not UNKNOWN else UNKNOWN

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to a field."""
        shown = short_text(call.node) if call.path != "setattr" else f"config.{name}"
        self.set_field(name, value, call.where, f"{shown} = {plain(value)}")

    def set_item(self, key: Any, value: Any, call: Call) -> None:
        """Take an assignment to a field."""
        if isinstance(key, str):
            self.set_attribute(key, value, call)

    def method(self, call: Call) -> Any:
        """Take ``config.update({...})``."""
        if call.name in ("update", "update_from_string"):
            given = call.value(0)
            if isinstance(given, str):
                pairs = (part.partition("=") for part in given[:10_000].split(","))
                given = {name.strip(): as_number(value.strip()) for name, _, value in pairs}
            for name, value in {**(given if isinstance(given, dict) else {}), **call.kwargs}.items():
                self.set_field(str(name), value, call.where, f"config.update({name}={plain(value)})")
            return None
        return self.table() or UNKNOWN if call.name == "to_dict" else self

    def copy(self) -> "ModelConfig":
        """Return another config with the same fields."""
        other = ModelConfig(self._notes, kind=self.kind, source=self.source)
        other.changes, other.settings = dict(self.changes), dict(self.settings)
        return other


class Arguments(Thing):
    """``TrainingArguments(...)`` or one of its kin.

    Args:
        notes: where values that are only known at run time are noted.
        name: the class's name.
    """

    def __init__(self, notes: Notes, name: str) -> None:
        self._notes, self.name = notes, name
        self.fields: dict[str, Setting] = {}
        self.values: dict[str, Any] = {}
        self.unresolved: dict[str, str] = {}

    def read(self, call: Call) -> None:
        """Take the keywords of its constructor."""
        for name, value in call.kwargs.items():
            self.put(name, value, call.setting(name), f"{self.name}({name}={short_text(call.nodes.get(name))})", call)
        if call.args and isinstance(call.args[0], str):
            self.values.setdefault("output_dir", call.args[0])
            setting = call.setting(0)
            if setting is not None:
                self.fields.setdefault("output_dir", setting)
        if call.unknown_table is not None:
            text = f"{self.name}(**{short_text(call.unknown_table)})"
            sentence = f"{call.where}: {text} is only known when the script runs; defaults are counted."
            self.unresolved[UNKNOWN_TABLE] = sentence

    def put(self, name: str, value: Any, setting: Setting | None, text: str, call: Call) -> None:
        """Take one argument."""
        self.values[name] = value
        self.fields.pop(name, None)
        self.unresolved.pop(name, None)
        if setting is not None and (setting.value is not None or name in (*NULL_IS_NO_LIMIT, *NULL_IS_WRONG)):
            self.fields[name] = setting
        elif setting is None and name in DECISIVE_ARGUMENTS:
            counted = "." if name in SIZE_ARGUMENTS else "; its default is counted."
            self.unresolved[name] = f"{call.where}: {text} is only known when the script runs{counted}"

    def attribute(self, name: str) -> Any:
        """Return an argument's value."""
        if name in self.values:
            return self.values[name]
        if name in ("train_batch_size", "eval_batch_size"):
            return self.values.get(f"per_device_{name}", UNKNOWN)
        return Attribute(self, name) if name in ("to_dict", "set_training", "set_optimizer") else UNKNOWN

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to an argument."""
        text = f"{short_text(call.node)} = {plain(value)}"
        known = plain(value)
        setting = None if known is UNKNOWN else Setting(value=known, origin=f"{call.where}: {text}")
        self.put(name, value, setting, text, call)

    def has(self, name: str) -> Any:
        """Return whether it has an argument."""
        return True if name in self.values else UNKNOWN


class ParsedArguments(Thing):
    """Trainers' arguments that a parser makes of the command line; what the script assigns afterwards wins over it."""

    def __init__(self, parsed: Parsed, arguments: Arguments, notes: Notes) -> None:
        self._parsed, self._arguments, self._notes = parsed, arguments, notes
        self._defaults = class_defaults(arguments.name, notes.versions)

    def option(self, name: str) -> Setting | None:
        """Return an option of the command line."""
        return self._parsed.option(name) if name not in self._arguments.values else None

    def attribute(self, name: str) -> Any:
        """Return an argument's value."""
        if name in self._arguments.values:
            return self._arguments.values[name]
        found = self._parsed.attribute(name)
        return found if found is not UNKNOWN else self._defaults.get(name, UNKNOWN)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment, which wins over the command line."""
        self._arguments.set_attribute(name, value, call)
        self._notes.assigned.pop(name, None)
        if name in self._arguments.fields:
            self._notes.assigned[name] = self._arguments.fields[name]
        elif name in self._arguments.unresolved:
            self._notes.unresolved[name] = self._arguments.unresolved[name]

    def method(self, call: Call) -> Any:
        """Return the result of a method."""
        return self._parsed.method(call)

    def as_table(self) -> dict[str, Any]:
        """Return all arguments by name."""
        inherited = {name: self.attribute(name) for name in self._defaults}
        return {**inherited, **self._parsed.as_table(), **self._arguments.values}

    def has(self, name: str) -> Any:
        """Return whether there is an option of a name."""
        return self._parsed.has(name) or UNKNOWN


def take_trainer_settings(call: Call, notes: Notes) -> None:
    """Take the settings that a trainer is given itself."""
    for name in _SETTINGS_OF_OLD_TRAINERS:
        setting = call.setting(name) if name in call.kwargs else None
        if setting is not None and setting.value is not None:
            notes.written.setdefault(name, setting)
        elif setting is None and name in call.kwargs and name in DECISIVE_ARGUMENTS:
            text = f"{call.name}({name}={short_text(call.nodes.get(name))})"
            sentence = f"{call.where}: {text} is only known when the script runs."
            notes.unresolved.setdefault("max_length", sentence)
