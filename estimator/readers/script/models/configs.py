"""Configurations that a script makes and changes: a model's config, and the arguments of a trainer."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ....job.settings import UncertaintyDirection
from ...source.data_files import NULL_IS_NO_LIMIT, NULL_IS_WRONG
from ...source.evidence import MODEL_STATES, UNKNOWN_TABLE, Component, Setting
from ...source.versions import OldCall
from ...trl.methods import TRAINER_NAMES
from ..command_line.class_defaults import class_defaults
from ..command_line.parsed import Parsed
from ..python.values import (
    PLAIN,
    UNKNOWN,
    Attribute,
    Call,
    External,
    Function,
    ScriptClass,
    ScriptModule,
    Thing,
    as_number,
    plain,
    short_text,
)

# Defaults of transformers' config classes, for scripts that make a model from a config of their own.
#
# Source: the configuration files of transformers 5 (``models/<family>``). Fields that follow from others are left
# out.


def _decoder(*sizes: int, **more: Any) -> Mapping[str, Any]:
    hidden, mlp, layers, heads, vocabulary, positions = sizes
    table = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        **more,
    }
    return MappingProxyType(table)


_QWEN2 = _decoder(4096, 22016, 32, 32, 151936, 32768, num_key_value_heads=32)
_BERT: Mapping[str, Any] = _decoder(768, 3072, 12, 12, 30522, 512, type_vocab_size=2)

CONFIG_DEFAULTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Llama": ("llama", _decoder(4096, 11008, 32, 32, 32000, 2048)),
    "Mistral": ("mistral", _decoder(4096, 14336, 32, 32, 32000, 131072, num_key_value_heads=8)),
    "Mixtral": (
        "mixtral",
        _decoder(
            *(4096, 14336, 32, 32, 32000, 131072), num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2
        ),
    ),
    "Qwen2": ("qwen2", _QWEN2),
    "Qwen3": ("qwen3", _decoder(4096, 22016, 32, 32, 151936, 32768, num_key_value_heads=32, head_dim=128)),
    "Gemma": ("gemma", _decoder(3072, 24576, 28, 16, 256000, 8192, num_key_value_heads=16, head_dim=256)),
    "Gemma2": ("gemma2", _decoder(2304, 9216, 26, 8, 256000, 8192, num_key_value_heads=4, head_dim=256)),
    "Gemma3Text": ("gemma3_text", _decoder(2304, 9216, 26, 8, 262208, 131072, num_key_value_heads=4, head_dim=256)),
    "Phi": ("phi", _decoder(2048, 8192, 24, 32, 51200, 2048)),
    "Phi3": ("phi3", _decoder(3072, 8192, 32, 32, 32064, 4096)),
    "Olmo2": ("olmo2", _decoder(4096, 11008, 32, 32, 50304, 2048)),
    "GPTNeoX": ("gpt_neox", _decoder(6144, 24576, 44, 64, 50432, 2048)),
    "GPT2": (
        "gpt2",
        MappingProxyType({"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}),
    ),
    "Bert": ("bert", _BERT),
    "Roberta": ("roberta", MappingProxyType({**_BERT, "vocab_size": 50265})),
    "DistilBert": (
        "distilbert",
        MappingProxyType(
            {
                "vocab_size": 30522,
                "dim": 768,
                "n_layers": 6,
                "n_heads": 12,
                "hidden_dim": 3072,
                "max_position_embeddings": 512,
            }
        ),
    ),
    "T5": (
        "t5",
        MappingProxyType(
            {
                "vocab_size": 32128,
                "d_model": 512,
                "d_kv": 64,
                "d_ff": 2048,
                "num_layers": 6,
                "num_heads": 8,
                "relative_attention_num_buckets": 32,
                "feed_forward_proj": "relu",
                "is_encoder_decoder": True,
            }
        ),
    ),
}
"""``model_type`` and defaults by what a class's name begins with: ``Llama`` of ``LlamaConfig``."""

FIELD_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hidden_size": ("n_embd", "d_model", "dim"),
        "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
        "num_attention_heads": ("n_head", "num_heads", "n_heads"),
        "max_position_embeddings": ("n_positions",),
        "intermediate_size": ("n_inner", "d_ff", "hidden_dim"),
    }
)
"""Names that families have for a field which transformers also offers under its general name."""
SHAPE_FIELDS = frozenset(
    {
        *(name for general, names in FIELD_NAMES.items() for name in (general, *names)),
        *("num_labels", "vocab_size", "num_key_value_heads", "head_dim", "tie_word_embeddings", "num_local_experts"),
        *("num_experts", "moe_intermediate_size", "n_routed_experts", "num_decoder_layers", "decoder_layers"),
        *("encoder_layers", "ffn_dim", "type_vocab_size", "num_experts_per_tok"),
    }
)
"""Fields on which parameters or activations depend."""


def general_name(field: str, config: Mapping[str, Any]) -> str:
    """Return the name under which a config has a field."""
    if field in config:
        return field
    return next((name for name in FIELD_NAMES.get(field, ()) if name in config), field)


# Findings of one reading of a script: models, optimizers, trainers, settings, and doubts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Something that memory depends on and that was not understood."""

    sentence: str
    direction: UncertaintyDirection = "either"
    components: tuple[Component, ...] = ()
    key: str | None = None
    """The job key whose value, given by the user, removes the doubt."""
    asks: bool = False
    """No range allows for it: the user has to give the key."""


_DEVICE = re.compile(r"cuda(?::(\d{1,3}))?")


@dataclass(slots=True)
class Notes:
    """The outcome of one reading."""

    find_config: Callable[[str], Mapping[str, Any] | None]
    """Returns the config of a model by its name; None if it is not on this machine."""
    versions: Mapping[str, str]
    """Installed versions by distribution, where known."""
    models: list[Any] = field(default_factory=list)
    """Every model that the script makes, in order."""
    modules: list[Any] = field(default_factory=list)
    """Objects of the script's classes, which may hold models and layers."""
    optimizers: list[Any] = field(default_factory=list)
    trainers: list[Any] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    """``TrainingArguments`` and the like."""
    parameters_given: list[Any] = field(default_factory=list)
    """Models or parameters that something other than an optimizer of a known class trains."""
    written: dict[str, Setting] = field(default_factory=dict)
    hints: dict[str, Setting] = field(default_factory=dict)
    accelerate: dict[str, Setting] = field(default_factory=dict)
    own_loop: dict[str, Setting] = field(default_factory=dict)
    """Settings of the script's own training loop, by accelerate's names."""
    sharded: list[Any] = field(default_factory=list)
    """What FSDP wraps in the script's own training loop, in order."""
    assigned: dict[str, Setting] = field(default_factory=dict)
    """Settings that the script assigns after it has parsed its command line."""
    unresolved: dict[str, str] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    old_calls: dict[OldCall, str] = field(default_factory=dict)
    """What today's libraries refuse, and where it stands."""
    own_loss: bool = False
    """A class of the script's, derived from one of TRL's trainers, computes the loss itself."""
    doubts: dict[str, Doubt] = field(default_factory=dict)
    """By their sentences."""
    assumed: dict[str, Doubt] = field(default_factory=dict)
    """What was not followed, by sentences: doubts where nothing more specific says the same."""
    names_found: dict[int, Setting] = field(default_factory=dict)
    """Models' names that configs (1) and tokenizers (2) are loaded by."""
    passes: list[Any] = field(default_factory=list)
    """Forward passes with gradients since the last backward pass: models, places, and the loops around them."""
    living: list[set[int]] = field(default_factory=list)
    """Models that something refers to, by identity, each time that the script trains."""

    default_dtype: Setting | None = None
    visible_devices: Setting | None = None
    """The CUDA_VISIBLE_DEVICES that the script sets."""
    tested_batch: Setting | None = None
    """The batch size of a loader of test data."""
    devices: dict[int, str] = field(default_factory=dict)
    """Positions of the GPUs that models are put on, with the place of the first use."""
    current_device: int = 0
    ranks: Any = UNKNOWN
    """Number of processes that run the script."""
    added_tokens: int | None = 0
    """Tokens that the script adds to its tokenizer; None: unknown."""

    def note_device(self, value: Any, where: str, *, is_current: bool = False) -> None:
        """Note a GPU that something is put on, by its position: ``cuda:1``, 1; ``cuda`` is the current one."""
        match = _DEVICE.fullmatch(value) if isinstance(value, str) else None
        index = value if type(value) is int else int(match[1] or self.current_device) if match else None
        if index is not None:
            self.devices.setdefault(index, where)
            self.current_device = index if is_current else self.current_device

    @property
    def device(self) -> Setting | None:
        """The one GPU that the script uses, by its position among those that it sees, if that is not the first."""
        index, where = next(iter(self.devices.items()), (0, ""))
        return Setting(value=index, origin=f"{where}: the device") if index > 0 and len(self.devices) == 1 else None

    def living_beside(self, trained: Any) -> set[int] | None:
        """Return the models that live while a model trains; None: no training was seen."""
        points = [point for point in self.living if id(trained) in point] or self.living
        return max(points, key=len, default=None)

    def doubt(
        self,
        sentence: str,
        *components: Component,
        direction: UncertaintyDirection = "either",
        key: str | None = None,
        asks: bool = False,
    ) -> None:
        """Note something that was not understood, and the components of memory that it concerns."""
        doubt = Doubt(sentence=sentence, direction=direction, components=components, key=key, asks=asks)
        self.doubts.setdefault(sentence, doubt)

    def assume(
        self,
        sentence: str,
        *components: Component,
        direction: UncertaintyDirection = "either",
        key: str | None = None,
    ) -> None:
        """Note something that is counted like a library's because it was not followed."""
        doubt = Doubt(sentence=sentence, direction=direction, components=components, key=key)
        self.assumed.setdefault(sentence, doubt)

    def all_doubts(self) -> list[Doubt]:
        """Return the doubts, with those assumptions that no doubt covers: one for the same components or key."""
        found = list(self.doubts.values())
        for each in self.assumed.values():
            if not any(
                (known.key == each.key and known.key is not None)
                or (known.key is None and known.direction == "either" and set(each.components) <= set(known.components))
                for known in found
            ):
                found.append(each)
        return found


TRAINING_CONFIG = re.compile(rf"[A-Za-z0-9]*TrainingArguments|(Async)?({TRAINER_NAMES})(v2)?Config|ModelConfig")
SIZE_ARGUMENTS = ("per_device_train_batch_size", "max_length")
"""Arguments whose default is hardly meant where a script computes them: the user is asked for the value."""
LENGTH_ARGUMENTS = (
    *("max_length", "max_seq_length", "max_seq_len", "block_size", "seq_length", "seq_len", "sequence_length"),
    "max_words",
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
                sentence = f"{where}: {text} may add or change parts of the model; vramtop does not follow it."
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


# The attention of models whose classes stand in the script's own files.
#
# Since 4.36 transformers takes sdpa for classes that say ``_supports_sdpa = True``, and eager attention for others
# (``PreTrainedModel`` in modeling_utils.py).


_OF_ATTENTION = re.compile(r"(?i)att(n|ention)")
_SDPA = {"sdpa", "scaled_dot_product_attention", "ALL_ATTENTION_FUNCTIONS"}
_KINDS = (
    ("flash_attention_2", re.compile(r"(?i)flash_?attn|flash_?attention")),
    ("sdpa", re.compile(r"scaled_dot_product_attention|memory_efficient_attention")),
    ("eager", re.compile(r"softmax")),
)
"""Attention by the functions that compute it; xformers' takes the memory of sdpa."""
_COMPUTES = re.compile(
    r"\.(forward|_\w*(attn|attention)_forward|[A-Z]\w*(DecoderLayer|MLP|RMSNorm|Model|For[A-Z]\w+))$"
)
"""Classes and methods that hold a model's activations or logits."""
_DIVIDES = re.compile(
    r"(?!get_|is_|has_)(?i:\w*(ring_(flash_)?att|zigzag|ulysses|(seq|sequence|context)_parallel|dist_(flash_)?att|lightseq))"
)
"""Names of what computes attention over a sequence whose parts lie on several GPUs."""


@dataclass(frozen=True, slots=True)
class OwnAttention:
    """What the files of a class say of its attention, where transformers' default may not hold."""

    name: str | None
    """A value of ``attn_implementation``; None: it cannot be decided, and transformers' default counts."""
    where: str
    """The file and line that compute it, for people."""
    sentence: str
    direction: UncertaintyDirection


def own_attention(kind: ScriptClass | None) -> OwnAttention | None:
    """Return what the files of a class and its bases say of attention; None where transformers' default holds.

    Args:
        kind: the class that makes the model; None: a library's.
    """
    if kind is None or not any(base.endswith("PreTrainedModel") for base in kind.external_bases()):
        return None
    modules = list(_modules(kind))
    where = next((place for module in modules for place in _softmax_of_attention(module)), None)
    supported = kind.find("_supports_sdpa")
    if where is None or supported is True:
        return None
    if supported is not False and any(_SDPA & set(_words(module.tree)) for module in modules):
        sentence = f"{where}: whether {kind.name} runs eager attention or sdpa is not known; sdpa is assumed."
        return OwnAttention(None, where, sentence, "more")
    sentence = f"{where}: {kind.name} computes attention itself, without sdpa; eager attention is assumed."
    return OwnAttention("eager", where, sentence, "less")


def doubt_patch(call: Call, notes: Notes) -> bool:
    """Note what a script puts in the place of transformers' methods and classes, and sequences that it divides.

    Returns:
        False where it does neither.
    """
    new, key = call.value(0), "parallel.context"
    patches = isinstance(call.receiver, External) and isinstance(new, Function | ScriptClass)
    patches = patches and call.path.startswith("transformers.") and _COMPUTES.search(call.path) is not None
    trees = [new.node, new.module.tree] if patches and isinstance(new, Function | ScriptClass) else []
    divides = any(_DIVIDES.match(word) for tree in trees for word in _words(tree))
    what = f"replaces {'.'.join(call.path.split('.')[-2:])}" if patches else f"calls {call.name}(...)"
    divides = divides or (call.name.islower() and _DIVIDES.match(call.name) is not None)
    if divides:
        if all(doubt.key != key for doubt in notes.doubts.values()):
            sentence = (
                f"{call.where}: the script {what}, so GPUs may share a sequence; set parallel.context to their number."
            )
            notes.doubt(sentence, "activations", "logits", direction="less", key=key)
    elif patches:
        sentence = f"{call.where}: the script {what}; transformers' own code is counted."
        notes.doubt(sentence, "activations", "logits")
    return patches or divides


def patch_attention(call: Call, notes: Notes) -> bool:
    """Note which attention a script puts in the place of a library's: ``LlamaAttention.forward = forward``.

    Returns:
        False where the call is no such assignment.
    """
    new = call.value(0)
    is_patch = isinstance(call.receiver, External) and isinstance(new, Function | ScriptClass)
    if not is_patch or not re.search(r"Attention\w*(\.forward)?$", call.path):
        return False
    for words in (set(_words(new.node)), set(_words(new.module.tree))):
        kind = next((name for name, pattern in _KINDS if any(map(pattern.search, words))), None)
        if kind is not None:
            text = f"{'.'.join(call.path.split('.')[-2:])} = {new.name}"
            notes.hints["attn_implementation"] = Setting(value=kind, origin=f"{call.where}: {text}")
            return True
    return False


def _modules(kind: ScriptClass, depth: int = 0) -> Iterator[ScriptModule]:
    """Yield the files of a class and of its bases."""
    yield kind.module
    for base in kind.bases if depth < 10 else ():
        if isinstance(base, ScriptClass):
            yield from _modules(base, depth + 1)


def _softmax_of_attention(module: ScriptModule) -> Iterator[str]:
    """Yield the places at which classes and functions of attention take a softmax."""
    for part in module.tree.body if module.tree is not None else ():
        if isinstance(part, ast.ClassDef | ast.FunctionDef) and _OF_ATTENTION.search(part.name):
            for node in ast.walk(part):
                if isinstance(node, ast.Call) and "softmax" in (
                    getattr(node.func, "attr", None),
                    getattr(node.func, "id", None),
                ):
                    yield f"{module.name} line {node.lineno}"


def _words(tree: ast.AST | None) -> Iterator[str]:
    """Yield the names and texts in a file or a part of one."""
    for node in ast.walk(tree) if tree is not None else ():
        for part in ("id", "attr", "name", "value"):
            word = getattr(node, part, None)
            if isinstance(word, str):
                yield word
