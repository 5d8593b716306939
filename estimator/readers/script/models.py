"""Models of a script: which they are, their dtype, quantization and adapters, and what of them is trained."""

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ...job.rules.strategies import DTYPE_NAMES
from ..arguments.table import scripts
from ..source.settings import Setting
from .configs import ModelConfig
from .values import ONLY_WHEN_IT_RUNS, UNKNOWN, Attribute, Call, Name, Record, Thing, plain, short_text

_TRANSPARENT = ("module", "_orig_mod", "_fsdp_wrapped_module", "pretrained_model", "base_model")
"""Attributes under which wrappers keep the model itself."""
_QUIET_METHODS = scripts().names["quiet_methods"]
_ITSELF = scripts().names["methods_that_return_the_model"]
BODY_NAMES = frozenset(
    {"model", "transformer", "base_model", "backbone", "bert", "roberta", "distilbert", "albert", "deberta", "electra"}
    | {"gpt_neox", "language_model", "llm"}
)
"""Parts in which nearly all of a model lies."""
_CHANGES = re.compile(
    r"(?i)wrap|lora|peft|adapter|quant|freez|prun|convert|inject|replace|attach|checkpointing"
    r"|(init|build|create|add|load|set)\w*_(vision|audio|speech|tower|module|encoder|projector|head|layer|token)"
)
"""Methods of a model's own class that change what it holds or trains."""
_KEEPS_SIZE = re.compile(r"(len\([\w.]*tok\w*\)|[\w.]*(tok\w*|config)\.vocab_size)( \+ \d{1,3})?")
"""A vocabulary as large as that of a tokenizer."""
STORED = ("dtype", "torch_dtype", "load_in_4bit", "load_in_8bit")
"""Settings of how weights are stored."""


class Part(Thing):
    """A module of a model, or its parameters, by its last name inside; the empty name is the whole model."""

    def __init__(self, owner: "Model", name: str) -> None:
        self.owner: Model = owner
        self.name = name

    def attribute(self, name: str) -> Any:
        """Return a module inside, or a method."""
        if has_method(name):
            return Attribute(self, name)
        if name in ("device", "dtype", "training", "name_or_path", "hf_device_map", "grad"):
            return UNKNOWN
        if name == "requires_grad":
            return True
        return self.owner.attribute(name) if name == "config" else Part(self.owner, name)

    def item(self, key: Any) -> Any:
        """Return one of several layers."""
        return Part(self.owner, str(key) if isinstance(key, int) else "?")

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment: a module replaces a part of the model."""
        if name == "requires_grad":
            self.freeze(value, call)
        elif isinstance(value, Thing) or "checkpointing" in name:
            sentence = f"what the script puts in the place of {self.name or 'model'}.{name} is not counted."
            keeps = name == "lm_head" and any(models_in(value))  # with another type of what it returns
            call.doubt(sentence, key="training.loss" if keeps else None)

    def freeze(self, value: Any, call: Call) -> None:
        """Note that parameters are frozen or trained; which of them is only known when the script runs."""
        self.owner.frozen_at = call.where
        self.owner.is_frozen = not self.name and value is False

    def method(self, call: Call) -> Any:
        """Return the result of calling a method of the module."""
        method = _METHODS.get(call.name)
        if method is not None:
            return method(self, call)
        if call.name in _ITSELF:
            return self
        return UNKNOWN if call.name in _QUIET_METHODS or call.name.startswith(("get_", "is_", "_")) else self.owner

    def called(self, call: Call) -> Any:
        """Return the result of a forward pass of the part, or of a method of the model's own class."""
        name = self.name
        if _CHANGES.search(name) and not name.startswith(("save_", "push_")):
            call.doubt(f"{name}(...) may change the model; vramtop does not follow it.")
            return self.owner
        return UNKNOWN

    def elements(self) -> list[Any]:
        """Return one module that stands for all: ``for layer in model.layers``."""
        return [Part(self.owner, "?")]


class Model(Part):
    """A model, whatever wraps it.

    Args:
        call: the call that makes it.
        label: that call for people.
    """

    def __init__(self, call: Call, label: str) -> None:
        super().__init__(self, "")
        self.where, self.label = call.where, label
        self.source: Setting | None = None
        """The model's name; None: it is made from a config."""
        self.task: Setting | None = None
        self.is_read = False
        """It is loaded with arguments that are all known."""
        self.settings: dict[str, Setting] = {}
        """What is known of it by the names of transformers' arguments: dtype, attention, quantization, LoRA."""
        self.hints: dict[str, Setting] = {}
        self.config: ModelConfig | None = None
        self.changed_unseen = False
        """Something that is not followed was given it, and may have changed it."""
        self.on_gpu: bool | None = None
        """Whether it was moved to a GPU; None: the script does not say."""
        self.is_later = call.notes.trains
        """It is loaded after the training."""
        self.has_adapters = False
        self.is_frozen = False
        """The script froze all of it, and trains no part of it that is seen."""
        self.frozen_at: str | None = None
        """Where the script decides itself which parameters train, since it has the adapters that it has."""
        self.adapters_from: Call | None = None
        """What loads adapters that were trained before."""
        call.notes.models.append(self)

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
        """Note a forward pass that returns what each layer computes."""
        for name in ("output_attentions", "output_hidden_states"):
            if call.value(None, name) not in (None, False):
                call.doubt(f"{name} keeps what each layer returns, which is not counted.", key="model.attention")
        return UNKNOWN

    def put(self, name: str, value: Any, call: Call, text: str) -> None:
        """Set what is known of it; the last value counts."""
        self.settings[name] = Setting(value=value, origin=f"{call.where}: {text}")

    def stored(self) -> dict[str, Any]:
        """Return what is known of the type of its weights."""
        return {name: self.settings[name].value for name in STORED if name in self.settings}

    def move(self, device: Any, call: Call) -> None:
        """Take the device that it is put on."""
        on_gpu = not (isinstance(device, str) and device.startswith(("cpu", "meta")))
        self.on_gpu = on_gpu or (self.on_gpu if call.notes.trains else False)
        call.notes.note_device(device, call.where)


def models_in(value: Any, depth: int = 0) -> Iterator[Model]:
    """Yield the models that a value holds."""
    if isinstance(value, Part):
        yield value.owner
    elif depth < 5 and isinstance(value, list | tuple | dict | Thing):
        items = value.values() if isinstance(value, dict) else value.parts() if isinstance(value, Thing) else value
        for item in list(items)[:2000]:
            yield from models_in(item, depth + 1)


def _parameters(part: Part, call: Call) -> Any:
    """Return one parameter that stands for all, with its name where that is asked for."""
    found = Part(part.owner, part.name)
    return [(UNKNOWN, found)] if call.name.startswith("named") else [found]


def _to(part: Part, call: Call) -> Any:
    """Follow ``model.to(device, dtype)``."""
    values: list[tuple[str | int, Any]] = [*enumerate(call.args), *call.kwargs.items()]
    for key, value in values:
        shown = short_text(call.nodes.get(key))
        is_dtype = key == "dtype" or (isinstance(value, Name) and value.path.startswith("torch."))
        if is_dtype or (value is UNKNOWN and re.search(r"(?i)dtype|float|half|precision", shown)):
            _convert(part, value, call)
        elif not part.name and (key == "device" or isinstance(key, int)):
            part.owner.move(value, call)
    return part


def _convert(part: Part, dtype: Any, call: Call) -> Any:
    """Convert a model's weights to a dtype."""
    word = DTYPE_NAMES.get(str(plain(dtype)).rpartition(".")[2])
    shown = short_text(call.node)
    if part.name:
        shown += ": only part of the model is converted; the estimate counts one dtype."
        call.doubt(shown, key="training.precision")
    elif word is not None:
        part.owner.put("dtype", word, call, f".{call.name}({', '.join(map(short_text, call.nodes.values()))})")
    else:
        part.owner.settings.pop("torch_dtype", None)
        part.owner.put("dtype", UNKNOWN, call, f"{shown} is only known when the script runs.")
    return part


def _move(part: Part, call: Call) -> Any:
    if not part.name:
        part.owner.move("cpu" if call.name == "cpu" else call.value(0, "device", default="cuda"), call)
    return part


def _freeze(part: Part, call: Call) -> Any:
    """Follow ``requires_grad_(False)``, ``freeze()``, ``freeze_feature_encoder()`` and the like."""
    is_whole = call.name.removesuffix("_parameters") in ("freeze", "unfreeze", "requires_grad_")
    value = call.value(0, "requires_grad", default=True) if call.name == "requires_grad_" else call.name[0] == "u"
    (part if is_whole else Part(part.owner, "?")).freeze(value, call)
    return part


def _checkpoint(part: Part, call: Call) -> Any:
    on = "disable" not in call.name
    if not part.name or part.name in BODY_NAMES:
        part.owner.put("activation_checkpointing", on, call, short_text(call.node))
    elif on:
        call.doubt(f"{short_text(call.node)}: checkpointing of part of the model is not counted.")


def _resize(part: Part, call: Call) -> Any:
    """Follow ``resize_token_embeddings(n)``; by a few tokens of a tokenizer the vocabulary hardly grows."""
    key: str | int = "new_num_tokens" if "new_num_tokens" in call.kwargs else 0
    shown, value = short_text(call.nodes.get(key)), call.value(0, "new_num_tokens")
    if type(value) is int and part.owner.config is not None:
        part.owner.config.take("vocab_size", call.setting(key), call)
    elif not _KEEPS_SIZE.fullmatch(shown):
        call.doubt(f"resize_token_embeddings({shown}) may add many tokens, which are not counted.")
    return part


def _not_read(part: Part, call: Call) -> Any:
    """Doubt what changes the model or its training, unless it comes after the training."""
    if not call.notes.trains:
        call.doubt(f"{short_text(call.node)} before the training is not read.")
    return part.owner


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
    **dict.fromkeys(("activation_checkpointing_enable", "activation_checkpointing_disable"), _checkpoint),
    **dict.fromkeys(("enable_gradient_checkpointing", "disable_gradient_checkpointing"), _checkpoint),
    "_set_gradient_checkpointing": _checkpoint,
    "resize_token_embeddings": _resize,
    **dict.fromkeys(
        ("get_encoder", "get_decoder", "get_input_embeddings", "get_output_embeddings", "get_submodule"),
        lambda part, call: Part(part.owner, call.name),
    ),
    "add_adapter": lambda part, call: add_adapters(part.owner, call.value(0, "adapter_config", "peft_config"), call),
    "load_adapter": lambda part, call: load_adapters(part.owner, call),
    "compile": lambda part, call: part.owner.put("torch_compile", True, call, "compile()"),
    "register_comm_hook": lambda part, call: part.owner.put("ddp_comm_hook", "hook", call, f".{call.name}(...)"),
    **dict.fromkeys(("merge_and_unload", "unload", "merge_adapter", "register_post_accumulate_grad_hook"), _not_read),
}
"""Methods of modules by name."""


def has_method(name: str) -> bool:
    """Return True for a method that every model of transformers' has."""
    return name in _METHODS or name in _QUIET_METHODS or name in _ITSELF


_LORA_NAMES = {"r": "lora_r", "target_modules": "lora_target_modules", "lora_dropout": "lora_dropout"}
_WITHOUT_EFFECT = scripts().names["lora_without_effect"]
"""Arguments of ``LoraConfig`` and ``get_peft_model`` on which no bytes depend; any other is named as not counted."""
_TUNER = re.compile(r"LoRA|Lora|IA3|Prompt|Prefix|OFT|Vera|LoKr|LoHa|FourierFT|LNTuning|Bone|Shira|Hira")
"""In the names of peft's configurations, where it is not known that they are peft's."""
_WITHOUT_RANK = ("Prompt", "Prefix", "IA3", "LNTuning", "FourierFT", "Vera", "AdaLora", "Trainable", "AdaptionPrompt")
"""Methods of peft whose parameters do not grow with a rank."""


class AdapterConfig(Record):
    """``LoraConfig(...)`` or another configuration of peft."""

    decisive = MappingProxyType({"r": "lora.rank", "target_modules": "lora.targets"})

    def counted(self) -> dict[str, Setting]:
        """Return its arguments under the names of our settings; of others only that they are given."""
        by_default = self.name == "LoraConfig" and "r" not in self.settings
        found = {"lora_r": Setting.default(8, "peft's default rank")} if by_default else {}
        for name, setting in self.settings.items():
            is_known = setting.value is not UNKNOWN
            if name in _LORA_NAMES and not is_known:
                found[name] = setting
            elif name not in _WITHOUT_EFFECT and setting.value not in (None, False, [], {}):
                given = Setting(value=True, origin=setting.origin.removesuffix(ONLY_WHEN_IT_RUNS))
                found[_LORA_NAMES.get(name, f"lora_{name}")] = setting if is_known else given
        return found


_QUANTIZATION_ARGUMENTS = (
    *("load_in_4bit", "load_in_8bit"),
    *("bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage"),
)


class QuantizationConfig(Record):
    """``BitsAndBytesConfig(...)``."""

    decisive = MappingProxyType({"load_in_4bit": "lora.quantization"})

    def counted(self) -> dict[str, Setting]:
        """Return the settings that decide the format of the weights."""
        found = {name: self.settings[name] for name in _QUANTIZATION_ARGUMENTS if name in self.settings}
        return {name: setting for name, setting in found.items() if setting.value is not None}


def is_adapter_config(path: str) -> bool:
    """Return True for the constructor of one of peft's configurations."""
    name = path.rpartition(".")[2]
    return name.endswith("Config") and (path.startswith("peft.") or _TUNER.search(name) is not None)


def add_adapters(model: Model, config: Any, call: Call, *, text: str = "") -> None:
    """Add adapters to a model: what it held so far is frozen."""
    model.frozen_at = model.frozen_at if model.has_adapters else None
    model.has_adapters, model.is_frozen = True, False
    if isinstance(config, AdapterConfig):
        if any(word in config.name for word in _WITHOUT_RANK):
            sentence = f"{config.where}: the trained parameters of {config.name} are not counted."
            call.notes.doubt(sentence, key="training.trainable_parameters")
            return
        model.settings.update(config.counted())
        if config.name != "LoraConfig":
            sentence = f"{config.where}: {config.name} is counted as LoRA adapters, from which it differs."
            call.notes.doubt(sentence, key="lora.rank")
    model.put("use_peft", True, call, text or f"{call.name}(...)")


def load_adapters(model: Model, call: Call) -> Model:
    """Note adapters that were trained before."""
    add_adapters(model, None, call)
    model.adapters_from = call
    return model
