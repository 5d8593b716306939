"""A training script, read and never run: the literal arguments of the calls that decide about memory."""

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...common.errors import InputError
from ...common.untrusted_files import TooLargeError, read_file
from ..source.settings import Setting, SettingsLayer
from .script_values import ScriptEvaluator, calls_in_order

_MOST_BYTES = 3 * 2**16
"""Of a script: read within a second, whatever is in it; transformers' own modeling files have less."""
_CONFIGS = re.compile(r"(Seq2Seq|Unsloth)?TrainingArguments|(SFT|DPO|KTO|GRPO|RLOO|Reward|ORPO|CPO)Config|ModelConfig")
_TRL = re.compile(r"(SFT|DPO|KTO|GRPO|RLOO|Reward|ORPO|CPO)(Config|Trainer)")
_LORA = {"r": "lora_r", "target_modules": "lora_target_modules"}
_QUANTIZED = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
_LOADING = ("dtype", "torch_dtype", "attn_implementation", "load_in_4bit", "load_in_8bit", "quantization_config")
_MODEL_NAMES = ("pretrained_model_name_or_path", "model_name")
_DECISIVE = {
    *("per_device_train_batch_size", "gradient_accumulation_steps", "optim", "bf16", "fp16", "dtype", "torch_dtype"),
    *("activation_checkpointing", "gradient_checkpointing", "max_length", "max_seq_length", "fsdp", "deepspeed"),
    *("load_in_4bit", "load_in_8bit", "attn_implementation", "use_liger_kernel", "r", "target_modules"),
}
"""Without their values the estimate may be about another job."""
_TASKS = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForSeq2SeqLM": "seq2seq-lm",
    "ForConditionalGeneration": "seq2seq-lm",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}
_OPTIMIZERS = {
    "AdamW": "adamw_torch",
    "Adam": "adamw_torch",
    "AdamW8bit": "adamw_8bit",
    "Adam8bit": "adamw_8bit",
    "PagedAdamW8bit": "paged_adamw_8bit",
    "PagedAdamW": "paged_adamw_32bit",
    "PagedAdamW32bit": "paged_adamw_32bit",
    "SGD": "sgd",
    "Adafactor": "adafactor",
    "Lion": "lion_32bit",
    "Muon": "muon",
}
_SHARDS = {"FSDP": 1, "FullyShardedDataParallel": 1, "fully_shard": 2}
_OF_SHARDS = {"reshard_after_forward": "fsdp_reshard_after_forward"}
_MIXED = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
SIZE_ARGUMENTS = ("per_device_train_batch_size", "max_length")
"""What a script gives by itself here is hardly the default: it is asked for."""
UNKNOWN_TABLE = "**"
"""In place of a name: of arguments that are given as a table."""
_LENGTHS = ("max_length", "max_seq_length", "max_seq_len", "block_size", "seq_length", "seq_len", "sequence_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSettings:
    """What a script's text says, by the names of transformers' and accelerate's arguments."""

    written: SettingsLayer = field(default_factory=dict)
    """Literal arguments of the calls that configure the job."""
    hints: SettingsLayer = field(default_factory=dict)
    """Weaker: defaults of its options, batch size of a DataLoader, length of a tokenizer or constant, optimizer."""
    accelerate: SettingsLayer = field(default_factory=dict)
    """Arguments of ``Accelerator(...)``; sharding and mixed precision of a loop of its own."""
    called: frozenset[str] = frozenset()
    """Last parts of the names that it calls."""
    loads_model: bool = False
    """It loads the model itself, rather than let the trainer do it."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Arguments that only running the script would tell, each with a sentence."""

    @property
    def trl_method(self) -> str | None:
        """``sft``, ``dpo``, ... where the script uses one of TRL's trainers."""
        matches = (_TRL.fullmatch(name) for name in sorted(self.called))
        return next((match[1].lower() for match in matches if match), None)

    @property
    def plain_arguments(self) -> bool:
        """Whether it gives a TRL trainer transformers' own TrainingArguments."""
        configs = [name for name in self.called if _CONFIGS.fullmatch(name) and name != "ModelConfig"]
        return bool(configs) and all(name.endswith("TrainingArguments") for name in configs)

    @property
    def trains_with_trainer(self) -> bool:
        """Whether TrainingArguments or a relative of it is used."""
        return any(_CONFIGS.fullmatch(name) or name.endswith("Trainer") for name in self.called)


def read_script(path: Path, *, options: Mapping[str, Setting], environ: Mapping[str, str]) -> ScriptSettings:
    """What a script's text says.

    Args:
        path: the script.
        options: flags on its command line.
        environ: its environment.

    Raises:
        InputError: it cannot be read, or is not Python that this interpreter can parse.
    """
    try:
        text = read_file(path, _MOST_BYTES)
        with warnings.catch_warnings():  # of its style: they would go to the terminal
            warnings.simplefilter("ignore")
            tree = ast.parse(text, filename=str(path))
        return _read(tree, path.name, options, environ)
    except TooLargeError:
        raise InputError(f"{path}: too large to be a script") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path}: is not Python that can be read here: {error}") from None
    except (RecursionError, MemoryError):  # the latter is the parser's word for deep nesting
        raise InputError(f"{path}: is not Python that can be read here: nested too deeply") from None


def _read(tree: ast.Module, script: str, options: Mapping[str, Setting], environ: Mapping[str, str]) -> ScriptSettings:
    values = ScriptEvaluator(tree, script=script, options=options, environ=environ)
    reader = _Reader(values)
    called = set()
    for name, node in calls_in_order(tree):
        called.add(name)
        reader.read(name, node)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    own_loop = not any(name.endswith("Trainer") for name in called)
    return ScriptSettings(
        written={**reader.models, **reader.written},
        hints={**values.constants(*_LENGTHS), **reader.hints, **_given(values.defaults)},
        accelerate={**(reader.loop if own_loop else {}), **reader.accelerate},
        loads_model=reader.loads_model,
        unread={name: what for name, what in reader.unread.items() if name not in reader.written},
        called=frozenset(called | {name for name in imported if _TRL.fullmatch(name) or _CONFIGS.fullmatch(name)}),
    )


def _given(defaults: SettingsLayer) -> SettingsLayer:
    return {name: setting for name, setting in defaults.items() if setting.value is not None}


class _Reader:
    """Goes through a script's calls; the first value of a name stays."""

    def __init__(self, values: ScriptEvaluator) -> None:
        self._values = values
        self.written: dict[str, Setting] = {}
        self.models: dict[str, Setting] = {}
        self.hints: dict[str, Setting] = {}
        self.accelerate: dict[str, Setting] = {}
        self.loop: dict[str, Setting] = {}
        """Of a training loop of the script's own, by accelerate's names."""
        self.unread: dict[str, str] = {}
        self._model_rank = 9
        self._given_by_name = False
        """A trainer was given the model's name."""

    @property
    def loads_model(self) -> bool:
        """The script loads the model itself."""
        return self._model_rank == 0 and not self._given_by_name

    def read(self, name: str, node: ast.Call) -> None:
        """Take from one call what it says about memory."""
        if _CONFIGS.fullmatch(name):
            self._keywords(name, node, self.written)
        elif name in ("LoraConfig", "get_peft_model") and any(k.arg == "r" for k in node.keywords):
            self._keywords(name, node, self.written, renamed=_LORA, only=tuple(_LORA))
            self._say("use_peft", True, node, f"{name}(...)")
            self._unsloth_checkpointing(node)
        elif name == "get_peft_model" and _is_unsloth(node):
            self._say("use_peft", True, node, f"{name}(...)")
            self._hint("lora_r", 16)
            self._unsloth_checkpointing(node)
        elif name == "BitsAndBytesConfig":
            self._keywords(name, node, self.written, only=_QUANTIZED)
            self._say("bitsandbytes_config", True, node, "BitsAndBytesConfig(...)")
        elif name in ("from_pretrained", "from_config"):
            self._model(name, node)
        elif name == "Accelerator":
            self._keywords(name, node, self.accelerate)
        elif name in ("DataLoader", *_OPTIMIZERS):
            self._loop(name, node)
        else:
            self._others(name, node)

    def _others(self, name: str, node: ast.Call) -> None:
        if name.endswith("Trainer"):
            self._first_argument(name, node)
        elif name in ("gradient_checkpointing_enable", "prepare_model_for_kbit_training"):
            self._say("activation_checkpointing", True, node, f"{name}()")
        elif name == "compile" and isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == "torch.compile":
            self._say("torch_compile", True, node, "torch.compile(...)")
        elif name in ("bfloat16", "half") and isinstance(node.func, ast.Attribute) and not node.args:
            self._say("dtype", "bfloat16" if name == "bfloat16" else "float16", node, f".{name}()")
        elif name in _SHARDS or name in ("autocast", "MixedPrecisionPolicy", "MixedPrecision"):
            self._own_loop(name, node)
        elif _task(name):
            self._say("task", _task(name), node, f"{name}(...)")
            self._say("dtype", "float32", node, f"{name}(config), a model made from its config alone")
        self._keywords(name, node, self.hints, only=_LENGTHS)

    def _keywords(
        self,
        name: str,
        node: ast.Call,
        into: dict[str, Setting],
        *,
        renamed: Mapping[str, str] | None = None,
        only: tuple[str, ...] | None = None,
    ) -> None:
        for keyword in node.keywords:
            if keyword.arg is None:
                self._table(name, keyword.value, into)
            if keyword.arg is None or (only is not None and keyword.arg not in only):
                continue
            setting = self._values.setting(keyword.value, f"{name}({keyword.arg}={_short(keyword.value)})")
            if setting is not None and setting.value is not None:
                into.setdefault((renamed or {}).get(keyword.arg, keyword.arg), setting)
            elif setting is None and keyword.arg in _DECISIVE and into is self.written:
                what = f"{self._values.location(node)}: {name}({keyword.arg}={_short(keyword.value)})"
                counted = "." if keyword.arg in SIZE_ARGUMENTS else "; its default is counted."
                self.unread[keyword.arg] = f"{what} is only known when the script runs{counted}"

    def _table(self, name: str, node: ast.expr, into: dict[str, Setting]) -> None:
        """``TrainingArguments(**settings)``."""
        if into is not self.written or not _CONFIGS.fullmatch(name):
            return
        setting = self._values.setting(node, f"{name}(**{_short(node)})")
        if setting is None or not isinstance(setting.value, dict):
            what = f"{self._values.location(node)}: {name}(**{_short(node)})"
            self.unread[UNKNOWN_TABLE] = f"{what} is only known when the script runs; defaults are counted."
            return
        for key, value in setting.value.items():
            into.setdefault(key, Setting(value=value, origin=f"{setting.origin}: {key}"))

    def _model(self, method: str, node: ast.Call) -> None:
        """``AutoModelForX.from_pretrained("id", dtype=...)``; a tokenizer's or config's id will do."""
        owner = ast.unparse(node.func.value).rpartition(".")[2] if isinstance(node.func, ast.Attribute) else ""
        is_model = "Model" in owner or _task(owner) is not None
        if _task(owner):
            self._say("task", _task(owner), node, f"{owner}.{method}")
        elif owner in ("AutoModel", "BertModel", "LlamaModel"):
            self._say("task", "feature-extraction", node, f"{owner}.{method}")
        if is_model:
            self._unsloth_loading(node)
            self._keywords(f"{owner}.{method}", node, self.written, only=_LOADING)
            self._keywords(f"{owner}.{method}", node, self.hints, only=_LENGTHS)
        if method == "from_config":
            return
        rank = 0 if is_model else 1 if "Config" in owner else 2
        arguments = node.args[:1] or [k.value for k in node.keywords if k.arg in _MODEL_NAMES]
        setting = (
            self._values.setting(arguments[0], f"{owner}.from_pretrained({_short(arguments[0])})")
            if arguments
            else None
        )
        if setting is not None and isinstance(setting.value, str) and rank < self._model_rank:
            self._model_rank = rank
            self.models["model_name_or_path"] = setting

    def _first_argument(self, name: str, node: ast.Call) -> None:
        """``SFTTrainer(model="id")`` loads the model itself."""
        values = [k.value for k in node.keywords if k.arg == "model"] or list(node.args[:1])
        setting = self._values.setting(values[0], f"{name}(model={_short(values[0])})") if values else None
        if setting is not None and isinstance(setting.value, str):
            self.models["model_name_or_path"] = setting
            self._given_by_name = True

    def _unsloth_loading(self, node: ast.Call) -> None:
        """In 4 bits unless told otherwise, and with a loss that makes no logits (unsloth's ``loader.py``)."""
        if not _is_unsloth(node):
            return
        self._hint("use_liger_kernel", True)
        others = {k.arg for k in node.keywords if not isinstance(k.value, ast.Constant) or k.value.value is True}
        if others.isdisjoint(("load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")):
            self._hint("load_in_4bit", True)
        self._hint("bnb_4bit_use_double_quant", True)

    def _unsloth_checkpointing(self, node: ast.Call) -> None:
        """``get_peft_model(use_gradient_checkpointing="unsloth")``, its default: activations go to the host as well."""
        given = next((k.value for k in node.keywords if k.arg == "use_gradient_checkpointing"), None)
        if given is not None:
            on = not isinstance(given, ast.Constant) or given.value not in (False, None)
            self._say("activation_checkpointing", on, node, f"use_gradient_checkpointing={_short(given)}")
            if isinstance(given, ast.Constant) and given.value == "unsloth":
                self._say("activation_offloading", True, node, "use_gradient_checkpointing='unsloth'")
        elif _is_unsloth(node):
            self._hint("activation_checkpointing", True)
            self._hint("activation_offloading", True)
        if _is_unsloth(node):
            self._hint("lora_target_modules", "all-linear")

    def _hint(self, name: str, value: object) -> None:
        self.hints.setdefault(name, Setting(value=value, origin="unsloth's default", written=False))

    def _loop(self, name: str, node: ast.Call) -> None:
        """A training loop of the script's own."""
        if name == "DataLoader":
            for keyword in node.keywords:
                setting = self._values.setting(keyword.value, f"DataLoader(batch_size={_short(keyword.value)})")
                if keyword.arg == "batch_size" and setting is not None:
                    self.hints.setdefault("per_device_train_batch_size", setting)
        else:
            origin = f"{self._values.location(node)}: {name}(...)"
            self.hints.setdefault("optim", Setting(value=_OPTIMIZERS[name], origin=origin))

    def _own_loop(self, name: str, node: ast.Call) -> None:
        """Sharding and mixed precision that no library decides."""
        origin = f"{self._values.location(node)}: {name}(...)"
        if name in _SHARDS:
            self.loop.setdefault("use_fsdp", Setting(value=True, origin=origin))
            self.loop.setdefault("fsdp_version", Setting(value=_SHARDS[name], origin=origin))
            self._keywords(name, node, self.loop, renamed=_OF_SHARDS, only=tuple(_OF_SHARDS))
            return
        given = [k.value for k in node.keywords if k.arg in ("dtype", "param_dtype")] or list(node.args[1:2])
        kind = self._values.setting(given[0], f"{name}({_short(given[0])})") if given else None
        word = str(kind.value) if kind is not None else "float16" if name == "autocast" and not given else ""
        if word in _MIXED:
            self.loop.setdefault("mixed_precision", Setting(value=_MIXED[word], origin=origin))

    def _say(self, name: str, value: object, node: ast.AST, what: str) -> None:
        self.written.setdefault(name, Setting(value=value, origin=f"{self._values.location(node)}: {what}"))


def _is_unsloth(node: ast.Call) -> bool:
    """A call of ``FastLanguageModel`` or one of its sisters."""
    owner = ast.unparse(node.func.value).rpartition(".")[2] if isinstance(node.func, ast.Attribute) else ""
    return owner in ("FastLanguageModel", "FastModel", "FastVisionModel", "FastTextModel")


def _task(name: str) -> str | None:
    """The task of a model class, by the end of its name."""
    return next((task for ending, task in _TASKS.items() if name.endswith(ending)), None)


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:37]}..."
