"""Models of a script and their parts: which weights they hold, what was changed, frozen and wrapped."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ....model import usual_task
from ...source import MODEL_STATES, Setting
from ..python import UNKNOWN, Attribute, Call, External, Instance, Thing, short_text
from .configs import ModelConfig
from .notes import Notes
from .parameters import Parameter, ParameterList, ParameterOwner, Shape, elements, shapes_of

if TYPE_CHECKING:
    from ....job import Task
    from .own_attention import OwnAttention

_BODY_NAMES = ("model", "transformer", "bert", "roberta", "distilbert", "gpt_neox", "encoder", "base_model")
_LINEAR_CLASSES = ("Linear", "Linear4bit", "Linear8bitLt", "Conv1D")
_TRANSPARENT = ("module", "_orig_mod", "_fsdp_wrapped_module", "pretrained_model")
"""Attributes under which wrappers keep the model itself."""
_CHANGES = re.compile(
    r"(?i)wrap|lora|peft|adapter|quant|freez|prun|convert|inject|replace|attach|checkpointing"
    r"|(init|build|create|add|load|set)\w*_(vision|audio|speech|tower|module|encoder|projector|head|layer|token)"
)
"""Methods of a model's own class, which no library has, that change what it holds or trains."""
_ADAPTER_NAMES = ("lora_A.default.weight", "lora_B.default.weight")
_PEFT_PREFIX = "base_model.model."


class Model(ParameterOwner):
    """A model, whatever wraps it.

    Args:
        notes: the reading that it belongs to.
        where: the script and line that make it.
        label: the call that makes it, for people.
    """

    def __init__(self, notes: Notes, where: str, label: str) -> None:
        super().__init__(where)
        self.notes, self.label = notes, label
        self.name: Setting | None = None
        """The model's name; None: it is made from a config."""
        self.task: Setting | None = None
        self.changed_unseen = False
        """Something that is not followed was given it, and may have changed it."""
        self.attention: OwnAttention | None = None
        """What is said of attention in the files of its class, where that is one of the script's own."""
        self.settings: dict[str, Setting] = {}
        """What is known of it by the names of transformers' arguments: dtype, attention, quantization, LoRA."""
        self.hints: dict[str, Setting] = {}
        self.unresolved: dict[str, str] = {}
        self.config: ModelConfig | None = None
        self.on_gpu: bool | None = None
        """Whether it was moved to a GPU; None: the script does not say."""
        self.role: str | None = None
        self.copy_of: Model | None = None
        self.sharded = False
        self.runs = True
        """Its forward pass runs; not that of an average of weights."""
        self.has_adapters = False
        self.adapters_train = True
        self.own_adapters = False
        """It has adapters of another kind than LoRA."""
        self.replaced: dict[str, Thing] = {}
        """Parts that the script replaces, by their names."""
        self.names: set[str] = set()
        """Variables that refer to it."""
        self.passes: dict[str, bool] = {}
        """The places of its forward passes, and whether each may be given labels."""
        notes.models.append(self)

    def find_shapes(self) -> Mapping[str, Shape] | None:
        """Return the shape of every parameter by name; None: unknown."""
        table = self.config.table() if self.config is not None else None
        if table is None:
            return None
        task: Task | None = self.task.value if self.task is not None else None
        try:
            return shapes_of(table, task or usual_task(table))
        except Exception:  # noqa: BLE001 - a config of any shape; the estimate itself reports what is wrong with it
            return None

    def full_name(self, name: str) -> str:
        """Return the name of a parameter or module: without peft's prefix; of a tied head that of the embedding."""
        name = name.removeprefix(_PEFT_PREFIX)
        shapes = self.shapes()
        if shapes is None or not name:
            return name
        if name.startswith("lm_head") and not any(each.startswith("lm_head.") for each in shapes):
            embedding = next((each for each in shapes if each.endswith(("embed_tokens.weight", "wte.weight"))), None)
            if embedding is not None:
                return name.replace("lm_head", embedding.rpartition(".")[0], 1)
        return name

    def has_part(self, name: str) -> bool | None:
        """Return whether it has parameters below a name; None: unknown."""
        shapes = self.shapes()
        if shapes is None:
            return None
        full = self.full_name(name)
        return any(each == full or each.startswith(f"{full}.") for each in shapes)

    def body(self) -> "Part":
        """Return the model without its head."""
        shapes = self.shapes()
        first = next(iter(shapes), "") if shapes else ""
        prefix = first.partition(".")[0]
        return Part(self, (prefix if prefix in _BODY_NAMES else "",))

    def attribute(self, name: str) -> Any:
        """Return a part, the config, a method, or the model itself behind a wrapper."""
        if name == "config":
            return self.config if self.config is not None else UNKNOWN
        if name in _TRANSPARENT:
            return self
        if name == "base_model":
            return self if self.has_adapters else self.body()
        if self.has_adapters and name == "model" and self.has_part("model.model") is False:
            return Part(self, ("model",), itself=True)
        return Part(self, ("",)).attribute(name)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to an attribute; modules replace a part."""
        if name == "config" and isinstance(value, ModelConfig):
            self.config = value
            self.forget_shapes()
        else:
            Part(self, ("",)).set_attribute(name, value, call)

    def method(self, call: Call) -> Any:
        """Return the result of one of the model's methods."""
        return Part(self, ("",)).method(call)

    def called(self, call: Call) -> Any:
        """Note a forward pass, and whether it may compute the loss."""
        self.passes[call.where] = call.unknown_table is not None or "labels" in call.kwargs
        return UNKNOWN

    def bound(self, name: str) -> None:
        """Note a variable that refers to it."""
        self.names.add(name)

    def is_instance(self, kind: Any) -> bool | None:
        """Return whether it is of a class."""
        if isinstance(kind, External) and kind.name in ("PeftModel", "PeftModelForCausalLM"):
            return self.has_adapters
        return None

    def put(self, name: str, value: Any, where: str, text: str) -> None:
        """Set what is known of it; the last value counts."""
        self.settings[name] = Setting(value=value, origin=f"{where}: {text}")
        self.unresolved.pop(name, None)

    def size_of(self, prefixes: tuple[str, ...], *, absolute: bool = False) -> float:
        """Return the parameters below prefixes: their share of the model, or their number; 0 if it is unknown."""
        shapes = self.shapes()
        if not shapes:
            return 0
        total = sum(map(elements, shapes.values()))
        starts = tuple(f"{self.full_name(prefix)}." for prefix in prefixes if prefix)
        inside = sum(elements(shape) for name, shape in shapes.items() if not starts or name.startswith(starts))
        return inside if absolute else inside / total

    def uncertain_type(self, call: Call, what: str) -> None:
        """Note a conversion of weights that is not understood."""
        sentence = f"{call.where}: {short_text(call.node)}: {what}."
        self.notes.doubt(sentence, *MODEL_STATES, "activations", key="training.precision")

    def list_parameters(self, prefixes: tuple[str, ...] = ("",)) -> Any:
        """Return the parameters below prefixes, with adapters and their prefix where the model has them."""
        found = super().list_parameters(prefixes)
        if found is None or not self.has_adapters or prefixes != ("",):
            return found
        linear = next((name for name, _ in found if name.endswith("_proj.weight")), "layer.weight").rpartition(".")[0]
        adapters = [(f"{_PEFT_PREFIX}{linear}.{name}", Adapter(self)) for name in _ADAPTER_NAMES]
        return [*((_PEFT_PREFIX + name, each) for name, each in found), *adapters]

    def copy(self, where: str) -> "Model":
        """Return another model with the same weights."""
        other = Model(self.notes, where, self.label)
        other.name, other.task, other.config, other.hints = self.name, self.task, self.config, dict(self.hints)
        other.settings = {name: setting for name, setting in self.settings.items() if name != "torch_compile"}
        other.on_gpu, other.copy_of, other.has_adapters = self.on_gpu, self, self.has_adapters
        other.requires = dict(self.requires) if self.requires is not None else None
        other.rules = list(self.rules)
        return other


class Adapter(Thing):
    """The parameters of a model's LoRA adapters."""

    def __init__(self, owner: Model) -> None:
        self.owner = owner

    def attribute(self, name: str) -> Any:
        """Return whether they train, or a method."""
        return self.owner.adapters_train if name == "requires_grad" else Attribute(self, name)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to ``requires_grad``."""
        if name == "requires_grad":
            self.owner.adapters_train = bool(value) if isinstance(value, bool) else True

    def is_instance(self, kind: Any) -> bool | None:
        """Return whether its modules are of a class: peft's are ``LoraLayer``."""
        return kind.name.startswith("Lora") if isinstance(kind, External) else None

    def method(self, call: Call) -> Any:
        """Take ``requires_grad_``, and conversions."""
        from .module_methods import given_dtype

        if (word := given_dtype(call)) is not None:
            self.owner.put("lora_adapter_dtype", word, call.where, f"{short_text(call.node)} of the adapters")
        if call.name == "requires_grad_":
            self.set_attribute("requires_grad", call.value(0, default=True), call)
        return self if call.name not in ("numel", "size", "dim") else UNKNOWN


class Part(Thing):
    """Modules of a model, by the prefixes of their parameters' names; the empty prefix is the whole model.

    Args:
        owner: the model.
        prefixes: several for a slice of layers.
        itself: it may be the model that peft wraps, and not a part of it.
        unknown: it is not known which modules these are.
    """

    def __init__(
        self, owner: ParameterOwner, prefixes: tuple[str, ...], *, itself: bool = False, unknown: bool = False
    ) -> None:
        self.owner, self.prefixes, self.itself, self.unknown = owner, prefixes, itself, unknown

    def attribute(self, name: str) -> Any:
        """Return a module inside, or a method."""
        from .module_methods import MODULE_METHODS

        if name in MODULE_METHODS or len(self.prefixes) != 1 or self.unknown:
            return Attribute(self, name)
        if name == "config" and isinstance(self.owner, Model):
            return self.owner.attribute(name)
        if name in ("device", "dtype", "training", "name_or_path", "is_quantized", "hf_device_map"):
            return UNKNOWN
        prefix = self.prefixes[0]
        if self.itself and isinstance(self.owner, Model) and not self.owner.has_part(f"{prefix}.{name}"):
            prefix = "" if self.owner.has_part(name) else prefix
        full = f"{prefix}.{name}" if prefix else name
        replaced = self.owner.replaced.get(full) if isinstance(self.owner, Model) else None
        if replaced is not None:
            return replaced
        if name in ("weight", "bias"):
            return Parameter(self.owner, self.owner.full_name(full))
        return Part(self.owner, (full,))

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment: a module replaces a part of the model."""
        from .layers import replace_part

        prefix = next(iter(self.prefixes), "")
        if isinstance(value, Thing) and isinstance(self.owner, Model) and not isinstance(value, ModelConfig):
            replace_part(self.owner, f"{prefix}.{name}" if prefix else name, value, call)

    def method(self, call: Call) -> Any:
        """Return the result of one of the module's methods."""
        from .module_methods import MODULE_METHODS

        method = MODULE_METHODS.get(call.name)
        if method is not None:
            return method(self, call)
        return self.owner if call.name.startswith(("enable_", "disable_")) else UNKNOWN

    def called(self, call: Call) -> Any:
        """Return the result of a forward pass, or of a method of the model's own class, by which it may change."""
        name = next(iter(self.prefixes), "").rpartition(".")[2]
        if not isinstance(self.owner, Model) or not _CHANGES.search(name) or self.owner.has_part(self.prefixes[0]):
            return UNKNOWN
        sentence = f"{call.where}: {name}(...) may add, freeze or change modules of the model, and is not followed."
        self.owner.notes.doubt(sentence, *MODEL_STATES, "activations")
        return self.owner

    def children(self) -> "list[tuple[str, Part]] | None":
        """Return the modules directly inside with their names; None: unknown."""
        shapes = self.owner.shapes()
        if shapes is None or self.unknown:
            return None
        if len(self.prefixes) != 1:
            return [(prefix.rpartition(".")[2], Part(self.owner, (prefix,))) for prefix in self.prefixes]
        start = f"{self.owner.full_name(self.prefixes[0])}." if self.prefixes[0] else ""
        inside = (name[len(start) :] for name in shapes if name.startswith(start))
        names = dict.fromkeys(name.partition(".")[0] for name in inside if "." in name)
        ordered = sorted(names, key=int) if names and all(name.isdigit() for name in names) else list(names)
        return [(name, Part(self.owner, (start + name,))) for name in ordered]

    def elements(self) -> list[Any] | None:
        """Return the modules of a list of layers."""
        children = self.children()
        return None if children is None else [part for _, part in children]

    def item(self, key: Any) -> Any:
        """Return a layer, or several."""
        items = self.elements()
        if items is not None and isinstance(key, int | slice):
            try:
                found = items[key]
            except (IndexError, ValueError):
                return UNKNOWN
            if isinstance(found, list):
                return Part(self.owner, tuple(prefix for part in found for prefix in part.prefixes))
            return found
        prefix = next(iter(self.prefixes), "")
        if items is None and isinstance(key, int) and key >= 0 and not self.unknown:
            return Part(self.owner, (f"{prefix}.{key}",))
        if items is None and isinstance(key, slice) and (key.stop or -1) > 0 and (key.start or 0) >= 0:
            return Part(self.owner, tuple(f"{prefix}.{number}" for number in range(256)[key]))
        return Part(self.owner, self.prefixes, unknown=True)

    def is_instance(self, kind: Any) -> bool | None:
        """Return whether it is of one of torch's classes, as far as its parameters tell."""
        shapes = self.owner.shapes()
        if shapes is None or not isinstance(kind, External) or len(self.prefixes) != 1:
            return None
        own = shapes.get(f"{self.owner.full_name(self.prefixes[0])}.weight")
        is_norm = "norm" in self.prefixes[0].lower() or ".ln_" in f".{self.prefixes[0]}"
        if kind.name in ("LayerNorm", "RMSNorm") or kind.name.endswith("RMSNorm"):
            return own is not None and len(own) == 1 and is_norm
        is_embedding = "emb" in self.prefixes[0].lower() or self.prefixes[0].endswith(("wte", "wpe"))
        if kind.name == "Embedding":
            return own is not None and len(own) == 2 and is_embedding
        if kind.name in _LINEAR_CLASSES:
            return own is not None and len(own) == 2 and not is_embedding
        if re.fullmatch(r"[A-Z]\w*(DecoderLayer|EncoderLayer|Block)", kind.name):
            return re.fullmatch(r"(?:.*\.)?\d+", self.prefixes[0]) is not None
        return False if kind.name == "LoraLayer" else None


def models_in(value: Any, depth: int = 0) -> Iterator[ParameterOwner]:
    """Yield the models and layers that a value holds."""
    if isinstance(value, ParameterOwner):
        yield value
    elif isinstance(value, Part):
        yield value.owner
    elif isinstance(value, ParameterList):
        yield from (owner for owner, _, _ in value.groups)
    elif depth < 5 and isinstance(value, list | tuple):
        for item in value[:2000]:
            yield from models_in(item, depth + 1)
    elif depth < 5 and isinstance(value, dict):
        for item in list(value.values())[:2000]:
            yield from models_in(item, depth + 1)
    elif depth < 5 and isinstance(value, Instance | Thing):
        for item in value.parts():
            yield from models_in(item, depth + 1)
