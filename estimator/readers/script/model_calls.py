"""Calls that make models: ``from_pretrained``, ``from_config``, a class with a config, copies."""

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from ...common.library_versions import older
from ...job.settings import Task
from ..arguments.table import scripts
from ..source.settings import Setting
from ..source.versions import is_at_least
from .configs import CONFIG_DEFAULTS, LENGTH_ARGUMENTS, NAME_ARGUMENTS, ModelConfig
from .models import STORED, AdapterConfig, Model, QuantizationConfig, add_adapters, load_adapters
from .notes import Doubt
from .operators import truth
from .values import UNKNOWN, Call, plain, short_text

_UNSLOTH_CLASSES = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastTextModel")
_UNSLOTH_OTHER_PRECISIONS = ("load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")
_MLP = ("gate_proj", "up_proj", "down_proj")
ENCODERS = ("SentenceTransformer", "CrossEncoder", "SparseEncoder")
"""Classes of sentence-transformers."""
_QUANTIZED_NAME = re.compile(r"(?i)gptq|awq|bnb|hqq|int[48]|[48]-?bit|fp8")


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
        hints |= {"lora_adapter_dtype": "float32", "liger_kernel_config": _mlp_kernels(_fuses_mlp(call))}
        hints |= {"activation_offloading": True} if "use_gradient_checkpointing" not in call.kwargs else {}
        model.hints |= {name: Setting.default(value, "unsloth's default") for name, value in hints.items()}
    call.notes.models = [each for each in call.notes.models if each is not model] + [model]
    return model


def _fuses_mlp(call: Call) -> bool:
    """Return True if unsloth computes MLPs by a kernel of its own: beside plain adapters of all of their layers.

    Source: ``patch_peft_model`` in unsloth's ``models/llama.py``, of 2024 and 2025.
    """
    targets = call.value(None, "target_modules")
    is_whole = targets in (None, "all-linear") or (isinstance(targets, list) and {*_MLP} <= {*map(str, targets)})
    plain_adapters = (
        call.value(None, "lora_dropout", default=0) == 0 and call.value(None, "bias", default="none") == "none"
    )
    return is_whole and plain_adapters and call.value(None, "use_dora", default=False) is False


def _mlp_kernels(on: bool) -> dict[str, bool]:
    return dict.fromkeys(("swiglu", "geglu"), on)


def _hint_unsloth_loading(model: Model, call: Call) -> None:
    """Assume 4 bits unless set otherwise, and its own loss, named as Liger-Kernel's (unsloth's ``loader.py``)."""
    hints: dict[str, Any] = {"use_liger_kernel": True, "bnb_4bit_use_double_quant": True, "kbit_preparation": False}
    hints["liger_kernel_config"] = _mlp_kernels(False)
    if call.value(None, "dtype") is None:
        hints["dtype"] = "bfloat16"  # where the GPU has it
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
    given = {name: call.run.attribute(call.value(0), f"lora_{name}") for name in ("r", "dropout")}
    given["lora_dropout"] = given.pop("dropout")
    return _AdaptersOfOptions(Call(call.run, call.node, "LoraConfig", kwargs=given))


def _quantization_config(call: Call) -> Any:
    """Follow TRL's ``get_quantization_config(model_args)``: None unless a quantization is asked for."""
    names = ("load_in_4bit", "load_in_8bit")
    known = {name: truth(call.run.attribute(call.value(0), name)) for name in names}
    asked = {name: True for name, value in known.items() if value}
    made = QuantizationConfig(Call(call.run, call.node, "BitsAndBytesConfig", kwargs=asked))
    return made if asked else UNKNOWN if None in known.values() else None


def _prepare_for_kbit(call: Call) -> Any:
    """Follow peft's ``prepare_model_for_kbit_training``: it freezes the model, and checkpoints unless told not to.

    A model that is not quantized it casts to fp32, since 0.3, and does not checkpoint (peft/utils/other.py, to 0.15).
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
    elif not older(call.notes.versions.get("peft"), 0, 3):
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


_LOADING_ARGUMENTS = (*STORED, "attn_implementation")
_TASK_BY_CLASS_ENDING: Mapping[str, Task] = {
    **scripts().default["task"],
    **{f"For{''.join(word.capitalize() for word in task.split('-'))}": task for task in get_args(Task)},
}
_NO_MODEL_CLASS = re.compile(r"Collator|Output|Config|Processor|Trainer|Loss|Dataset|Metric|Pipeline|Mixin|Arguments")
_NO_MODELS = ("Tokenizer", "Processor", "FeatureExtractor", "GenerationConfig", "Scheduler", "Config")


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
    owner, first = call.owner, call.value(0, "model", *NAME_ARGUMENTS)
    if owner in ("PeftModel", "PeftModelForCausalLM", "PeftModelForSequenceClassification"):
        return load_adapters(first, call) if isinstance(first, Model) else UNKNOWN
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
            model.settings = dict(model.config.settings)
        elif not call.notes.trains:  # what is loaded afterwards is not trained
            call.doubt(f"which model {owner} loads is only known when the script runs.", key="model.id")
    _read_loading(model, call)
    if owner.startswith("AutoPeftModel"):
        return load_adapters(model, call)
    if owner in _UNSLOTH_CLASSES:
        _hint_unsloth_loading(model, call)
        return (model, UNKNOWN)
    return model


def _name_of(call: Call, label: str) -> Setting | None:
    """Return the name that a call loads a model by; None: it is not known."""
    key: str | int = 0 if call.args else next((name for name in NAME_ARGUMENTS if name in call.kwargs), "")
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
    """Make a model from a config alone: in torch's default type; ``from_config`` since 4.45 in the stored one's."""
    if isinstance(config, ModelConfig):
        model.config = config
        model.settings.update({name: each for name, each in config.settings.items() if "dtype" not in name})
    else:
        call.doubt(f"the config of {call.name}(...) is not known.", key="model.id")
    if call.value(None, "dtype", "torch_dtype") is None:
        stored = isinstance(config, ModelConfig) and config.source is not None and call.name == "from_config"
        by_config = stored and is_at_least("transformers", (4, 45), call.notes.versions)
        text = f"{call.name}(config), a model made from its config alone"
        model.put("dtype", "auto" if by_config else "float32", call, text)


def _read_task(model: Model, owner: str, call: Call) -> None:
    task = _task_of(owner)
    if task == "multiple-choice":
        sentence = f"{owner} puts every choice of an example through the model; how many is not known."
        call.doubt(sentence, key="training.sequences_per_example", asks=True)
    if task is None and is_model_class(owner) and owner not in _UNSLOTH_CLASSES:
        task = "feature-extraction"
    if task is None and "For" in owner:
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
    kept = call.owner in _UNSLOTH_CLASSES and call.notes.first_trainers == "trl"  # TRL's own trainers cut
    for name, setting in call.settings(*LENGTH_ARGUMENTS, label=label).items() if not kept else ():
        call.notes.hints.setdefault(name, setting)
    if call.value(None, "trust_remote_code") is True:
        model.put("script_remote_code", True, call, f"{label}(trust_remote_code=True)")
    if call.value(None, "use_flash_attention_2") is True:  # until 4.52
        model.put("attn_implementation", "flash_attention_2", call, f"{label}(use_flash_attention_2=True)")
    config = call.value(None, "quantization_config")
    if isinstance(config, QuantizationConfig):
        model.settings.update(config.counted())
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


def _encoder(call: Call) -> Any:
    sentence = f"{call.where}: {call.name}(...) is not read."
    call.notes.encoders.append(Doubt(sentence=sentence, key="model.id", asks=True))
    return UNKNOWN


def _other(call: Call) -> Any:
    """Note a model that runs before the training; one after it takes no memory of a step."""
    if not call.notes.trains and not isinstance(call.value(1, "model"), Model):
        call.doubt(f"{call.name}(...) may hold another model, which is not counted.", key="other_models")
    return UNKNOWN


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
    "Mxfp4Config": lambda call: None if call.value(None, "dequantize") is True else UNKNOWN,
    "get_peft_model": _get_peft_model,
    "get_peft_config": _peft_config,
    "get_quantization_config": _quantization_config,
    **dict.fromkeys(ENCODERS, _encoder),
    **dict.fromkeys(("pipeline", "LLM"), _other),
    "Fabric": not_followed,
    **dict.fromkeys(("prepare_model_for_kbit_training", "prepare_model_for_int8_training"), _prepare_for_kbit),
    **dict.fromkeys(("deepcopy", "create_reference_model"), _copy),
}
"""Functions and classes by the last part of their names."""
