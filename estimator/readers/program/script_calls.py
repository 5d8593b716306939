"""Reads the calls in a training script that decide about memory, as transformers' and accelerate's arguments."""

import ast
import re
from collections.abc import Callable, Mapping

from ...job.rules import NOT_KNOWN, optimizer_arguments, optimizer_by_class, optimizer_class_names
from ..source import UNKNOWN_TABLE, Setting, default_setting
from ..trl import TRAINER_NAMES
from .script_values import Call, ScriptEvaluator

TRAINING_CONFIG = re.compile(rf"(Seq2Seq|Unsloth)?TrainingArguments|(Async)?({TRAINER_NAMES})(v2)?Config|ModelConfig")
SIZE_ARGUMENTS = ("per_device_train_batch_size", "max_length")
"""Arguments whose default is hardly meant where a script computes them: the user is asked for the value."""
LENGTH_ARGUMENTS = (
    *("max_length", "max_seq_length", "max_seq_len", "block_size", "seq_length", "seq_len", "sequence_length"),
)
_LIMITS = ("max_length", "max_seq_length", "max_prompt_length", "max_completion_length", "max_new_tokens")
"""Arguments whose None means that there is no limit, whatever the default is."""
_DECISIVE_ARGUMENTS = {
    *("per_device_train_batch_size", "gradient_accumulation_steps", "optim", "bf16", "fp16", "dtype", "torch_dtype"),
    *("activation_checkpointing", "gradient_checkpointing", "max_length", "max_seq_length", "fsdp", "deepspeed"),
    *("load_in_4bit", "load_in_8bit", "attn_implementation", "use_liger_kernel", "r", "target_modules"),
}
"""Arguments without whose values the estimate may be about another job."""
_LORA_NAMES = {"r": "lora_r", "target_modules": "lora_target_modules"}
_RESHARD_NAMES = {"reshard_after_forward": "fsdp_reshard_after_forward"}
_QUANTIZATION_ARGUMENTS = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
_LOADING_ARGUMENTS = (
    *("dtype", "torch_dtype", "attn_implementation", "load_in_4bit", "load_in_8bit", "quantization_config"),
)
_MODEL_NAME_ARGUMENTS = ("pretrained_model_name_or_path", "model_name")
_UNSLOTH_CLASSES = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastTextModel")
_UNSLOTH_OTHER_PRECISIONS = ("load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")
_BASE_MODELS = ("AutoModel", "BertModel", "LlamaModel")
_TASK_BY_CLASS_ENDING = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForSeq2SeqLM": "seq2seq-lm",
    "ForConditionalGeneration": "seq2seq-lm",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}
_FSDP_VERSION = {"FSDP": 1, "FullyShardedDataParallel": 1, "fully_shard": 2}
_MIXED_PRECISION = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}


class CallReader:
    """Reads a script's calls in order; the first value of a name stays.

    Args:
        evaluator: evaluates the calls' arguments.
    """

    def __init__(self, evaluator: ScriptEvaluator) -> None:
        self._evaluator = evaluator
        self.written: dict[str, Setting] = {}
        self.models: dict[str, Setting] = {}
        """The model's name, from the call that is most likely to load it."""
        self.hints: dict[str, Setting] = {}
        self.accelerate: dict[str, Setting] = {}
        self.own_loop: dict[str, Setting] = {}
        """Settings of the script's own training loop, by accelerate's names."""
        self.unresolved: dict[str, str] = {}
        self._model_rank = 9
        """How likely ``models`` names the trained model: 0 loads a model, 1 a config, 2 a tokenizer; 9: none yet."""
        self._trainer_loads_model = False

    @property
    def loads_model(self) -> bool:
        """True if the script loads the model itself."""
        return self._model_rank == 0 and not self._trainer_loads_model

    def read(self, call: Call) -> None:
        """Read what one call states about memory."""
        if TRAINING_CONFIG.fullmatch(call.name):
            self._read_keywords(call, self.written)
        elif call.name in ("LoraConfig", "get_peft_model") and call.keyword("r") is not None:
            self._read_keywords(call, self.written, renamed=_LORA_NAMES)
            self._read_adapters(call)
        elif call.name == "get_peft_model" and _is_unsloth(call):
            self._hint_unsloth_default("lora_r", 16)
            self._read_adapters(call)
        elif call.name in _SETUP_CALLS:
            _SETUP_CALLS[call.name](self, call)
        else:
            self._read_loop_call(call)
            self._read_keywords(call, self.hints, only=LENGTH_ARGUMENTS)

    def _read_loop_call(self, call: Call) -> None:
        """Read a call that may stand in a training loop, or around a trainer."""
        name, is_method = call.name, isinstance(call.node.func, ast.Attribute)
        if name.endswith("Trainer"):
            self._read_trainer_model(call)
        elif name in ("gradient_checkpointing_enable", "prepare_model_for_kbit_training"):
            self._put("activation_checkpointing", True, call, f"{name}()")
        elif name == "compile" and ast.unparse(call.node.func) == "torch.compile":
            self._put("torch_compile", True, call, "torch.compile(...)")
        elif name in ("bfloat16", "half") and is_method and not call.node.args:
            self._put("dtype", "bfloat16" if name == "bfloat16" else "float16", call, f".{name}()")
        elif name in _FSDP_VERSION:
            self._read_sharding(call)
        elif name in ("autocast", "MixedPrecisionPolicy", "MixedPrecision"):
            self._read_mixed_precision(call)
        elif _task(name):
            self._put("task", _task(name), call, f"{name}(...)")
            self._put("dtype", "float32", call, f"{name}(config), a model made from its config alone")

    def _read_keywords(
        self,
        call: Call,
        into: dict[str, Setting],
        *,
        renamed: Mapping[str, str] | None = None,
        only: tuple[str, ...] | None = None,
        label: str = "",
    ) -> None:
        """Read keyword arguments.

        Args:
            call: the call.
            into: where the settings go.
            renamed: the arguments to read, with the names to put them under.
            only: the arguments to read, under their own names; None: all.
            label: the callee's name for people, where it is more than the call's own name.
        """
        label = label or call.name
        wanted = tuple(renamed) if renamed is not None else only
        for keyword in call.node.keywords:
            if keyword.arg is None:
                self._read_table(call, keyword.value, into)
            if keyword.arg is None or (wanted is not None and keyword.arg not in wanted):
                continue
            text = f"{label}({keyword.arg}={_short(keyword.value)})"
            setting = self._evaluator.setting(keyword.value, text)
            if setting is not None and (setting.value is not None or keyword.arg in _LIMITS):
                into.setdefault((renamed or {}).get(keyword.arg, keyword.arg), setting)
            elif setting is None and keyword.arg in _DECISIVE_ARGUMENTS and into is self.written:
                counted = "." if keyword.arg in SIZE_ARGUMENTS else "; its default is counted."
                sentence = f"{self._evaluator.location(call.node)}: {text} is only known when the script runs{counted}"
                self.unresolved[keyword.arg] = sentence

    def _read_table(self, call: Call, node: ast.expr, into: dict[str, Setting]) -> None:
        """Read ``TrainingArguments(**settings)``."""
        if into is not self.written or not TRAINING_CONFIG.fullmatch(call.name):
            return
        text = f"{call.name}(**{_short(node)})"
        setting = self._evaluator.setting(node, text)
        if setting is None or not isinstance(setting.value, dict):
            location = self._evaluator.location(call.node)
            sentence = f"{location}: {text} is only known when the script runs; defaults are counted."
            self.unresolved[UNKNOWN_TABLE] = sentence
            return
        for key, value in setting.value.items():
            into.setdefault(key, Setting(value=value, origin=f"{setting.origin}: {key}"))

    def _read_model(self, call: Call) -> None:
        """Read ``AutoModelForX.from_pretrained("id", dtype=...)``; failing that, a config's or tokenizer's id."""
        label, task = f"{call.owner}.{call.name}", _task(call.owner)
        is_model = "Model" in call.owner or task is not None
        if task:
            self._put("task", task, call, label)
        elif call.owner in _BASE_MODELS:
            self._put("task", "feature-extraction", call, label)
        if is_model:
            if _is_unsloth(call):
                self._hint_unsloth_loading(call)
            self._read_keywords(call, self.written, only=_LOADING_ARGUMENTS, label=label)
            self._read_keywords(call, self.hints, only=LENGTH_ARGUMENTS, label=label)
        if call.name == "from_config":
            return
        rank = 0 if is_model else 1 if "Config" in call.owner else 2
        node = call.node.args[0] if call.node.args else call.keyword(*_MODEL_NAME_ARGUMENTS)
        setting = self._evaluator.setting(node, f"{label}({_short(node)})") if node is not None else None
        if setting is not None and isinstance(setting.value, str) and rank < self._model_rank:
            self._model_rank = rank
            self.models["model_name_or_path"] = setting

    def _read_trainer_model(self, call: Call) -> None:
        """Read ``SFTTrainer(model="id")``, which loads the model itself."""
        node = call.keyword("model") or next(iter(call.node.args), None)
        setting = self._evaluator.setting(node, f"{call.name}(model={_short(node)})") if node is not None else None
        if setting is not None and isinstance(setting.value, str):
            self.models["model_name_or_path"] = setting
            self._trainer_loads_model = True

    def _read_adapters(self, call: Call) -> None:
        """Read a call that adds LoRA adapters.

        ``get_peft_model(use_gradient_checkpointing="unsloth")``, unsloth's default, offloads activations as well.
        """
        self._put("use_peft", True, call, f"{call.name}(...)")
        given = call.keyword("use_gradient_checkpointing")
        if given is not None:
            on = not isinstance(given, ast.Constant) or given.value not in (False, None)
            self._put("activation_checkpointing", on, call, f"use_gradient_checkpointing={_short(given)}")
            if isinstance(given, ast.Constant) and given.value == "unsloth":
                self._put("activation_offloading", True, call, "use_gradient_checkpointing='unsloth'")
        elif _is_unsloth(call):
            self._hint_unsloth_default("activation_checkpointing", True)
            self._hint_unsloth_default("activation_offloading", True)
        if _is_unsloth(call):
            self._hint_unsloth_default("lora_target_modules", "all-linear")

    def _read_quantization(self, call: Call) -> None:
        self._read_keywords(call, self.written, only=_QUANTIZATION_ARGUMENTS)
        self._put("bitsandbytes_config", True, call, "BitsAndBytesConfig(...)")

    def _read_accelerator(self, call: Call) -> None:
        self._read_keywords(call, self.accelerate)

    def _read_data_loader(self, call: Call) -> None:
        node = call.keyword("batch_size")
        setting = self._evaluator.setting(node, f"DataLoader(batch_size={_short(node)})") if node is not None else None
        if setting is not None:
            self.hints.setdefault("per_device_train_batch_size", setting)

    def _read_optimizer(self, call: Call) -> None:
        """Read ``torch.optim.SGD(..., momentum=0.9)``: the hint's value is an ``OptimizerChoice``."""
        given = {}
        for keyword in call.node.keywords:
            if keyword.arg in optimizer_arguments():
                setting = self._evaluator.setting(keyword.value, keyword.arg)
                given[keyword.arg] = NOT_KNOWN if setting is None else setting.value
        choice = optimizer_by_class(ast.unparse(call.node.func), given)
        self.hints.setdefault("optim", self._setting(choice, call))

    def _read_sharding(self, call: Call) -> None:
        self.own_loop.setdefault("use_fsdp", self._setting(True, call))
        self.own_loop.setdefault("fsdp_version", self._setting(_FSDP_VERSION[call.name], call))
        self._read_keywords(call, self.own_loop, renamed=_RESHARD_NAMES)

    def _read_mixed_precision(self, call: Call) -> None:
        node = call.keyword("dtype", "param_dtype") or next(iter(call.node.args[1:2]), None)
        dtype = self._evaluator.setting(node, f"{call.name}({_short(node)})") if node is not None else None
        default = "float16" if call.name == "autocast" and node is None else ""
        word = str(dtype.value) if dtype is not None else default
        if word in _MIXED_PRECISION:
            self.own_loop.setdefault("mixed_precision", self._setting(_MIXED_PRECISION[word], call))

    def _hint_unsloth_loading(self, call: Call) -> None:
        """Assume 4 bits unless set otherwise, and a loss that makes no logits (unsloth's ``loader.py``)."""
        self._hint_unsloth_default("use_liger_kernel", True)
        perhaps_on = {
            keyword.arg
            for keyword in call.node.keywords
            if not isinstance(keyword.value, ast.Constant) or keyword.value.value is True
        }
        if perhaps_on.isdisjoint(_UNSLOTH_OTHER_PRECISIONS):
            self._hint_unsloth_default("load_in_4bit", True)
        self._hint_unsloth_default("bnb_4bit_use_double_quant", True)

    def _hint_unsloth_default(self, name: str, value: object) -> None:
        self.hints.setdefault(name, default_setting(value, "unsloth's default"))

    def _setting(self, value: object, call: Call) -> Setting:
        return Setting(value=value, origin=f"{self._evaluator.location(call.node)}: {call.name}(...)")

    def _put(self, name: str, value: object, call: Call, text: str) -> None:
        origin = f"{self._evaluator.location(call.node)}: {text}"
        self.written.setdefault(name, Setting(value=value, origin=origin))


_SETUP_CALLS: Mapping[str, Callable[[CallReader, Call], None]] = {
    "BitsAndBytesConfig": CallReader._read_quantization,
    "from_pretrained": CallReader._read_model,
    "from_config": CallReader._read_model,
    "Accelerator": CallReader._read_accelerator,
    "DataLoader": CallReader._read_data_loader,
    **dict.fromkeys(optimizer_class_names(), CallReader._read_optimizer),
}


def _is_unsloth(call: Call) -> bool:
    """Return True for a method of ``FastLanguageModel`` or a similar class."""
    return call.owner in _UNSLOTH_CLASSES


def _task(name: str) -> str | None:
    """Return the task of a model class, by the end of its name."""
    return next((task for ending, task in _TASK_BY_CLASS_ENDING.items() if name.endswith(ending)), None)


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:37]}..."
