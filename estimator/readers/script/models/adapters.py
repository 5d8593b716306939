"""LoRA adapters and quantization in a script: peft, bitsandbytes, unsloth."""

import re
from collections.abc import Mapping
from typing import Any, get_args

from ....common.errors import InputError
from ....common.limits import decode_json
from ....common.untrusted_files import check_nesting, read_file
from ....job.settings import Task
from ...source.evidence import MODEL_STATES, Setting, default_setting
from ..python.values import UNKNOWN, Attribute, Call, Instance, ScriptClass, Thing, plain, short_text, truth
from .configs import CONFIG_DEFAULTS, DECISIVE_ARGUMENTS, LENGTH_ARGUMENTS, ModelConfig, Notes, own_attention
from .model import Model, Part

_DROPOUT = 0.05
"""``lora_dropout`` of TRL's ModelConfig."""
_LORA_NAMES = {
    "r": "lora_r",
    "init_r": "lora_r",
    "target_modules": "lora_target_modules",
    "lora_dropout": "lora_dropout",
}
_WITHOUT_EFFECT = {
    *("lora_alpha", "bias", "task_type", "inference_mode", "fan_in_fan_out", "use_rslora", "revision"),
    *("init_lora_weights", "base_model_name_or_path", "peft_type", "auto_mapping", "alpha_pattern", "layers_pattern"),
    *("megatron_config", "megatron_core", "loftq_config", "eva_config", "corda_config", "runtime_config", "lora_bias"),
    *("peft_config", "model", "random_state", "use_gradient_checkpointing", "max_seq_length", "num_virtual_tokens"),
    *("token_dim", "num_layers", "encoder_hidden_size", "adapter_name", "autocast_adapter_dtype", "mixed"),
}
"""Arguments of ``LoraConfig`` and ``get_peft_model`` on which no bytes depend; any other is named as not counted."""
_SCHEDULE_OF_RANKS = {"r", "target_r", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight", "total_step"}
"""Arguments of AdaLoRA, which begins with ``init_r`` ranks and ends with fewer."""
_ADALORA_TARGETS = {
    "t5": "q k v o wi wo",
    "mt5": "q k v o wi_0 wi_1 wo",
    **dict.fromkeys(("bart", "opt"), "q_proj k_proj v_proj out_proj fc1 fc2"),
    "roberta": "query key value dense",
    "deberta-v2": "query_proj key_proj value_proj dense",
}
"""AdaLoRA's default targets by model type, where they differ from LoRA's (peft 0.18, ``utils/constants.py``)."""
_QUANTIZATION_ARGUMENTS = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
_KNOWN = re.compile(
    r"(?i)lora|prompt|prefix|ia3|lntuning|fourierft|vera|trainabletokens|loha|lokr|oft|hira|road|bone|miss|poly|shira"
)
"""Methods of peft that train adapters of about the size of LoRA's, or less."""
_TUNER = re.compile(r"LoRA|Lora|IA3|Prompt|Prefix|OFT|Vera|LoKr|LoHa|FourierFT|LNTuning|Bone|Shira|Hira")
"""In the names of peft's configurations, where it is not known that they are peft's."""
_WITHOUT_RANK = ("Prompt", "Prefix", "IA3", "LNTuning", "FourierFT", "Vera", "Trainable", "AdaptionPrompt")
"""Methods of peft whose parameters do not grow with a rank."""
_HEADS = ("classifier", "score", "qa_outputs")
"""Modules that peft trains besides for classification."""
UNSLOTH_CLASSES = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastTextModel")
_UNSLOTH_OTHER_PRECISIONS = ("load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")


_SAVED_CONFIG = "adapter_config.json"
_MAX_CONFIG_BYTES = 1_000_000


class AdapterConfig(Thing):
    """``LoraConfig(...)`` or another configuration of peft."""

    def __init__(self, call: Call) -> None:
        self.kind, self.where, self.settings = call.name, call.where, dict[str, Setting]()
        self.arguments = {name: plain(value) for name, value in call.kwargs.items()}
        self.is_known = _KNOWN.search(call.name) is not None
        self.unresolved: dict[str, str] = {}
        read_lora(call, self.settings, self.unresolved)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to an argument."""
        renamed = _LORA_NAMES.get(name, f"lora_{name}")
        if plain(value) is not UNKNOWN and name not in _WITHOUT_EFFECT:
            text = f"{short_text(call.node)} = {plain(value)}"
            self.settings[renamed] = Setting(value=plain(value), origin=f"{call.where}: {text}")


def is_adapter_config(call: Call) -> bool:
    """Return True for the constructor of one of peft's configurations."""
    if not call.name.endswith("Config"):
        return False
    return call.path.startswith("peft.") or call.name == "LoraConfig" or bool(_TUNER.search(call.name))


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
    if call.name == "AdaLoraConfig" and "init_r" not in call.kwargs:
        into["lora_r"] = default_setting(12, "AdaLoRA's default initial rank")
    for name in call.kwargs:
        if name in _WITHOUT_EFFECT or (call.name == "AdaLoraConfig" and name in _SCHEDULE_OF_RANKS):
            continue
        setting = call.setting(name)
        if setting is None and name in DECISIVE_ARGUMENTS:
            unresolved[name] = _sentence(call, name)
        elif setting is None and name not in _LORA_NAMES:
            shown = f"{call.name}({name}={short_text(call.expression(None, name))})"
            into[f"lora_{name}"] = Setting(value=True, origin=f"{call.where}: {shown}")
        elif setting is not None and setting.value not in (None, False, [], {}):
            into[_LORA_NAMES.get(name, f"lora_{name}")] = setting


def add_adapters(model: Model, config: Any, call: Call, *, text: str = "") -> None:
    """Add adapters to a model: what it held so far is frozen."""
    if not model.has_adapters:
        model.train(None, value=False, call=call)
    model.has_adapters = True
    model.adapters_train = True
    kind = config.kind if isinstance(config, AdapterConfig) else "LoraConfig"
    if isinstance(config, AdapterConfig):
        model.unresolved.update(config.unresolved)
        if any(word in kind for word in _WITHOUT_RANK):
            _other_method(model, config, call)
            return
        model.settings.update(config.settings)
        _read_adalora_targets(model, config)
        if kind != "LoraConfig":
            model.notes.doubt(
                f"{config.where}: {kind} is counted as LoRA adapters, from which it differs.",
                *("gradients", "optimizer", "activations"),
                key="lora.rank",
            )
    if isinstance(config, AdapterConfig):
        _train_head(model, config, call)
    model.put("use_peft", True, call.where, text or f"{call.name}(...)")


def _read_adalora_targets(model: Model, config: AdapterConfig) -> None:
    """Take the layers that AdaLoRA adapts by default."""
    table = model.config.table() if model.config is not None else None
    kind = str((table or {}).get("model_type"))
    if config.kind == "AdaLoraConfig" and "target_modules" not in config.arguments and kind in _ADALORA_TARGETS:
        targets = default_setting(_ADALORA_TARGETS[kind].split(), f"AdaLoRA's default for {kind}")
        model.settings["lora_target_modules"] = targets


def _train_head(model: Model, config: AdapterConfig, call: Call) -> None:
    """Train the head of a classifier besides, as peft does for its task types."""
    heads = [name for name in _HEADS if model.has_part(name)]
    if heads and str(config.arguments.get("task_type")) in ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS"):
        model.train(heads, value=True, call=call)


def _other_method(model: Model, config: AdapterConfig, call: Call) -> None:
    """Freeze a model for a method that trains a few vectors or an encoder of prompts beside it."""
    model.own_adapters = True
    _train_head(model, config, call)
    count = _prompt_parameters(model, config)
    model.notes.doubt(
        f"{config.where}: the trained parameters of {config.kind} are counted only roughly.",
        *("gradients", "optimizer", "activations"),
        key="training.trainable_parameters",
    )
    if count is not None:
        model.settings["script_adapter_parameters"] = Setting(
            value=count, origin=f"{config.where}: {config.kind} has about {count:,} parameters"
        )


def _prompt_parameters(model: Model, config: AdapterConfig) -> int | None:
    """Return the parameters of a method for prompts (peft's ``tuners``); None: unknown."""
    table = model.config.table() if model.config is not None else None
    tokens, hidden = config.arguments.get("num_virtual_tokens"), _hidden(table or {})
    if not isinstance(tokens, int) or hidden is None or table is None:
        return None
    if "PromptTuning" in config.kind:
        return tokens * hidden
    inner = config.arguments.get("encoder_hidden_size")
    inner = inner if isinstance(inner, int) else hidden
    if "PromptEncoder" in config.kind:
        return tokens * hidden + hidden * inner + inner * inner + inner * hidden + 2 * inner + hidden
    layers = next((table[name] for name in ("num_hidden_layers", "n_layer", "n_layers") if name in table), None)
    return tokens * hidden * 2 * layers if "PrefixTuning" in config.kind and isinstance(layers, int) else None


def _hidden(table: Mapping[str, Any]) -> int | None:
    found = next((table[name] for name in ("hidden_size", "n_embd", "d_model", "dim") if name in table), None)
    return found if isinstance(found, int) else None


def load_adapters(model: Model, call: Call, *, trains: Any) -> None:
    """Load adapters that were trained before: what they are is in their ``adapter_config.json``, if it is here."""
    config = _saved_config(call)
    add_adapters(model, config, call)
    if trains is False:
        model.adapters_train = False
    if config is not None:
        return
    model.notes.doubt(
        f"{call.where}: {call.name}(...) loads adapters; vramtop does not read their rank and layers.",
        *("gradients", "optimizer"),
        key="lora.rank",
    )


def _saved_config(call: Call) -> AdapterConfig | None:
    """Return the configuration of LoRA adapters in a folder; None if it is not here, or of another kind."""
    folder = call.value(1 if isinstance(call.value(0), Model) else 0, "model_id", "peft_model_id")
    folder = f"{folder}/{within}" if (within := call.value(None, "subfolder")) and isinstance(folder, str) else folder
    path = call.run.find_file(f"{folder}/{_SAVED_CONFIG}") if isinstance(folder, str) else None
    try:
        table = decode_json(read_file(path, _MAX_CONFIG_BYTES)) if path is not None else None
        check_nesting(table)
    except (OSError, InputError, ValueError):
        return None
    if not isinstance(table, dict) or table.get("peft_type") != "LORA" or not isinstance(table.get("r"), int):
        return None
    given = {name: value for name, value in table.items() if value not in (None, False, [], {})}
    return AdapterConfig(Call(call.run, call.node, "LoraConfig", None, kwargs=given))


def get_peft_model(call: Call, notes: Notes) -> Any:
    """Follow ``get_peft_model(model, config)``, and unsloth's method of that name."""
    model = call.value(0, "model")
    if not isinstance(model, Model):
        return UNKNOWN
    unsloth = call.owner in UNSLOTH_CLASSES
    config = call.value(1, "peft_config")
    unknown = config is not None and not isinstance(config, AdapterConfig)
    if unknown or (isinstance(config, AdapterConfig) and not config.is_known):
        shown = config.kind if isinstance(config, AdapterConfig) else short_text(call.expression(1, "peft_config"))
        notes.doubt(
            f"{call.where}: the parameters that get_peft_model trains with {shown} are not known; all are counted.",
            *("gradients", "optimizer", "activations"),
            direction="less",
            key="training.trainable",
        )
        return model
    add_adapters(model, config, call)
    read_lora(call, model.settings, model.unresolved)
    if call.value(None, "autocast_adapter_dtype", default=True) is False:
        model.put("lora_adapter_dtype", "as weights", call.where, "autocast_adapter_dtype=False")
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
    _hint(model, "kbit_preparation", False)
    if plain(call.kwargs.get("fast_inference")) is True:  # vLLM in this process, which shares the weights
        _hint(model, "use_vllm", True)
        _hint(model, "vllm_mode", "colocate")
        share = call.setting("gpu_memory_utilization") if "gpu_memory_utilization" in call.kwargs else None
        model.hints.setdefault("vllm_gpu_memory_utilization", share or default_setting(0.5, "unsloth's default"))


def _hint(model: Model, name: str, value: object) -> None:
    model.hints.setdefault(name, default_setting(value, "unsloth's default"))


def _sentence(call: Call, name: str) -> str:
    shown = f"{call.name}({name}={short_text(call.expression(None, name))})"
    return f"{call.where}: {shown} is only known when the script runs; its default is assumed."


def peft_config(call: Call) -> Any:
    """Follow TRL's ``get_peft_config(model_args)``: None unless adapters are asked for."""
    arguments = call.value(0)
    known = truth(call.run.attribute(arguments, "use_peft"))
    if known:
        call.path, call.args, call.kwargs = "LoraConfig", [], {}
        found = AdapterConfig(call)
        dropout = plain(call.run.attribute(arguments, "lora_dropout"))
        origin = f"{call.where}: ModelConfig's lora_dropout"
        found.settings["lora_dropout"] = Setting(value=_DROPOUT if dropout is UNKNOWN else dropout, origin=origin)
        return found
    return UNKNOWN if known is None else None


def quantization_config(call: Call) -> Any:
    """Follow TRL's ``get_quantization_config(model_args)``: None unless a quantization is asked for."""
    values = [call.run.attribute(call.value(0), name) for name in ("load_in_4bit", "load_in_8bit")]
    known = [truth(value) for value in values]
    if True in known:
        call.path, call.args, call.kwargs = "BitsAndBytesConfig", [], {}
        return QuantizationConfig(call)
    return UNKNOWN if None in known else None


def prepare_for_kbit(call: Call, notes: Notes) -> Any:
    """Follow peft's ``prepare_model_for_kbit_training``: it freezes the model, and checkpoints unless told not to.

    A model that is not quantized it casts to fp32 and does not checkpoint (peft/utils/other.py, 0.2 to 0.15).
    """
    model = call.value(0, "model", default=UNKNOWN)
    if isinstance(model, Model):
        model.train(None, value=False, call=call)
        if _is_unquantized(model):
            if call.name == "prepare_model_for_kbit_training":
                model.put("dtype", "float32", call.where, f"{call.name}() of a model that is not quantized")
            return model
        if call.value(1, "use_gradient_checkpointing", default=True) is not False:
            model.put("activation_checkpointing", True, call.where, f"{call.name}()")
        model.put("kbit_preparation", True, call.where, f"{call.name}()")
    return model


_QUANTIZED_NAME = re.compile(r"(?i)gptq|awq|bnb|hqq|int[48]|[48]-?bit|fp8")


def _is_unquantized(model: Model) -> bool:
    """Return True if the script says how a model is loaded, and nothing of it quantizes the weights."""
    names = ("load_in_4bit", "load_in_8bit", "quantization_config")
    table = model.config.table() if model.config is not None else None
    name = str(model.name.value) if model.name is not None else ""
    is_stored_so = "quantization_config" in table if table is not None else _QUANTIZED_NAME.search(name) is not None
    if not model.is_read or is_stored_so or model.unresolved.keys() & {*names}:
        return False
    return not any(setting.value for name in names if (setting := model.settings.get(name)) is not None)


def patch_with_liger(call: Call, notes: Notes) -> Any:
    """Follow ``apply_liger_kernel_to_llama()``, whose arguments switch kernels on and off."""
    origin = f"{call.where}: {call.name}()"
    stated = {name: value for name, value in call.kwargs.items() if isinstance(plain(value), bool)}
    notes.written.setdefault("use_liger_kernel", Setting(value=True, origin=origin))
    if stated:
        table = {name: plain(value) for name, value in stated.items()}
        notes.written.setdefault("liger_kernel_config", Setting(value=table, origin=origin))
    return None


_LIGER_FAMILIES = "llama mistral mixtral gemma gemma2 gemma3 gemma3_text qwen2 qwen3 qwen3_moe phi3 olmo2 granite glm4"
LIGER_FUNCTIONS = tuple(f"apply_liger_kernel_to_{family}" for family in _LIGER_FAMILIES.split())
"""Liger-Kernel's functions that patch transformers' classes, by family."""


# Calls that make models: ``from_pretrained``, ``from_config``, a class with a config, copies and averages.


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
        if not call.path.startswith("diffusers."):  # whose autoencoders stand beside the model
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
                sentence = f"{call.where}: {shown} is only known when the script runs; its default is assumed."
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
    is_known = call.unknown_table is None and call.value(None, "quantization_config") is not UNKNOWN
    model.is_read = is_known and call.owner not in UNSLOTH_CLASSES
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
