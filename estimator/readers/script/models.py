"""Models of a script: which they are, their dtype, quantization and adapters, and what of them is trained."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from ...job.rules.strategies import DTYPE_NAMES
from ...job.settings import Task
from ..arguments.table import scripts
from ..source.settings import Setting
from .operators import truth
from .values import ONLY_WHEN_IT_RUNS, UNKNOWN, Attribute, Call, Name, Record, Thing, plain, short_text

# Configs: defaults of transformers' classes (its ``models/<family>``, version 5), and what a script changes of them.


CONFIG_DEFAULTS = scripts().config
"""``model_type`` and defaults by what a class's name begins with: ``Llama`` of ``LlamaConfig``."""
_FIELD_NAMES = scripts().aliases["config"]
"""Names that families have for a field which transformers also offers under its general name."""
_SHAPE_FIELDS = scripts().names["shape_fields"]
"""Fields on which parameters or activations depend."""
_ADDS_PARTS = re.compile(r"lora|adapter|prefix|pre_?seq|prompt|quant|experts|compress")
"""In the names of config fields by which a model's own code adds or changes parts."""
_OF_THE_WEIGHTS = ("attn_implementation", "dtype", "torch_dtype")
"""Fields that ``from_pretrained`` takes too."""
LENGTH_ARGUMENTS = scripts().aliases["argument"]["length"]


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
        """``attn_implementation`` and ``dtype``, which may be set on the config too."""

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
        elif value is UNKNOWN:
            if name in _SHAPE_FIELDS - {"num_labels"}:
                call.notes.doubt(setting.origin)
        elif name in ("id2label", "label2id") and isinstance(value, dict):
            self._changes.setdefault("num_labels", setting.with_value(len(value)))
        elif not isinstance(value, dict):
            if value and _ADDS_PARTS.search(name) and name not in (self._base() or ()):
                call.notes.doubt(f"{setting.origin} may add or change parts of the model; vramtop does not follow it.")
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


# Models and their parts.


_TRANSPARENT = ("module", "_orig_mod", "_fsdp_wrapped_module", "pretrained_model", "base_model")
"""Attributes under which wrappers keep the model itself."""
_HARMLESS_ATTRIBUTES = re.compile(
    r"(?i)^\.?_|\.(_\w+|p|rate)$|dropout|parallel|name|path|token|label|warn|metric|class_|state_dict|generat|device|version|_id$|info|card|logg|seed"
    r"|is_|items$|evaluat|predict|config|train|step|epoch|weight|bias|data|save|print|hook|tag|language|template|prompt|use_cache|seq"
)
"""Attributes of a model that scripts set without changing the memory of a step."""
_QUIET_METHODS = scripts().names["quiet_methods"]
_ITSELF = scripts().names["methods_that_return_the_model"]
_BODY_NAMES = ("model", "transformer", "bert", "roberta", "distilbert", "gpt_neox", "language_model", "llm")
"""Parts in which nearly all of a model lies."""
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


class Part(Thing):
    """A module of a model, or its parameters, by its last name inside; the empty name is the whole model."""

    def __init__(self, owner: "Model", name: str) -> None:
        self.owner: Model = owner
        self.name = name

    def attribute(self, name: str) -> Any:
        """Return a module inside, or a method."""
        if has_method(name):
            return Attribute(self, name)
        if name in ("device", "dtype", "training", "name_or_path", "hf_device_map", "grad", "data"):
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
        elif name.endswith("gradient_checkpointing") and value is True:  # transformers until 4.35
            _checkpoint(self, call)
        elif not _HARMLESS_ATTRIBUTES.search(f"{self.name}.{name}") or isinstance(value, Thing):
            call.doubt(f"what the script puts in the place of {self.name or 'model'}.{name} is not counted.")

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
        if _CHANGES.search(name) or not (_MODULES.search(name) or _HARMLESS_ATTRIBUTES.search(name)):
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
        """Note a forward pass of the model."""
        if call.run.without_gradients:
            return UNKNOWN
        self.passes[id(call.node)] = call.where
        for name in ("output_attentions", "output_hidden_states"):
            if call.value(None, name) not in (None, False):
                call.doubt(f"{name} keeps what each layer returns, which is not counted.", key="model.attention")
        self.loops.append(len(call.run.loops))
        self.has_labels |= call.unknown_table is not None or "labels" in call.kwargs
        return Outputs(call.where)

    def put(self, name: str, value: Any, call: Call, text: str) -> None:
        """Set what is known of it; the last value counts."""
        self.settings[name] = Setting(value=value, origin=f"{call.where}: {text}")

    def stored(self) -> dict[str, Any]:
        """Return what is known of the type of its weights."""
        return {name: self.settings[name].value for name in _STORED if name in self.settings}

    def move(self, device: Any, call: Call) -> None:
        """Take the device that it is put on."""
        on_gpu = not (isinstance(device, str) and device.startswith(("cpu", "meta")))
        self.on_gpu = on_gpu or (self.on_gpu if call.notes.trains else False)
        call.notes.note_device(device, call.where)


class Outputs(Thing):
    """The outputs of a forward pass, which a name may keep until the next one."""

    def __init__(self, where: str) -> None:
        self.where, self.is_read = where, False

    def attribute(self, name: str) -> Any:
        """Note that it is an object of transformers' with a loss or logits."""
        self.is_read |= name in ("loss", "logits")
        return UNKNOWN


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
    if not part.name or part.name in _BODY_NAMES:
        part.owner.put("activation_checkpointing", on, call, short_text(call.node))
    elif on:
        call.doubt(f"{short_text(call.node)}: checkpointing of part of the model is not counted.")


def _resize(part: Part, call: Call) -> Any:
    """Follow ``resize_token_embeddings(n)``; by a few tokens of a tokenizer the vocabulary hardly grows."""
    key: str | int = "new_num_tokens" if "new_num_tokens" in call.kwargs else 0
    shown, value = short_text(call.nodes.get(key)), call.value(0, "new_num_tokens")
    if type(value) is int and part.owner.config is not None:
        part.owner.config.take("vocab_size", call.setting(key), call)
    elif not re.search(r"len\(.*tok|(tok\w*|config)\.vocab_size", shown) or call.notes.adds_tokens:
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
    "load_adapter": lambda part, call: _load_adapters(part.owner, call),
    "compile": lambda part, call: part.owner.put("torch_compile", True, call, "compile()"),
    "register_comm_hook": lambda part, call: part.owner.put("ddp_comm_hook", "hook", call, f".{call.name}(...)"),
    **dict.fromkeys(("merge_and_unload", "unload", "merge_adapter", "register_post_accumulate_grad_hook"), _not_read),
}
"""Methods of modules by name."""


def has_method(name: str) -> bool:
    """Return True for a method that every model of transformers' has."""
    return name in _METHODS or name in _QUIET_METHODS or name in _ITSELF


# Adapters and quantization: peft, bitsandbytes, unsloth.


_LORA_NAMES = {"r": "lora_r", "target_modules": "lora_target_modules", "lora_dropout": "lora_dropout"}
_WITHOUT_EFFECT = scripts().names["lora_without_effect"]
"""Arguments of ``LoraConfig`` and ``get_peft_model`` on which no bytes depend; any other is named as not counted."""
_QUANTIZATION_ARGUMENTS = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
_TUNER = re.compile(r"LoRA|Lora|IA3|Prompt|Prefix|OFT|Vera|LoKr|LoHa|FourierFT|LNTuning|Bone|Shira|Hira")
"""In the names of peft's configurations, where it is not known that they are peft's."""
_WITHOUT_RANK = ("Prompt", "Prefix", "IA3", "LNTuning", "FourierFT", "Vera", "AdaLora", "Trainable", "AdaptionPrompt")
"""Methods of peft whose parameters do not grow with a rank."""
_UNSLOTH_CLASSES = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastTextModel")
_UNSLOTH_OTHER_PRECISIONS = ("load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")
_QUANTIZED_NAME = re.compile(r"(?i)gptq|awq|bnb|hqq|int[48]|[48]-?bit|fp8")
_DROPOUT = 0.05
"""``lora_dropout`` of TRL's ModelConfig."""


class AdapterConfig(Record):
    """``LoraConfig(...)`` or another configuration of peft."""

    def counted(self) -> dict[str, Setting]:
        """Return its arguments under the names of our settings; of others only that they are given."""
        found: dict[str, Setting] = {}
        for name, setting in self.settings.items():
            is_known = setting.value is not UNKNOWN
            if name in _LORA_NAMES and not is_known:
                found[name] = setting
            elif name not in _WITHOUT_EFFECT and setting.value not in (None, False, [], {}):
                given = Setting(value=True, origin=setting.origin.removesuffix(ONLY_WHEN_IT_RUNS))
                found[_LORA_NAMES.get(name, f"lora_{name}")] = setting if is_known else given
        return found


class QuantizationConfig(Record):
    """``BitsAndBytesConfig(...)``."""


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


def _load_adapters(model: Model, call: Call) -> Model:
    """Note adapters that were trained before."""
    add_adapters(model, None, call)
    call.doubt(f"{call.name}(...) loads adapters; vramtop does not read their rank and layers.", key="lora.rank")
    return model


def _get_peft_model(call: Call) -> Any:
    """Follow ``get_peft_model(model, config)``, and unsloth's method of that name."""
    model, config = call.value(0, "model"), call.value(1, "peft_config")
    if not isinstance(model, Model):
        return UNKNOWN
    if config is not None and not isinstance(config, AdapterConfig):
        shown = call.shown(1 if len(call.args) > 1 else "peft_config")
        call.doubt(f"the parameters that {shown} trains are not known; all are counted.", key="training.trainable")
        return model
    add_adapters(model, config, call)
    model.settings.update(AdapterConfig(call).counted())
    if call.value(None, "autocast_adapter_dtype", default=True) is False:
        model.put("lora_adapter_dtype", "as weights", call, "autocast_adapter_dtype=False")
    given = call.value(None, "use_gradient_checkpointing")
    if given is not None and given is not UNKNOWN:
        text = f"use_gradient_checkpointing={given!r}"
        model.put("activation_checkpointing", given is not False, call, text)
        if given == "unsloth":
            model.put("activation_offloading", True, call, text)
    if call.owner in _UNSLOTH_CLASSES:
        hints = {"lora_r": 16, "activation_checkpointing": True, "lora_target_modules": "all-linear"}
        hints |= {"activation_offloading": True} if "use_gradient_checkpointing" not in call.kwargs else {}
        model.hints |= {name: Setting.default(value, "unsloth's default") for name, value in hints.items()}
    call.notes.models = [each for each in call.notes.models if each is not model] + [model]
    return model


def _hint_unsloth_loading(model: Model, call: Call) -> None:
    """Assume 4 bits unless set otherwise, and a loss that makes no logits (unsloth's ``loader.py``)."""
    hints: dict[str, Any] = {"use_liger_kernel": True, "bnb_4bit_use_double_quant": True, "kbit_preparation": False}
    perhaps_on = {name for name, value in call.kwargs.items() if value is True or plain(value) is UNKNOWN}
    if perhaps_on.isdisjoint(_UNSLOTH_OTHER_PRECISIONS):
        hints["load_in_4bit"] = True
    if call.value(None, "fast_inference", default=False) is not False:
        share = call.value(None, "gpu_memory_utilization", default=0.5)
        hints |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": plain(share)}
    model.hints |= {name: Setting.default(value, "unsloth's default") for name, value in hints.items()}


class _AdaptersOfOptions(AdapterConfig):
    """Adapters of TRL's options, which assignments replace."""

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        super().set_attribute(name, value, call)
        call.notes.options.assigned[name if name.startswith("lora_") else f"lora_{name}"] = call.setting(0)


def _peft_config(call: Call) -> Any:
    """Follow TRL's ``get_peft_config(model_args)``: None unless adapters are asked for."""
    known = truth(call.run.attribute(call.value(0), "use_peft"))
    if not known:
        return UNKNOWN if known is None else None
    dropout = plain(call.run.attribute(call.value(0), "lora_dropout"))
    dropout = _DROPOUT if dropout is UNKNOWN else dropout
    return _AdaptersOfOptions(Call(call.run, call.node, "LoraConfig", kwargs={"lora_dropout": dropout}))


def _quantization_config(call: Call) -> Any:
    """Follow TRL's ``get_quantization_config(model_args)``: None unless a quantization is asked for."""
    names = ("load_in_4bit", "load_in_8bit")
    known = {name: truth(call.run.attribute(call.value(0), name)) for name in names}
    asked = {name: True for name, value in known.items() if value}
    made = QuantizationConfig(Call(call.run, call.node, "BitsAndBytesConfig", kwargs=asked))
    return made if asked else UNKNOWN if None in known.values() else None


def _prepare_for_kbit(call: Call) -> Any:
    """Follow peft's ``prepare_model_for_kbit_training``: it freezes the model, and checkpoints unless told not to.

    A model that is not quantized it casts to fp32 and does not checkpoint (peft/utils/other.py, 0.2 to 0.15).
    """
    model = call.value(0, "model", default=UNKNOWN)
    if not isinstance(model, Model):
        return model
    model.is_frozen, model.frozen_at = True, call.where
    if not _is_unquantized(model):
        checkpoints = call.value(1, "use_gradient_checkpointing", default=True)
        if checkpoints is UNKNOWN:
            model.settings["gradient_checkpointing"] = call.setting("use_gradient_checkpointing")
        elif checkpoints is not False:
            model.put("activation_checkpointing", True, call, f"{call.name}()")
        model.put("kbit_preparation", True, call, f"{call.name}()")
    elif call.name == "prepare_model_for_kbit_training":
        model.put("dtype", "float32", call, f"{call.name}() of a model that is not quantized")
    return model


def _is_unquantized(model: Model) -> bool:
    """Return True if the script says how a model is loaded, and nothing of it quantizes the weights."""
    names = ("load_in_4bit", "load_in_8bit", "quantization_config")
    table = model.config.table() if model.config is not None else None
    name = str(model.source.value) if model.source is not None else ""
    is_stored_so = "quantization_config" in table if table is not None else _QUANTIZED_NAME.search(name) is not None
    given = (model.settings.get(each) for each in names)
    return model.is_read and not is_stored_so and not any(setting is not None and setting.value for setting in given)


# Calls that make models: ``from_pretrained``, ``from_config``, a class with a config, copies.


_STORED = ("dtype", "torch_dtype", "load_in_4bit", "load_in_8bit")
_LOADING_ARGUMENTS = (*_STORED, "attn_implementation")
_NAME_ARGUMENTS = ("pretrained_model_name_or_path", "model_name")
_NOT_FIELDS = {
    *("load_in_4bit", "load_in_8bit", *_NAME_ARGUMENTS, *LENGTH_ARGUMENTS),
    *scripts().names["no_fields_of_a_config"],
}
"""Arguments of ``from_pretrained`` that are no fields of the config."""
_TASK_BY_CLASS_ENDING: Mapping[str, Task] = {
    **scripts().default["task"],
    **{f"For{''.join(word.capitalize() for word in task.split('-'))}": task for task in get_args(Task)},
}
_NO_MODEL_CLASS = re.compile(r"Collator|Output|Config|Processor|Trainer|Loss|Dataset|Metric|Pipeline|Mixin|Arguments")
_NO_MODELS = ("Tokenizer", "Processor", "FeatureExtractor", "GenerationConfig", "Scheduler", "Config")
_PEFT_CLASSES = ("PeftModel", "PeftModelForCausalLM", "PeftModelForSequenceClassification")


def _task_of(name: str) -> Task | None:
    """Return the task of a model class, by the end of its name; None if it is no model."""
    if _NO_MODEL_CLASS.search(name):
        return None
    return next((task for ending, task in _TASK_BY_CLASS_ENDING.items() if name.endswith(ending)), None)


def is_model_class(name: str) -> bool:
    """Return True for a name of transformers' models: ``LlamaForCausalLM``, ``AutoModel``."""
    stem = name.removesuffix("Model")
    known = stem in CONFIG_DEFAULTS or stem in ("Auto", *_UNSLOTH_CLASSES)
    return _task_of(name) is not None or (stem != name and known)


def loads_model(owner: str) -> bool:
    """Return True for a class whose ``from_pretrained`` loads a model."""
    return ("Model" in owner or _task_of(owner) is not None) and not any(word in owner for word in _NO_MODELS)


def _from_pretrained(call: Call) -> Any:
    """Follow ``AutoModelForX.from_pretrained("id", dtype=...)``, and the same for configs, tokenizers and adapters."""
    owner, first = call.owner, call.value(0, "model", *_NAME_ARGUMENTS)
    if owner in _PEFT_CLASSES:
        return _load_adapters(first, call) if isinstance(first, Model) else UNKNOWN
    if owner.endswith("Config") and not owner.endswith("GenerationConfig"):
        return _load_config(call)
    if not loads_model(owner) or isinstance(first, Model):  # a model in one of TRL's with a value head
        return first if isinstance(first, Model) else UNKNOWN
    model = Model(call, f"{owner}.{call.name}")
    _read_task(model, owner, call)
    given = first if isinstance(first, ModelConfig) else call.value(None, "config")
    if call.name == "from_config":
        _take_config(model, given, call)
    else:
        model.source = _name_of(call, f"{owner}.{call.name}")
        if isinstance(given, ModelConfig):
            model.config, model.settings = given, dict(given.settings)
        elif model.source is not None:
            model.config = ModelConfig(call, kind=None, source=model.source)
            model.config.take_keywords(call, f"{owner}.{call.name}")
        else:
            call.doubt(f"which model {owner} loads is only known when the script runs.", key="model.id")
    _read_loading(model, call)
    if owner.startswith("AutoPeftModel"):
        return _load_adapters(model, call)
    if owner in _UNSLOTH_CLASSES:
        _hint_unsloth_loading(model, call)
        return (model, UNKNOWN)
    return model


def _name_of(call: Call, label: str) -> Setting | None:
    """Return the name that a call loads a model by; None: it is not known."""
    key: str | int = 0 if call.args else next((name for name in _NAME_ARGUMENTS if name in call.kwargs), "")
    setting = call.setting(key, label) if key != "" else None
    return setting if setting is not None and isinstance(setting.value, str) else None


def from_class(call: Call) -> Any:
    """Follow ``LlamaForCausalLM(config)``."""
    model = Model(call, f"{call.name}(...)")
    _read_task(model, call.name, call)
    _take_config(model, call.value(0, "config"), call)
    return model


def config_class(call: Call) -> Any:
    """Follow ``LlamaConfig(hidden_size=64)``."""
    config = ModelConfig(call, kind=call.name.removesuffix("Config"), source=None)
    config.take_keywords(call, call.name)
    _doubt_table(call, call.name)
    return config


def _load_config(call: Call) -> Any:
    label, kind = f"{call.owner}.{call.name}", call.owner.removesuffix("Config")
    name = _name_of(call, label)
    if (kind not in ("Auto", "Pretrained") and kind not in CONFIG_DEFAULTS) or call.name == "for_model" or name is None:
        return UNKNOWN
    config = ModelConfig(call, kind=None, source=name)
    config.take_keywords(call, label)
    _doubt_table(call, label)
    return config


def _doubt_table(call: Call, label: str) -> None:
    if call.unknown_table is not None:
        call.doubt(f"{label}(**{short_text(call.unknown_table)}) is only known when the script runs.")


def _take_config(model: Model, config: Any, call: Call) -> None:
    """Make a model from a config alone: its weights are in torch's default type."""
    if isinstance(config, ModelConfig):
        model.config = config
        model.settings.update({name: each for name, each in config.settings.items() if "dtype" not in name})
    else:
        call.doubt(f"the config of {call.name}(...) is not known.", key="model.id")
    if call.value(None, "dtype", "torch_dtype") is None:
        model.put("dtype", "float32", call, f"{call.name}(config), a model made from its config alone")


def _read_task(model: Model, owner: str, call: Call) -> None:
    task = _task_of(owner)
    if task == "multiple-choice":
        sentence = f"{owner} puts every choice of an example through the model; how many is not known."
        call.doubt(sentence, key="training.sequences_per_example", asks=True)
    if task is None and is_model_class(owner) and owner not in _UNSLOTH_CLASSES:
        task = "feature-extraction"
    if call.own_class is not None:
        call.doubt(f"the script's own class {call.own_class.name} makes the model; {owner} is counted.")
        task = None if owner.endswith("PreTrainedModel") else task
    elif task is None and "For" in owner:
        call.doubt(f"the head of {owner} is not known; the family's usual one is counted.", key="model.task")
    if task is not None:
        model.task = Setting(value=task, origin=f"{call.where}: {model.label}")


def _read_loading(model: Model, call: Call) -> None:
    """Read dtype, attention, quantization and device."""
    label = f"{call.owner}.{call.name}"
    model.settings.update(call.settings(*_LOADING_ARGUMENTS, "device_map", "max_memory", label=label))
    for setting in (model.settings.get("device_map"), model.settings.get("max_memory")):
        if setting is not None and setting.value is UNKNOWN:
            call.notes.doubt(setting.origin)
    for name, setting in call.settings(*LENGTH_ARGUMENTS, label=label).items():
        call.notes.hints.setdefault(name, setting)
    if call.value(None, "trust_remote_code") is True:
        model.put("script_remote_code", True, call, f"{label}(trust_remote_code=True)")
    if call.value(None, "use_flash_attention_2") is True:  # until 4.52
        model.put("attn_implementation", "flash_attention_2", call, f"{label}(use_flash_attention_2=True)")
    config = call.value(None, "quantization_config")
    if isinstance(config, QuantizationConfig):
        found = {name: config.settings[name] for name in _QUANTIZATION_ARGUMENTS if name in config.settings}
        model.settings.update({name: setting for name, setting in found.items() if setting.value is not None})
        model.put("bitsandbytes_config", True, call, "BitsAndBytesConfig(...)")
    elif config is not None:
        call.notes.doubt(call.setting("quantization_config", label).origin, key="lora.quantization")
    device = call.value(None, "device_map")
    if isinstance(device, dict):
        device = device.get("", "cpu" if set(device.values()) == {"cpu"} else UNKNOWN)
    if device is not None:
        model.move(device, call)
    _doubt_table(call, label)
    is_known = call.unknown_table is None and config is not UNKNOWN
    model.is_read = is_known and call.owner not in _UNSLOTH_CLASSES


def not_followed(call: Call) -> Any:
    """Doubt the model that a class trains, as its arguments are not read, even if another line names a model."""
    return call.doubt(f"{call.name}(...) is not read.", key="model.id", asks=True)


def _copy(call: Call) -> Any:
    """Follow ``deepcopy(model)``; what else is copied is not known."""
    value = call.value(0, default=UNKNOWN)
    if not isinstance(value, Model):
        return UNKNOWN
    other = Model(call, value.label)
    other.source, other.config, other.on_gpu = value.source, value.config, value.on_gpu
    return other


MODEL_CALLS: Mapping[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("from_pretrained", "from_config", "for_model"), _from_pretrained),
    "BitsAndBytesConfig": QuantizationConfig,
    "get_peft_model": _get_peft_model,
    "get_peft_config": _peft_config,
    "get_quantization_config": _quantization_config,
    **dict.fromkeys(("SentenceTransformer", "CrossEncoder", "SparseEncoder", "Fabric"), not_followed),
    **dict.fromkeys(("prepare_model_for_kbit_training", "prepare_model_for_int8_training"), _prepare_for_kbit),
    **dict.fromkeys(("deepcopy", "create_reference_model"), _copy),
}
"""Functions and classes by the last part of their names."""
