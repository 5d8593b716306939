"""Calls that make models: ``from_pretrained``, ``from_config``, a class with a config, copies and averages."""

import re
from collections.abc import Mapping
from typing import Any, get_args

from ....job import Task
from ...source import MODEL_STATES, Setting
from ..python import UNKNOWN, Attribute, Call, Instance, ScriptClass, Thing, plain, short_text
from .adapters import UNSLOTH_CLASSES, QuantizationConfig, hint_unsloth_loading, load_adapters
from .config_defaults import CONFIG_DEFAULTS
from .configs import LENGTH_ARGUMENTS, ModelConfig
from .model import Model, Part
from .notes import Notes
from .own_attention import own_attention

_LOADING_ARGUMENTS = ("dtype", "torch_dtype", "attn_implementation", "load_in_4bit", "load_in_8bit")
_NAME_ARGUMENTS = ("pretrained_model_name_or_path", "model_name")
_NOT_FIELDS = {
    *_LOADING_ARGUMENTS,
    *_NAME_ARGUMENTS,
    *LENGTH_ARGUMENTS,
    *("config", "quantization_config", "device_map", "cache_dir", "revision", "token", "use_auth_token", "subfolder"),
    *("trust_remote_code", "low_cpu_mem_usage", "from_tf", "from_flax", "local_files_only", "force_download"),
    *("ignore_mismatched_sizes", "state_dict", "use_safetensors", "variant", "max_memory", "offload_folder"),
    *("key_mapping", "tp_plan", "device_mesh", "weights_only", "output_loading_info", "proxies", "resume_download"),
    *("use_flash_attention_2", "generation_config", "adapter_kwargs", "full_finetuning", "load_in_16bit"),
    *("fast_inference", "gpu_memory_utilization", "max_lora_rank", "use_gradient_checkpointing", "peft_config"),
}
"""Arguments of ``from_pretrained`` that are no fields of the config."""
_BASE_MODELS = ("AutoModel", "BertModel", "LlamaModel")
_TASK_BY_CLASS_ENDING: Mapping[str, Task] = {
    "ForCTC": "ctc",
    "ForSpeechSeq2Seq": "speech-seq2seq",
    "ForCausalLM": "causal-lm",
    "ForCausalLMWithValueHead": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForSeq2SeqLM": "seq2seq-lm",
    "ForConditionalGeneration": "seq2seq-lm",
    **{f"For{''.join(word.capitalize() for word in task.split('-'))}": task for task in get_args(Task)},
}
_SENTENCE_MODELS: Mapping[str, Task] = {
    "SentenceTransformer": "feature-extraction",
    "CrossEncoder": "sequence-classification",
    "SparseEncoder": "masked-lm",
}
"""Classes of sentence-transformers, and the head of the model inside."""
_NO_MODEL_CLASS = re.compile(r"Collator|Output|Config|Processor|Trainer|Loss|Dataset|Metric|Pipeline|Mixin|Arguments")
_NO_MODELS = ("Tokenizer", "Processor", "FeatureExtractor", "GenerationConfig", "Scheduler")


def task_of(name: str) -> Task | None:
    """Return the task of a model class, by the end of its name; None if it is no model."""
    if _NO_MODEL_CLASS.search(name):
        return None
    return next((task for ending, task in _TASK_BY_CLASS_ENDING.items() if name.endswith(ending)), None)


def is_model_class(name: str) -> bool:
    """Return True for a name of transformers' models: ``LlamaForCausalLM``, ``AutoModel``."""
    stem = name.removesuffix("Model")
    return task_of(name) is not None or (
        stem != name and (stem in CONFIG_DEFAULTS or stem in ("Auto", *UNSLOTH_CLASSES))
    )


def from_pretrained(call: Call, notes: Notes) -> Any:
    """Follow ``AutoModelForX.from_pretrained("id", dtype=...)``, and the same for configs, tokenizers and adapters."""
    owner = call.owner
    if owner in ("PeftModel", "PeftModelForCausalLM", "PeftModelForSequenceClassification"):
        return _load_peft(call)
    if owner.endswith("Config") and not owner.endswith("GenerationConfig"):
        return _load_config(call, notes)
    is_model = "Model" in owner or task_of(owner) is not None
    if not is_model or any(word in owner for word in _NO_MODELS):
        _note_name(call, notes, 2)
        return Tokenizer(notes) if "Tokenizer" in owner else UNKNOWN
    model = Model(notes, call.where, f"{owner}.{call.name}")
    model.attention = own_attention(call.kind)
    if owner == "SetFitModel":
        _count_sequences(model, 2, f"{call.where}: SetFit runs pairs of texts")
    _read_task(model, owner, call)
    node = call.expression(0, *_NAME_ARGUMENTS)
    first = call.value(0, *_NAME_ARGUMENTS)
    if call.name == "from_config":
        _take_config(model, first if isinstance(first, ModelConfig) else call.value(None, "config"), call, notes)
    elif isinstance(first, Model):  # trl's models with a value head
        return first
    else:
        key: str | int = 0 if call.args else next((name for name in _NAME_ARGUMENTS if name in call.kwargs), "")
        setting = call.setting(key, f"{owner}.{call.name}") if node is not None or key != "" else None
        if setting is not None and isinstance(setting.value, str):
            text = f"{owner}.{call.name}({short_text(node)})"
            is_option = call.run.origin(node, call.scope) is not None if node is not None else False
            model.name = setting if is_option else Setting(value=setting.value, origin=f"{call.where}: {text}")
        given = call.value(1, "config")
        model.config = given if isinstance(given, ModelConfig) else ModelConfig(notes, kind=None, source=model.name)
        if isinstance(given, ModelConfig):
            model.settings.update(given.settings)
        elif model.name is None:
            model.config = None
    _read_loading(model, call, notes)
    if owner in UNSLOTH_CLASSES:
        hint_unsloth_loading(model, call)
        return (model, UNKNOWN)
    return model


def sentence_model(call: Call, notes: Notes) -> Any:
    """Follow ``SentenceTransformer("id")``, ``CrossEncoder("id")`` and ``SparseEncoder("id")``."""
    model = Model(notes, call.where, f"{call.name}(...)")
    task = _SENTENCE_MODELS[call.name]
    model.task = Setting(value=task, origin=f"{call.where}: {call.name}(...)")
    setting = call.setting(0) if call.args else None
    if setting is not None and isinstance(setting.value, str):
        model.name = setting
        model.config = ModelConfig(notes, kind=None, source=setting)
    if call.name != "CrossEncoder":  # which puts both texts into one sequence
        _count_sequences(model, 2, f"{call.where}: {call.name} runs once for each text of an example")
    return model


def _count_sequences(model: Model, count: int, what: str) -> None:
    """Count the sequences that an example usually has, where only the data tell how many."""
    model.settings["script_sequences"] = Setting(value=count, origin=f"{what}, usually {count}")
    key = "training.sequences_per_example"
    model.notes.doubt(f"{what}; {count} are counted.", "activations", key=key)


def from_class(call: Call, notes: Notes) -> Any:
    """Follow ``LlamaForCausalLM(config)``."""
    model = Model(notes, call.where, f"{call.name}(...)")
    model.attention = own_attention(call.kind)
    _read_task(model, call.name, call)
    config = call.value(0, "config")
    _take_config(model, config, call, notes)
    return model


def copy_of_class(kind: ScriptClass, call: Call, notes: Notes) -> Any:
    """Return a model of a script's class that has the name of one of transformers' classes; UNKNOWN for others."""
    bases = [path.rpartition(".")[2] for path in kind.external_bases()]
    if not is_model_class(kind.name) or not any(base.endswith("PreTrainedModel") for base in bases):
        return UNKNOWN
    sentence = f"{call.where}: the script's own {kind.name} is counted as that of transformers."
    notes.doubt(sentence, *(() if _is_known(kind.name) else (*MODEL_STATES, "activations", "logits")))
    call.path, call.kind = kind.name, kind
    return from_class(call, notes)


def _is_known(name: str) -> bool:
    """Return True for a class of one of transformers' families: ``LlamaForCausalLM``."""
    return any(name.startswith(f"{family}For") for family in CONFIG_DEFAULTS)


def config_class(call: Call, notes: Notes) -> Any:
    """Follow ``LlamaConfig(hidden_size=64)``."""
    kind = call.name.removesuffix("Config")
    config = ModelConfig(notes, kind=kind, source=None)
    _set_fields(config, call, f"{call.name}")
    return config


def _load_config(call: Call, notes: Notes) -> Any:
    _note_name(call, notes, 1)
    if (
        call.owner not in ("AutoConfig", "PretrainedConfig")
        and call.owner.removesuffix("Config") not in CONFIG_DEFAULTS
    ):
        return UNKNOWN
    name = call.setting(0) if call.args else None
    if call.name == "for_model" or name is None or not isinstance(name.value, str):
        kinds = {table[0]: kind for kind, table in CONFIG_DEFAULTS.items()}
        kind = kinds.get(str(plain(call.value(0, "model_type"))))
        config = ModelConfig(notes, kind=kind, source=None)
    else:
        config = ModelConfig(notes, kind=None, source=name)
    _set_fields(config, call, f"{call.owner}.{call.name}")
    return config


def _set_fields(config: ModelConfig, call: Call, label: str) -> None:
    for name, value in call.kwargs.items():
        if name not in _NOT_FIELDS or name in ("dtype", "torch_dtype", "attn_implementation"):
            config.set_field(name, value, call.where, f"{label}({name}={short_text(call.nodes.get(name))})")
    _doubt_table(call, label, call.run.library.notes)


def _doubt_table(call: Call, label: str, notes: Notes) -> None:
    if call.unknown_table is not None:
        sentence = f"{call.where}: {label}(**{short_text(call.unknown_table)}) is only known when the script runs."
        notes.doubt(sentence, *MODEL_STATES, "activations", "logits")


def _take_config(model: Model, config: Any, call: Call, notes: Notes) -> None:
    """Make a model from a config alone: its weights are in torch's default type."""
    if isinstance(config, ModelConfig):
        model.config = config
        model.settings.update({name: each for name, each in config.settings.items() if "dtype" not in name})
    dtype = call.value(None, "dtype", "torch_dtype")
    if dtype is None:
        default = notes.default_dtype
        text = f"{call.name}(config), a model made from its config alone"
        origin = f"{call.where}: {text}" if default is None else default.origin
        model.settings["dtype"] = Setting(value=default.value if default else "float32", origin=origin)


def _read_task(model: Model, owner: str, call: Call) -> None:
    task = task_of(owner)
    if task == "multiple-choice":
        _count_sequences(model, 4, f"{call.where}: {owner} puts every choice of an example through the model")
    if task is None and (owner in _BASE_MODELS or is_model_class(owner)) and owner not in UNSLOTH_CLASSES:
        task = "feature-extraction"
    if owner.endswith("PreTrainedModel"):
        sentence = f"{call.where}: a class of the script's own makes the model; its head may be another one."
        model.notes.doubt(sentence, *MODEL_STATES, "logits", key="model.task")
    if task == "seq2seq-lm" and call.kind is not None and not _is_known(owner):
        task = None  # models of images and text are named so, too
    if task is None and "For" in owner:
        sentence = f"{call.where}: the head of {owner} is not known; the family's usual one is counted."
        model.notes.doubt(sentence, "weights", "activations", "logits", key="model.task")
    if task is not None:
        label = f"{owner}.{call.name}" if call.name.startswith("from_") else f"{call.name}(...)"
        model.task = Setting(value=task, origin=f"{call.where}: {label}")


def _read_loading(model: Model, call: Call, notes: Notes) -> None:
    """Read dtype, attention, quantization, and fields of the config."""
    label = f"{call.owner}.{call.name}"
    for name in _LOADING_ARGUMENTS:
        if name in call.kwargs:
            setting = call.setting(name, label)
            if setting is None:
                shown = f"{label}({name}={short_text(call.nodes.get(name))})"
                sentence = f"{call.where}: {shown} is only known when the script runs; its default is counted."
                model.unresolved[name] = sentence
            elif setting.value is not None:
                model.settings[name] = setting
    for name in LENGTH_ARGUMENTS:
        setting = call.setting(name, label) if name in call.kwargs else None
        if setting is not None and setting.value is not None:
            notes.hints.setdefault(name, setting)
    if call.value(None, "trust_remote_code") is True:
        model.put("script_remote_code", True, call.where, f"{label}(trust_remote_code=True)")
    if call.value(None, "use_flash_attention_2") is True:  # until 4.52
        model.put("attn_implementation", "flash_attention_2", call.where, f"{label}(use_flash_attention_2=True)")
    _read_quantization(model, call)
    _read_device(model, call, label)
    _doubt_table(call, label, notes)
    if call.name == "from_config" or model.config is None:
        return
    fields = {name: value for name, value in call.kwargs.items() if name not in _NOT_FIELDS}
    if fields:
        model.config = model.config.copy()
    for name, value in fields.items():
        model.config.set_field(name, value, call.where, f"{label}({name}={short_text(call.nodes.get(name))})")


def _read_device(model: Model, call: Call, label: str) -> None:
    device = call.value(None, "device_map")
    if device is None:
        return
    model.on_gpu = not (device == "cpu" or (isinstance(device, dict) and set(device.values()) == {"cpu"}))
    for name in ("device_map", "max_memory"):
        setting = call.setting(name, label) if name in call.kwargs else None
        if setting is not None and setting.value is not None:
            model.settings[name] = setting


def _read_quantization(model: Model, call: Call) -> None:
    config = call.value(None, "quantization_config")
    if isinstance(config, QuantizationConfig):
        model.settings.update(config.settings)
        model.unresolved.update(config.unresolved)
        model.put("bitsandbytes_config", True, call.where, "BitsAndBytesConfig(...)")
    elif config is UNKNOWN and "quantization_config" in call.kwargs:
        shown = short_text(call.nodes.get("quantization_config"))
        model.notes.doubt(
            f"{call.where}: quantization_config={shown} is only known when the script runs.",
            *("weights", "activations"),
            direction="less",
            key="lora.quantization",
        )


def _load_peft(call: Call) -> Any:
    model = call.value(0, "model")
    if isinstance(model, Model):
        load_adapters(model, call, trains=call.value(None, "is_trainable", default=False))
        return model
    return UNKNOWN


def _note_name(call: Call, notes: Notes, rank: int) -> None:
    """Note the name that a config or tokenizer is loaded by, in case no model is."""
    key: str | int = 0 if call.args else next((name for name in _NAME_ARGUMENTS if name in call.kwargs), "")
    setting = call.setting(key, f"{call.owner}.{call.name}") if key != "" else None
    if setting is not None and isinstance(setting.value, str):
        notes.names_found.setdefault(rank, setting)


class Tokenizer(Thing):
    """A tokenizer, as far as the vocabulary grows by it."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name) if name in ("add_tokens", "add_special_tokens") else UNKNOWN

    def method(self, call: Call) -> Any:
        """Count the tokens that the script adds."""
        given = call.value(0)
        if isinstance(given, list | dict | str | tuple):
            count = len(given) if not isinstance(given, str) else 1
            if self._notes.added_tokens is not None:
                self._notes.added_tokens += count
            return count
        self._notes.added_tokens = None
        return UNKNOWN

    def called(self, call: Call) -> Any:
        """Note the length that it cuts texts to."""
        call.path = "tokenizer"
        return call.run.library.unknown(call)


def set_default_dtype(call: Call, notes: Notes) -> Any:
    """Follow ``torch.set_default_dtype``: models that are made from a config alone have that type."""
    setting = call.setting(0) if call.args else None
    notes.default_dtype = setting
    if setting is None:
        sentence = f"{call.where}: {short_text(call.node)} is only known when the script runs."
        notes.doubt(sentence, *MODEL_STATES, key="training.precision")
    return None


def copy_value(call: Call, notes: Notes) -> Any:
    """Follow ``deepcopy(x)``."""
    value = call.value(0, default=UNKNOWN)
    if isinstance(value, Model):
        return value.copy(call.where)
    if isinstance(value, Part) and value.prefixes == ("",) and isinstance(value.owner, Model):
        return value.owner.copy(call.where)
    if isinstance(value, ModelConfig):
        return value.copy()
    if isinstance(value, Instance):
        other = Instance(value.kind)
        other.values = {
            name: each.copy(call.where) if isinstance(each, Model) else each for name, each in value.values.items()
        }
        return other
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value


def reference_model(call: Call, notes: Notes) -> Any:
    """Follow TRL's ``create_reference_model(model)``."""
    value = copy_value(call, notes)
    if isinstance(value, Model):
        value.role = "reference"
        value.train(None, value=False, call=call)
    return value
