"""Models of a script: which they are, their dtype, quantization and adapters, and what of them is trained."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from ...job.rules.strategies import DTYPE_NAMES
from ...job.settings import Task
from ..arguments.table import library, scripts
from ..source.evidence import Setting, default_setting
from .notes import Notes
from .values import (
    PLAIN,
    UNKNOWN,
    Attribute,
    Call,
    Name,
    Thing,
    plain,
    short_text,
    truth,
)

# Configs: defaults of transformers' classes (its ``models/<family>``, version 5), and what a script changes of them.


CONFIG_DEFAULTS = scripts().config
"""``model_type`` and defaults by what a class's name begins with: ``Llama`` of ``LlamaConfig``."""
_FIELD_NAMES = scripts().aliases["config"]
"""Names that families have for a field which transformers also offers under its general name."""
_SHAPE_FIELDS = scripts().names["shape_fields"]
"""Fields on which parameters or activations depend."""
_ADDS_PARTS = re.compile(r"lora|adapter|prefix|pre_?seq|prompt|quant|experts|compress")
"""In the names of config fields by which a model's own code adds or changes parts."""
LENGTH_ARGUMENTS = scripts().aliases["argument"]["length"]


def _general_name(name: str, config: Mapping[str, Any]) -> str:
    """Return the name under which a config has a field."""
    if name in config:
        return name
    return next((each for each in _FIELD_NAMES.get(name, ()) if each in config), name)


class ModelConfig(Thing):
    """A model's config.

    Args:
        notes: where doubts are noted.
        kind: what its class begins with, such as ``Llama``; None: that of the model it is loaded from.
        source: the model whose config it is; None: it has the class's defaults.
    """

    def __init__(self, notes: Notes, *, kind: str | None, source: Setting | None) -> None:
        self._notes, self._kind, self.source = notes, kind, source
        self._changes: dict[str, Setting] = {}
        self.settings: dict[str, Setting] = {}
        """``attn_implementation`` and ``dtype``, which may be set on the config too."""

    def _base(self) -> Mapping[str, Any] | None:
        if self.source is not None:
            return self._notes.find_config(str(self.source.value))
        return CONFIG_DEFAULTS.get(self._kind or "")

    def table(self) -> dict[str, Any] | None:
        """Return the whole config; None: unknown."""
        base = self._base()
        if base is None:
            return None
        return {**base, **{_general_name(name, base): setting.value for name, setting in self._changes.items()}}

    def changed(self) -> dict[str, Setting]:
        """Return the changes that make another model of it."""
        base = self._base()
        if base is None:
            return {name: setting for name, setting in self._changes.items() if name in _SHAPE_FIELDS}
        return {
            name: setting
            for name, setting in self._changes.items()
            if (name in _SHAPE_FIELDS or _general_name(name, base) in base)
            and base.get(_general_name(name, base)) != setting.value
        }

    def set_field(self, name: str, value: Any, where: str, text: str) -> None:
        """Take a new value for a field."""
        known = plain(value)
        if name.lstrip("_") in ("attn_implementation", "dtype", "torch_dtype"):
            name = name.lstrip("_")
            if known is UNKNOWN:
                self._notes.unresolved[name] = f"{where}: {text} is only known when the script runs."
            elif known is not None:
                self.settings[name] = Setting(value=known, origin=f"{where}: {text}")
        elif known is UNKNOWN:
            if name in _SHAPE_FIELDS - {"num_labels"}:
                self._notes.doubt(f"{where}: {text} changes the model and is only known when the script runs.")
        elif name in ("id2label", "label2id") and isinstance(known, dict):
            self._changes.setdefault("num_labels", Setting(value=len(known), origin=f"{where}: {text}"))
        elif isinstance(known, (*PLAIN, list)):
            if known and _ADDS_PARTS.search(name) and name not in (self._base() or ()):
                self._notes.doubt(f"{where}: {text} may add or change parts of the model; vramtop does not follow it.")
            self._changes[name] = Setting(value=known, origin=f"{where}: {text}")

    def set_fields(self, call: Call, label: str) -> None:
        """Take the keywords of a call as fields."""
        for name, value in call.kwargs.items():
            if name not in _NOT_FIELDS or name in ("dtype", "torch_dtype", "attn_implementation"):
                self.set_field(name, value, call.where, f"{label}({name}={short_text(call.nodes.get(name))})")
        _doubt_table(call, label, self._notes)

    def attribute(self, name: str) -> Any:
        """Return a field's value, or a method."""
        if name == "text_config":
            return self
        if name in self._changes:
            return self._changes[name].value
        table = self.table() or {}
        return table.get(_general_name(name, table), Attribute(self, name))

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to a field."""
        self.set_field(name, value, call.where, f"config.{name} = {plain(value)}")

    def method(self, call: Call) -> Any:
        """Note ``config.update({...})``, which is not read."""
        if call.name.startswith("update"):
            self._notes.doubt(f"{call.where}: {short_text(call.node)} may change the model and is not read.")
        return self.table() or UNKNOWN if call.name == "to_dict" else self

    def copy(self, where: str = "") -> "ModelConfig":
        """Return another config with the same fields."""
        other = ModelConfig(self._notes, kind=self._kind, source=self.source)
        other._changes, other.settings = dict(self._changes), dict(self.settings)
        return other


# Models and their parts.


_TRANSPARENT = ("module", "_orig_mod", "_fsdp_wrapped_module", "pretrained_model", "base_model")
"""Attributes under which wrappers keep the model itself."""
_HARMLESS_ATTRIBUTES = re.compile(
    r"(?i)^\.?_|\.(_\w+|p|rate)$|dropout|parallel|name|path|token|label|warn|metric|class_|state_dict|generat|device|version|_id$|info|card|logg|seed"
    r"|config|train|step|epoch|weight|bias|data|save|print|hook|tag|language|template|prompt|use_cache|seq"
)
"""Attributes of a model that scripts set without changing the memory of a step."""
_QUIET_METHODS = scripts().names["quiet_methods"]
_ITSELF = scripts().names["methods_that_return_the_model"]
_BODY_NAMES = ("model", "transformer", "bert", "roberta", "distilbert", "gpt_neox", "language_model", "llm")
"""Parts in which nearly all of a model lies."""


class Part(Thing):
    """A module of a model, or its parameters, by its last name inside; the empty name is the whole model."""

    def __init__(self, owner: "Model", name: str) -> None:
        self.owner: Model = owner
        self.name = name

    def attribute(self, name: str) -> Any:
        """Return a module inside, or a method."""
        if name in _METHODS or name in _QUIET_METHODS or name in _ITSELF:
            return Attribute(self, name)
        if name in ("device", "dtype", "training", "name_or_path", "hf_device_map", "grad", "data"):
            return UNKNOWN
        if name == "requires_grad":
            return True
        if name == "config":
            return self.owner.attribute(name)
        return Part(self.owner, name)

    def item(self, key: Any) -> Any:
        """Return one of several layers."""
        return Part(self.owner, str(key) if isinstance(key, int) else "?")

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment: a module replaces a part of the model."""
        if name == "requires_grad":
            self.freeze(value, call)
        elif name.endswith("gradient_checkpointing") and value is True:  # transformers until 4.35
            _checkpoint(self, call)
        elif not _HARMLESS_ATTRIBUTES.search(f"{self.name}.{name}") or isinstance(value, Thing):
            shown = f"{self.name or 'model'}.{name}"
            sentence = f"{call.where}: what the script puts in the place of {shown} is not counted."
            self.owner.notes.doubt(sentence)

    def freeze(self, value: Any, call: Call) -> None:
        """Note that parameters are frozen or trained; which of them is only known when the script runs."""
        self.owner.frozen_at = call.where
        self.owner.is_frozen = not self.name and value is False

    def method(self, call: Call) -> Any:
        """Return the result of calling a method of the module."""
        method = _METHODS.get(call.name)
        if method is not None:
            return method(self, call)
        return UNKNOWN if call.name in _QUIET_METHODS or call.name.startswith(("get_", "is_", "_")) else self.owner

    def called(self, call: Call) -> Any:
        """Return the result of a forward pass of the part, or of a method of the model's own class."""
        name = self.name
        if _CHANGES.search(name) or not (_MODULES.search(name) or _HARMLESS_ATTRIBUTES.search(name)):
            sentence = f"{call.where}: {self.name}(...) may change the model; vramtop does not follow it."
            self.owner.notes.doubt(sentence)
            return self.owner
        return UNKNOWN

    def elements(self) -> list[Any]:
        """Return one module that stands for all: ``for layer in model.layers``."""
        return [Part(self.owner, "?")]


class Model(Part):
    """A model, whatever wraps it.

    Args:
        notes: the reading that it belongs to.
        where: the script and line that make it.
        label: the call that makes it, for people.
    """

    def __init__(self, notes: Notes, where: str, label: str) -> None:
        super().__init__(self, "")
        self.notes, self.where, self.label = notes, where, label
        self.source: Setting | None = None
        """The model's name; None: it is made from a config."""
        self.task: Setting | None = None
        self.is_read = False
        """It is loaded with arguments that are all known."""
        self.settings: dict[str, Setting] = {}
        """What is known of it by the names of transformers' arguments: dtype, attention, quantization, LoRA."""
        self.hints: dict[str, Setting] = {}
        self.unresolved: dict[str, str] = {}
        self.config: ModelConfig | None = None
        self.changed_unseen = False
        """Something that is not followed was given it, and may have changed it."""
        self.on_gpu: bool | None = None
        """Whether it was moved to a GPU; None: the script does not say."""
        self.has_adapters = False
        self.is_frozen = False
        """The script froze all of it, and trains no part of it that is seen."""
        self.frozen_at: str | None = None
        """Where the script decides itself which parameters train, since it has the adapters that it has."""
        self.passes: dict[int, str] = {}
        """Where its forward passes with gradients stand."""
        self.loops: list[int] = []
        """How many loops stand around each forward pass since the last backward pass."""
        self.runs_again = False
        """A loop runs it again before a backward pass."""
        self.has_labels = False
        """A forward pass may be given labels, and compute the loss."""
        notes.models.append(self)

    def attribute(self, name: str) -> Any:
        """Return a part, the config, a method, or the model itself behind a wrapper."""
        if name == "config":
            return self.config if self.config is not None else UNKNOWN
        return self if name in _TRANSPARENT else super().attribute(name)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to an attribute; modules replace a part."""
        if name == "config" and isinstance(value, ModelConfig):
            self.config = value
        else:
            super().set_attribute(name, value, call)

    def called(self, call: Call) -> Any:
        """Note a forward pass."""
        if not call.run.without_gradients:
            self.passes[id(call.node)] = call.where
            self.loops.append(len(call.run.loops))
            self.has_labels |= call.unknown_table is not None or "labels" in call.kwargs
        return UNKNOWN

    def put(self, name: str, value: Any, where: str, text: str) -> None:
        """Set what is known of it; the last value counts."""
        self.settings[name] = Setting(value=value, origin=f"{where}: {text}")
        self.unresolved.pop(name, None)

    def copy(self, where: str) -> "Model":
        """Return another model with the same weights."""
        other = Model(self.notes, where, self.label)
        other.source, other.config, other.on_gpu = self.source, self.config, self.on_gpu
        return other


_CHANGES = re.compile(
    r"(?i)wrap|lora|peft|adapter|quant|freez|prun|convert|inject|replace|attach|checkpointing"
    r"|(init|build|create|add|load|set)\w*_(vision|audio|speech|tower|module|encoder|projector|head|layer|token)"
)
"""Methods of a model's own class that change what it holds or trains."""
_MODULES = re.compile(
    r"(?i)head|model|encoder|decoder|transformer|embed|layer|score|classifier|backbone|bert|norm|proj|logit|loss|pool"
    r"|^\?$|^\d+$|_$"
)
"""Modules that scripts call directly, and methods of parameters, by their names."""


def models_in(value: Any, depth: int = 0) -> Iterator[Model]:
    """Yield the models that a value holds."""
    if isinstance(value, Part):
        yield value.owner
    elif depth < 5 and isinstance(value, list | tuple | dict):
        for item in list(value.values() if isinstance(value, dict) else value)[:2000]:
            yield from models_in(item, depth + 1)
    elif depth < 5 and isinstance(value, Thing):
        for item in value.parts():
            yield from models_in(item, depth + 1)


def _parameters(part: Part, call: Call) -> Any:
    """Return one parameter that stands for all, with its name where that is asked for."""
    found = Part(part.owner, part.name)
    return [(UNKNOWN, found)] if call.name.startswith("named") else [found]


def _to(part: Part, call: Call) -> Any:
    """Follow ``model.to(device, dtype)``."""
    values = [
        *enumerate(call.args),
        *((name, call.kwargs[name]) for name in ("device", "dtype") if name in call.kwargs),
    ]
    for key, value in values:
        shown = short_text(call.nodes.get(key))
        is_dtype = key == "dtype" or (isinstance(value, Name) and value.path.startswith("torch."))
        if is_dtype or (value is UNKNOWN and re.search(r"(?i)dtype|float|half|precision", shown)):
            _convert(part, value, call)
        elif not part.name:
            part.owner.on_gpu = not (isinstance(value, str) and value.startswith(("cpu", "meta")))
            part.owner.notes.note_device(value, call.where)
    return part


def _convert(part: Part, dtype: Any, call: Call) -> Any:
    """Convert a model's weights to a dtype."""
    owner, shown = part.owner, short_text(call.node)
    word = DTYPE_NAMES.get(str(plain(dtype)).rpartition(".")[2])
    if word is not None and not part.name:
        owner.put("dtype", word, call.where, f".{call.name}({', '.join(map(short_text, call.nodes.values()))})")
    elif part.name:
        sentence = f"{call.where}: {shown}: only part of the model is converted; the estimate counts one dtype."
        owner.notes.doubt(sentence, key="training.precision")
    else:
        owner.settings.pop("dtype", None)
        owner.settings.pop("torch_dtype", None)
        owner.unresolved["dtype"] = f"{call.where}: {shown} is only known when the script runs."
    return part


def _move(part: Part, call: Call) -> Any:
    if not part.name:
        part.owner.on_gpu = call.name == "cuda"
        if part.owner.on_gpu:
            part.owner.notes.note_device(call.value(0, "device", default="cuda"), call.where)
    return part


def _freeze(part: Part, call: Call) -> Any:
    """Follow ``requires_grad_(False)``, ``freeze()``, ``freeze_feature_encoder()`` and the like."""
    is_whole = call.name.removesuffix("_parameters") in ("freeze", "unfreeze", "requires_grad_")
    value = call.value(0, "requires_grad", default=True) if call.name == "requires_grad_" else call.name[0] == "u"
    (part if is_whole else Part(part.owner, "?")).freeze(value, call)
    return part


def _checkpoint(part: Part, call: Call) -> Any:
    owner, on = part.owner, "disable" not in call.name
    if not part.name or part.name in _BODY_NAMES:
        owner.put("activation_checkpointing", on, call.where, short_text(call.node))
    elif on:
        sentence = f"{call.where}: {short_text(call.node)}: checkpointing of part of the model is not counted."
        owner.notes.doubt(sentence)
    return None


def _resize(part: Part, call: Call) -> Any:
    """Follow ``resize_token_embeddings(n)``; by the tokens of a tokenizer the vocabulary hardly grows."""
    shown = short_text(call.nodes.get(0))
    if not re.fullmatch(r"len\(.*tok.*\)|.*tok\w*\.vocab_size", shown):
        sentence = f"{call.where}: resize_token_embeddings({shown}) is not read."
        part.owner.notes.doubt(sentence)
    return part


def _not_read(part: Part, call: Call) -> Any:
    """Doubt what changes the model or its training, unless it comes after the training."""
    if not part.owner.notes.trains:
        part.owner.notes.doubt(f"{call.where}: {short_text(call.node)} before the training is not read.")
    return part.owner


def _compile(part: Part, call: Call) -> Any:
    part.owner.put("torch_compile", True, call.where, "compile()")
    return None


def _hook(part: Part, call: Call) -> Any:
    """Note a communication hook of DDP's, which may copy its buckets."""
    part.owner.put("ddp_comm_hook", "hook", call.where, f".{call.name}(...)")
    return UNKNOWN


_METHODS: Mapping[str, Callable[[Part, Call], Any]] = {
    **dict.fromkeys(("parameters", "named_parameters"), _parameters),
    "to": _to,
    "type": lambda part, call: _convert(part, call.value(0, "dst_type"), call),
    **dict.fromkeys(("cuda", "cpu"), _move),
    **dict.fromkeys(("half", "bfloat16", "float"), lambda part, call: _convert(part, call.name, call)),
    **dict.fromkeys(("requires_grad_", "freeze", "freeze_parameters", "unfreeze", "unfreeze_parameters"), _freeze),
    **dict.fromkeys(("freeze_base_model", "freeze_backbone", "freeze_encoder"), _freeze),
    **dict.fromkeys(("freeze_feature_encoder", "freeze_feature_extractor"), _freeze),
    **dict.fromkeys(("gradient_checkpointing_enable", "gradient_checkpointing_disable"), _checkpoint),
    **dict.fromkeys(("enable_gradient_checkpointing", "disable_gradient_checkpointing"), _checkpoint),
    "_set_gradient_checkpointing": _checkpoint,
    "resize_token_embeddings": _resize,
    **dict.fromkeys(
        ("get_encoder", "get_decoder", "get_input_embeddings", "get_output_embeddings", "get_submodule"),
        lambda part, call: Part(part.owner, call.name),
    ),
    "add_adapter": lambda part, call: add_adapters(part.owner, call.value(0, "adapter_config", "peft_config"), call),
    "load_adapter": lambda part, call: _load_adapters(part.owner, call),
    "compile": _compile,
    "register_comm_hook": _hook,
    **dict.fromkeys(("merge_and_unload", "unload", "merge_adapter", "register_post_accumulate_grad_hook"), _not_read),
    **dict.fromkeys(_ITSELF, lambda part, _: part),
}
"""Methods of modules by name."""


# Adapters and quantization: peft, bitsandbytes, unsloth.


DECISIVE_ARGUMENTS = frozenset(library("transformers").key)
"""Arguments without whose values the estimate may be about another job."""
_LORA_NAMES = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "lora_dropout": "lora_dropout",
}
_WITHOUT_EFFECT = scripts().names["lora_without_effect"]
"""Arguments of ``LoraConfig`` and ``get_peft_model`` on which no bytes depend; any other is named as not counted."""
_QUANTIZATION_ARGUMENTS = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
_TUNER = re.compile(r"LoRA|Lora|IA3|Prompt|Prefix|OFT|Vera|LoKr|LoHa|FourierFT|LNTuning|Bone|Shira|Hira")
"""In the names of peft's configurations, where it is not known that they are peft's."""
_WITHOUT_RANK = ("Prompt", "Prefix", "IA3", "LNTuning", "FourierFT", "Vera", "AdaLora", "Trainable", "AdaptionPrompt")
"""Methods of peft whose parameters do not grow with a rank."""
UNSLOTH_CLASSES = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastTextModel")
_UNSLOTH_OTHER_PRECISIONS = ("load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")
_QUANTIZED_NAME = re.compile(r"(?i)gptq|awq|bnb|hqq|int[48]|[48]-?bit|fp8")
_DROPOUT = 0.05
"""``lora_dropout`` of TRL's ModelConfig."""


class AdapterConfig(Thing):
    """``LoraConfig(...)`` or another configuration of peft."""

    def __init__(self, call: Call) -> None:
        self.kind, self.where, self.settings = call.name, call.where, dict[str, Setting]()
        self.unresolved: dict[str, str] = {}
        _read_lora(call, self.settings, self.unresolved)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to an argument."""
        self.unresolved[name] = f"{call.where}: {self.kind}.{name} is set after the call, which is not read."


class QuantizationConfig(Thing):
    """``BitsAndBytesConfig(...)``."""

    def __init__(self, call: Call) -> None:
        self.settings: dict[str, Setting] = {}
        self.unresolved: dict[str, str] = {}
        for name in _QUANTIZATION_ARGUMENTS:
            setting = call.setting(name) if name in call.kwargs else None
            if setting is None and name in call.kwargs and name in DECISIVE_ARGUMENTS:
                self.unresolved[name] = _not_known(call, name)
            elif setting is not None and setting.value is not None:
                self.settings[name] = setting


def is_adapter_config(path: str) -> bool:
    """Return True for the constructor of one of peft's configurations."""
    name = path.rpartition(".")[2]
    return name.endswith("Config") and (path.startswith("peft.") or _TUNER.search(name) is not None)


def _read_lora(call: Call, into: dict[str, Setting], unresolved: dict[str, str]) -> None:
    """Read the arguments of ``LoraConfig`` under the names of our settings."""
    for name in call.kwargs:
        if name in _WITHOUT_EFFECT:
            continue
        setting = call.setting(name)
        if setting is None and name in DECISIVE_ARGUMENTS:
            unresolved[name] = _not_known(call, name)
        elif setting is None and name not in _LORA_NAMES:
            into[f"lora_{name}"] = Setting(value=True, origin=f"{call.where}: {call.shown(name)}")
        elif setting is not None and setting.value not in (None, False, [], {}):
            into[_LORA_NAMES.get(name, f"lora_{name}")] = setting


def add_adapters(model: Model, config: Any, call: Call, *, text: str = "") -> None:
    """Add adapters to a model: what it held so far is frozen."""
    model.frozen_at = model.frozen_at if model.has_adapters else None
    model.has_adapters, model.is_frozen = True, False
    if isinstance(config, AdapterConfig):
        model.unresolved.update(config.unresolved)
        if any(word in config.kind for word in _WITHOUT_RANK):
            sentence = f"{config.where}: the trained parameters of {config.kind} are not counted."
            model.notes.doubt(sentence, key="training.trainable_parameters")
            return
        model.settings.update(config.settings)
        if config.kind != "LoraConfig":
            sentence = f"{config.where}: {config.kind} is counted as LoRA adapters, from which it differs."
            model.notes.doubt(sentence, key="lora.rank")
    model.put("use_peft", True, call.where, text or f"{call.name}(...)")


def _load_adapters(model: Model, call: Call) -> None:
    """Note adapters that were trained before."""
    add_adapters(model, None, call)
    sentence = f"{call.where}: {call.name}(...) loads adapters; vramtop does not read their rank and layers."
    model.notes.doubt(sentence, key="lora.rank")


def get_peft_model(call: Call, notes: Notes) -> Any:
    """Follow ``get_peft_model(model, config)``, and unsloth's method of that name."""
    model, config = call.value(0, "model"), call.value(1, "peft_config")
    if not isinstance(model, Model):
        return UNKNOWN
    unsloth = call.owner in UNSLOTH_CLASSES
    if config is not None and not isinstance(config, AdapterConfig):
        shown = call.shown(1 if len(call.args) > 1 else "peft_config")
        sentence = f"{call.where}: the parameters that {shown} trains are not known; all are counted."
        notes.doubt(sentence, key="training.trainable")
        return model
    add_adapters(model, config, call)
    _read_lora(call, model.settings, model.unresolved)
    if call.value(None, "autocast_adapter_dtype", default=True) is False:
        model.put("lora_adapter_dtype", "as weights", call.where, "autocast_adapter_dtype=False")
    given = call.value(None, "use_gradient_checkpointing")
    if "use_gradient_checkpointing" in call.kwargs and given is not UNKNOWN:
        text = f"use_gradient_checkpointing={given!r}"
        model.put("activation_checkpointing", given not in (False, None), call.where, text)
        if given == "unsloth":
            model.put("activation_offloading", True, call.where, text)
    if unsloth:
        hints = {"lora_r": 16, "activation_checkpointing": True, "lora_target_modules": "all-linear"}
        if "use_gradient_checkpointing" not in call.kwargs:
            hints["activation_offloading"] = True
        for name, value in hints.items():
            model.hints.setdefault(name, default_setting(value, "unsloth's default"))
    notes.models = [each for each in notes.models if each is not model] + [model]
    return model


def _hint_unsloth_loading(model: Model, call: Call) -> None:
    """Assume 4 bits unless set otherwise, and a loss that makes no logits (unsloth's ``loader.py``)."""
    hints: dict[str, Any] = {"use_liger_kernel": True, "bnb_4bit_use_double_quant": True, "kbit_preparation": False}
    perhaps_on = {name for name, value in call.kwargs.items() if value is True or plain(value) is UNKNOWN}
    if perhaps_on.isdisjoint(_UNSLOTH_OTHER_PRECISIONS):
        hints["load_in_4bit"] = True
    if call.value(None, "fast_inference", default=False) is not False:
        model.notes.doubt(f"{call.where}: fast_inference starts vLLM in this process, which is not counted.")
    for name, value in hints.items():
        model.hints.setdefault(name, default_setting(value, "unsloth's default"))


def _not_known(call: Call, name: str) -> str:
    return f"{call.where}: {call.shown(name)} is only known when the script runs; its default is assumed."


def peft_config(call: Call, notes: Notes) -> Any:
    """Follow TRL's ``get_peft_config(model_args)``: None unless adapters are asked for."""
    known = truth(call.run.attribute(call.value(0), "use_peft"))
    if not known:
        return UNKNOWN if known is None else None
    dropout = plain(call.run.attribute(call.value(0), "lora_dropout"))
    found = AdapterConfig(Call(call.run, call.node, "LoraConfig"))
    origin = f"{call.where}: ModelConfig's lora_dropout"
    found.settings["lora_dropout"] = Setting(value=_DROPOUT if dropout is UNKNOWN else dropout, origin=origin)
    return found


def quantization_config(call: Call, notes: Notes) -> Any:
    """Follow TRL's ``get_quantization_config(model_args)``: None unless a quantization is asked for."""
    known = [truth(call.run.attribute(call.value(0), name)) for name in ("load_in_4bit", "load_in_8bit")]
    if True in known:
        return QuantizationConfig(Call(call.run, call.node, "BitsAndBytesConfig"))
    return UNKNOWN if None in known else None


def prepare_for_kbit(call: Call, notes: Notes) -> Any:
    """Follow peft's ``prepare_model_for_kbit_training``: it freezes the model, and checkpoints unless told not to.

    A model that is not quantized it casts to fp32 and does not checkpoint (peft/utils/other.py, 0.2 to 0.15).
    """
    model = call.value(0, "model", default=UNKNOWN)
    if isinstance(model, Model):
        model.is_frozen, model.frozen_at = True, call.where
        if _is_unquantized(model):
            if call.name == "prepare_model_for_kbit_training":
                model.put("dtype", "float32", call.where, f"{call.name}() of a model that is not quantized")
            return model
        checkpoints = call.value(1, "use_gradient_checkpointing", default=True)
        if checkpoints is UNKNOWN:
            model.unresolved["gradient_checkpointing"] = _not_known(call, "use_gradient_checkpointing")
        elif checkpoints is not False:
            model.put("activation_checkpointing", True, call.where, f"{call.name}()")
        model.put("kbit_preparation", True, call.where, f"{call.name}()")
    return model


def _is_unquantized(model: Model) -> bool:
    """Return True if the script says how a model is loaded, and nothing of it quantizes the weights."""
    names = ("load_in_4bit", "load_in_8bit", "quantization_config")
    table = model.config.table() if model.config is not None else None
    name = str(model.source.value) if model.source is not None else ""
    is_stored_so = "quantization_config" in table if table is not None else _QUANTIZED_NAME.search(name) is not None
    if not model.is_read or is_stored_so or model.unresolved.keys() & {*names}:
        return False
    return not any(setting.value for each in names if (setting := model.settings.get(each)) is not None)


# Calls that make models: ``from_pretrained``, ``from_config``, a class with a config, copies.


_LOADING_ARGUMENTS = ("dtype", "torch_dtype", "attn_implementation", "load_in_4bit", "load_in_8bit")
_NAME_ARGUMENTS = ("pretrained_model_name_or_path", "model_name")
_NOT_FIELDS = {*_LOADING_ARGUMENTS, *_NAME_ARGUMENTS, *LENGTH_ARGUMENTS, *scripts().names["no_fields_of_a_config"]}
"""Arguments of ``from_pretrained`` that are no fields of the config."""
_TASK_BY_CLASS_ENDING: Mapping[str, Task] = {
    **scripts().default["task"],
    **{f"For{''.join(word.capitalize() for word in task.split('-'))}": task for task in get_args(Task)},
}
_NO_MODEL_CLASS = re.compile(r"Collator|Output|Config|Processor|Trainer|Loss|Dataset|Metric|Pipeline|Mixin|Arguments")
_NO_MODELS = ("Tokenizer", "Processor", "FeatureExtractor", "GenerationConfig", "Scheduler")
_PEFT_CLASSES = ("PeftModel", "PeftModelForCausalLM", "PeftModelForSequenceClassification")


def _task_of(name: str) -> Task | None:
    """Return the task of a model class, by the end of its name; None if it is no model."""
    if _NO_MODEL_CLASS.search(name):
        return None
    return next((task for ending, task in _TASK_BY_CLASS_ENDING.items() if name.endswith(ending)), None)


def is_model_class(name: str) -> bool:
    """Return True for a name of transformers' models: ``LlamaForCausalLM``, ``AutoModel``."""
    stem = name.removesuffix("Model")
    known = stem in CONFIG_DEFAULTS or stem in ("Auto", *UNSLOTH_CLASSES)
    return _task_of(name) is not None or (stem != name and known)


def loads_model(owner: str) -> bool:
    """Return True for a class whose ``from_pretrained`` loads a model."""
    is_model = "Model" in owner or _task_of(owner) is not None
    return is_model and not any(word in owner for word in (*_NO_MODELS, "Config"))


def from_pretrained(call: Call, notes: Notes) -> Any:
    """Follow ``AutoModelForX.from_pretrained("id", dtype=...)``, and the same for configs, tokenizers and adapters."""
    owner = call.owner
    if owner in _PEFT_CLASSES:
        model = call.value(0, "model")
        if not isinstance(model, Model):
            return UNKNOWN
        _load_adapters(model, call)
        return model
    if owner.endswith("Config") and not owner.endswith("GenerationConfig"):
        return _load_config(call, notes)
    if not loads_model(owner):
        return UNKNOWN
    model = Model(notes, call.where, f"{owner}.{call.name}")
    _read_task(model, owner, call)
    first = call.value(0, *_NAME_ARGUMENTS)
    if isinstance(first, Model):  # TRL's models with a value head
        notes.models.remove(model)
        return first
    if call.name == "from_config":
        _take_config(model, first if isinstance(first, ModelConfig) else call.value(None, "config"), call, notes)
    else:
        model.source = _name_of(call, f"{owner}.{call.name}")
        given = call.value(None, "config")
        model.config = given if isinstance(given, ModelConfig) else ModelConfig(notes, kind=None, source=model.source)
        if isinstance(given, ModelConfig):
            model.settings.update(given.settings)
        elif model.source is None:
            model.config = None
            notes.doubt(f"{call.where}: which model {owner} loads is only known when the script runs.", key="model.id")
    _read_loading(model, call, notes)
    if owner in UNSLOTH_CLASSES:
        _hint_unsloth_loading(model, call)
        return (model, UNKNOWN)
    return model


def _name_of(call: Call, label: str) -> Setting | None:
    """Return the name that a call loads a model by; None: it is not known."""
    key: str | int = 0 if call.args else next((name for name in _NAME_ARGUMENTS if name in call.kwargs), "")
    setting = call.setting(key, label) if key != "" else None
    return setting if setting is not None and isinstance(setting.value, str) else None


def from_class(call: Call, notes: Notes) -> Any:
    """Follow ``LlamaForCausalLM(config)``."""
    model = Model(notes, call.where, f"{call.name}(...)")
    _read_task(model, call.name, call)
    _take_config(model, call.value(0, "config"), call, notes)
    return model


def config_class(call: Call, notes: Notes) -> Any:
    """Follow ``LlamaConfig(hidden_size=64)``."""
    config = ModelConfig(notes, kind=call.name.removesuffix("Config"), source=None)
    config.set_fields(call, call.name)
    return config


def _load_config(call: Call, notes: Notes) -> Any:
    kind = call.owner.removesuffix("Config")
    if call.owner not in ("AutoConfig", "PretrainedConfig") and kind not in CONFIG_DEFAULTS:
        return UNKNOWN
    name = call.setting(0) if call.args else None
    if call.name == "for_model" or name is None or not isinstance(name.value, str):
        return UNKNOWN
    config = ModelConfig(notes, kind=None, source=name)
    config.set_fields(call, f"{call.owner}.{call.name}")
    return config


def _doubt_table(call: Call, label: str, notes: Notes) -> None:
    if call.unknown_table is not None:
        notes.doubt(f"{call.where}: {label}(**{short_text(call.unknown_table)}) is only known when the script runs.")


def _take_config(model: Model, config: Any, call: Call, notes: Notes) -> None:
    """Make a model from a config alone: its weights are in torch's default type."""
    if isinstance(config, ModelConfig):
        model.config = config
        model.settings.update({name: each for name, each in config.settings.items() if "dtype" not in name})
    else:
        notes.doubt(f"{call.where}: the config of {call.name}(...) is not known.", key="model.id")
    if call.value(None, "dtype", "torch_dtype") is None:
        origin = f"{call.where}: {call.name}(config), a model made from its config alone"
        model.settings["dtype"] = Setting(value="float32", origin=origin)


def _read_task(model: Model, owner: str, call: Call) -> None:
    task = _task_of(owner)
    if task == "multiple-choice":
        sentence = f"{call.where}: {owner} puts every choice of an example through the model; how many is not known."
        model.notes.doubt(sentence, key="training.sequences_per_example", asks=True)
    if task is None and is_model_class(owner) and owner not in UNSLOTH_CLASSES:
        task = "feature-extraction"
    if call.own_class is not None:
        sentence = f"{call.where}: the script's own class {call.own_class.name} makes the model; {owner} is counted."
        model.notes.doubt(sentence)
        task = None if owner.endswith("PreTrainedModel") else task
    elif task is None and "For" in owner:
        sentence = f"{call.where}: the head of {owner} is not known; the family's usual one is counted."
        model.notes.doubt(sentence, key="model.task")
    if task is not None:
        label = f"{owner}.{call.name}" if call.name.startswith("from_") else f"{call.name}(...)"
        model.task = Setting(value=task, origin=f"{call.where}: {label}")


def _read_loading(model: Model, call: Call, notes: Notes) -> None:
    """Read dtype, attention, quantization, device, and fields of the config."""
    label = f"{call.owner}.{call.name}"
    for name in (*_LOADING_ARGUMENTS, "device_map", "max_memory"):
        setting = call.setting(name, label) if name in call.kwargs else None
        if setting is not None and setting.value is not None:
            model.settings[name] = setting
        elif setting is None and name in call.kwargs and name in DECISIVE_ARGUMENTS:
            shown = f"{label}({name}={short_text(call.nodes.get(name))})"
            sentence = f"{call.where}: {shown} is only known when the script runs; its default is assumed."
            model.unresolved[name] = sentence
        elif setting is None and name in call.kwargs and call.kwargs[name] is not None:
            notes.doubt(f"{call.where}: {label}({name}=...) is only known when the script runs.")
    for name in LENGTH_ARGUMENTS:
        setting = call.setting(name, label) if name in call.kwargs else None
        if setting is not None and setting.value is not None:
            notes.hints.setdefault(name, setting)
    if call.value(None, "trust_remote_code") is True:
        model.put("script_remote_code", True, call.where, f"{label}(trust_remote_code=True)")
    if call.value(None, "use_flash_attention_2") is True:  # until 4.52
        model.put("attn_implementation", "flash_attention_2", call.where, f"{label}(use_flash_attention_2=True)")
    _read_quantization(model, call)
    device = call.value(None, "device_map")
    if device is not None:
        model.on_gpu = not (device == "cpu" or (isinstance(device, dict) and set(device.values()) == {"cpu"}))
        notes.note_device(device.get("") if isinstance(device, dict) else device, call.where)
    _doubt_table(call, label, notes)
    is_known = call.unknown_table is None and call.value(None, "quantization_config") is not UNKNOWN
    model.is_read = is_known and call.owner not in UNSLOTH_CLASSES
    fields = {name: value for name, value in call.kwargs.items() if name not in _NOT_FIELDS}
    if fields and call.name != "from_config" and model.config is not None:
        model.config = model.config.copy()
        for name, value in fields.items():
            model.config.set_field(name, value, call.where, f"{label}({name}={short_text(call.nodes.get(name))})")


def _read_quantization(model: Model, call: Call) -> None:
    config = call.value(None, "quantization_config")
    if isinstance(config, QuantizationConfig):
        model.settings.update(config.settings)
        model.unresolved.update(config.unresolved)
        model.put("bitsandbytes_config", True, call.where, "BitsAndBytesConfig(...)")
    elif config is not None:
        shown = f"{call.where}: quantization_config={short_text(call.nodes.get('quantization_config'))}"
        sentence = f"{shown} is only known when the script runs."
        model.notes.doubt(sentence, key="lora.quantization")


def not_followed(call: Call, notes: Notes) -> Any:
    """Doubt the model that a class trains, as its arguments are not read, even if another line names a model."""
    notes.doubt(f"{call.where}: {call.name}(...) is not read.", key="model.id", asks=True)
    return UNKNOWN


def copy_value(call: Call, notes: Notes) -> Any:
    """Follow ``deepcopy(x)``."""
    value = call.value(0, default=UNKNOWN)
    return value.copy(call.where) if isinstance(value, Model | ModelConfig) else UNKNOWN
