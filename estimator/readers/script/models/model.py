"""Models of a script and their parts: which weights they hold, what was changed, frozen and wrapped."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from ....common.errors import VramtopError
from ....job.settings import Task
from ....model.read_architecture import count_parameters, read_architecture, usual_task
from ...source.evidence import MODEL_STATES, Setting
from ..python.values import UNKNOWN, Attribute, Call, External, Instance, Thing, as_number, plain, short_text, truth
from .configs import ModelConfig, Notes

if TYPE_CHECKING:
    from .configs import OwnAttention

# Parameters of a model and whether they train, under the names of ``named_parameters``.


MAX_NAMES = 20_000
Shape = tuple[int, ...]


class Tensor(Thing):
    """A tensor that the script makes, of a known shape: ``torch.ones(768)``."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def attribute(self, name: str) -> Any:
        """Return its shape, or a method."""
        return self.shape if name == "shape" else Attribute(self, name)


def make_tensor(call: Call) -> Any:
    """Follow ``torch.zeros(2, 3)`` and ``torch.full((2, 3), 1.0)``."""
    first = call.value(0, "size")
    sizes = list(first) if isinstance(first, list | tuple) else call.args
    sizes = [first] if call.name == "full" and not isinstance(first, list | tuple) else sizes
    known = all(isinstance(size, int) and 0 < size < 2**31 for size in sizes)
    return Tensor(tuple(sizes)) if sizes and known else UNKNOWN


class ParameterOwner(Thing):
    """A model or layer: its parameters by name, and which of them train."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.requires: dict[str, bool] | None = None
        """Whether each parameter trains; None: nothing was frozen, or the names are unknown."""
        self.rules: list[tuple[str, bool]] = []
        """What was frozen (False) or trained in order, as patterns, where the names are unknown."""
        self.cloned: dict[str, set[str | None]] = {}
        """Names of the parameters that are copied, by script and line."""
        self.dtype: str | None = None
        """The dtype that layers of the script's own were converted to."""
        self.uncertain: list[str] = []
        """Sentences on freezing that was not understood."""
        self._shapes: Mapping[str, Shape] | None = None
        self._knows_shapes = False

    def shapes(self) -> Mapping[str, Shape] | None:
        """Return the shape of every parameter by name; None: unknown."""
        if not self._knows_shapes:
            self._knows_shapes = True
            self._shapes = self.find_shapes()
        return self._shapes

    def forget_shapes(self) -> None:
        """Find the names anew: the model has changed."""
        self._knows_shapes = False

    def find_shapes(self) -> Mapping[str, Shape] | None:
        """Find the shape of every parameter by name; None: unknown."""
        return None

    def full_name(self, name: str) -> str:
        """Return the name of a parameter that has another one as well."""
        return name

    def train(self, names: Iterable[str] | None, value: Any, call: Call) -> None:
        """Take ``requires_grad`` of parameters or of modules (by their prefixes); None: of all."""
        known = truth(value)
        if known is None:
            self.uncertain.append(f"{call.where}: the trained parameters are only known when the script runs.")
            return
        shapes = self.shapes()
        if shapes is None:
            self.rules += [("*", known)] if names is None else [(name, known) for name in names]
            return
        if self.requires is None:
            self.requires = dict.fromkeys(shapes, True)
        if names is None:
            self.requires = dict.fromkeys(self.requires, known)
            return
        for wanted in names:
            full = self.full_name(wanted)
            if full in self.requires:
                self.requires[full] = known
                continue
            inside = [name for name in self.requires if name.startswith(f"{full}.")]
            if not inside:
                self.rules.append((full, known))
            for name in inside:
                self.requires[name] = known

    def trains(self, name: str) -> Any:
        """Return whether a parameter trains."""
        if self.requires is not None:
            return self.requires.get(name, UNKNOWN)
        return UNKNOWN if self.rules or self.uncertain else True

    def list_parameters(self, prefixes: tuple[str, ...] = ("",)) -> "list[tuple[str, Parameter]] | None":
        """Return the parameters below prefixes with their names relative to these; None: unknown."""
        shapes = self.shapes()
        if shapes is None:
            return None
        found = []
        for prefix in prefixes:
            full = self.full_name(prefix)
            start = f"{full}." if full else ""
            found += [(name[len(start) :], Parameter(self, name)) for name in shapes if name.startswith(start)]
        return found


class Parameter(Thing):
    """One parameter of a model; with a prefix in place of a name, all parameters below it.

    Args:
        owner: the model or layer.
        name: its name; None: any of the model's parameters.
        many: the name is a prefix.
    """

    def __init__(self, owner: ParameterOwner, name: str | None, *, many: bool = False) -> None:
        self.owner, self.name, self.many = owner, name, many

    @property
    def identity(self) -> int:
        """What ``id`` returns for it."""
        return hash((id(self.owner), self.name))

    @property
    def shape(self) -> Shape | None:
        """Its shape; None: unknown."""
        shapes = self.owner.shapes()
        return shapes.get(self.name) if shapes is not None and self.name is not None else None

    def attribute(self, name: str) -> Any:
        """Return an attribute or method."""
        if name == "requires_grad":
            return self.owner.trains(self.name) if self.name is not None else UNKNOWN
        if name == "grad":
            return UNKNOWN
        if name in ("data", "module"):
            return self
        if name in ("ndim", "shape") and self.shape is not None:
            return len(self.shape) if name == "ndim" else self.shape
        return Attribute(self, name)

    def item(self, key: Any) -> Any:
        """Return some of its rows."""
        if self.shape is None or not isinstance(key, slice):
            return UNKNOWN
        return Tensor((len(range(self.shape[0])[key]), *self.shape[1:]))

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to ``requires_grad``."""
        if name == "requires_grad":
            self.owner.train(None if self.name is None else [self.name], value, call)

    def method(self, call: Call) -> Any:
        """Return the result of a tensor's method."""
        shape = self.shape
        if call.name == "requires_grad_":
            self.set_attribute("requires_grad", call.value(0, "requires_grad", default=True), call)
        elif call.name in ("numel", "nelement"):
            return UNKNOWN if shape is None else elements(shape)
        elif call.name == "dim":
            return UNKNOWN if shape is None else len(shape)
        elif call.name == "size":
            axis = call.value(0)
            return UNKNOWN if shape is None else shape[axis] if isinstance(axis, int) and axis < len(shape) else shape
        elif call.name in ("is_floating_point", "is_leaf"):
            return True
        elif call.name == "register_post_accumulate_grad_hook":
            call.run.library.step_in_backward(call)
        elif call.name == "clone":
            self.owner.cloned.setdefault(call.where, set()).add(self.name)
        return UNKNOWN if call.name == "cpu" else self

    def is_instance(self, kind: Any) -> bool | None:
        """Return whether it is of a class."""
        return True if isinstance(kind, External) and kind.name in ("Parameter", "Tensor") else None


class ParameterList(Thing):
    """``model.parameters()`` or ``model.named_parameters()``, expanded only where the script looks into it.

    Args:
        groups: owners with the prefixes below which parameters count, and what stands before their names.
        named: it yields names as well.
    """

    truth_is_length = True

    def __init__(self, groups: list[tuple[ParameterOwner, tuple[str, ...], str]], *, named: bool) -> None:
        self.groups, self.named = groups, named

    def elements(self) -> list[Any]:
        """Return the parameters; of a model whose names are unknown, one that stands for all."""
        found: list[Any] = []
        for owner, prefixes, before in self.groups:
            listed = owner.list_parameters(prefixes)
            if listed is None:
                whole = prefixes == ("",)
                listed = [("", Parameter(owner, None if whole else prefix, many=not whole)) for prefix in prefixes]
                found += [(UNKNOWN, each) if self.named else each for _, each in listed]
            else:
                found += [((before + name).rstrip("."), each) if self.named else each for name, each in listed]
        return found

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)


def elements(shape: Shape) -> int:
    """Return the number of elements of a shape."""
    return prod(shape)


def shapes_of(config: Mapping[str, Any], task: Task) -> dict[str, Shape] | None:
    """Return the parameters of transformers' model for a config by name; None for a family that is not known."""
    try:
        inventory = count_parameters(read_architecture(config, task))
    except (VramtopError, ArithmeticError, TypeError, ValueError):
        return None
    if inventory.count != "exact":
        return None
    found: dict[str, Shape] = {}
    for group in inventory.groups:
        if group.name.count("*") > 2 or len(found) + group.repeat > MAX_NAMES:
            return None
        inner = _inner_numbers(group.name)
        for number in _layer_numbers(group.name, group.repeat // len(inner), inventory.layers):
            outer = group.name.replace("*", str(number), 1)
            found.update({outer.replace("*", str(each)): group.shape for each in inner})
    return found


def _layer_numbers(name: str, repeat: int, layers: int) -> Iterator[int | str]:
    """Yield the numbers of the layers that have a parameter: the first layers of a mixture of experts may be dense."""
    if "*" not in name:
        yield "*"
    elif repeat < layers and re.search(r"experts|router|\.gate\.", name):
        yield from range(layers - repeat, layers)
    else:
        yield from range(repeat)


def _inner_numbers(name: str) -> tuple[int, ...]:
    """Return the numbers of T5's layers in a block that have a parameter."""
    if name.count("*") < 2:
        return (0,)
    decoder = name.startswith("decoder")
    layers = {"SelfAttention": (0,), "EncDecAttention": (1,), "DenseReluDense": (2,) if decoder else (1,)}
    return next((found for part, found in layers.items() if f".{part}." in name), (0, 1, 2) if decoder else (0, 1))


_BODY_NAMES = ("model", "transformer", "bert", "roberta", "distilbert", "gpt_neox", "encoder", "base_model")
_LANGUAGE_NAMES = ("base_model", "language_model", "llm", "text_model", "decoder")
"""Parts that hold the layers in which most activations lie."""
_LINEAR_CLASSES = ("Linear", "Linear4bit", "Linear8bitLt", "Conv1D")
_TRANSPARENT = ("module", "_orig_mod", "_fsdp_wrapped_module", "pretrained_model")
"""Attributes under which wrappers keep the model itself."""
_CHANGES = re.compile(
    r"(?i)wrap|lora|peft|adapter|quant|freez|prun|convert|inject|replace|attach|checkpointing"
    r"|(init|build|create|add|load|set)\w*_(vision|audio|speech|tower|module|encoder|projector|head|layer|token)"
)
"""Methods of a model's own class, which no library has, that change what it holds or trains."""
_HARMLESS_ATTRIBUTES = re.compile(
    r"(?i)^\.?_|\.(_\w+|p|rate)$|dropout|parallel|name|path|token|label|warn|metric|class_|state_dict|generat|device|version|_id$|info|card|logg|seed"
    r"|config|train|step|epoch|weight|bias|data|save|print|hook|tag|language|template|prompt|use_cache|seq"
)
"""Attributes of a model that scripts set without changing the memory of a step."""
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
        self.is_read = False
        """It is loaded with arguments that are all known."""
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
        self.together: list[tuple[str, bool]] = []
        """Forward passes before one backward pass, and whether each lies in a loop of its own."""
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
        if not call.run.without_gradients:
            self.notes.passes.append((self, call.where, call.run.loops))
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

        if not isinstance(self.owner, Model) or isinstance(value, ModelConfig):
            return
        prefix = next(iter(self.prefixes), "")
        if name.endswith("gradient_checkpointing") and isinstance(value, bool):  # transformers until 4.35
            _checkpoint(on=value)(self, call)
        elif isinstance(value, Thing):
            replace_part(self.owner, f"{prefix}.{name}" if prefix else name, value, call)
        elif name != "requires_grad" and not _HARMLESS_ATTRIBUTES.search(f"{prefix}.{name}"):
            sentence = f"{call.where}: {short_text(call.node)} = {plain(value)} is not followed, but may change a step."
            self.owner.notes.assume(sentence, *MODEL_STATES, "activations", "logits")

    def method(self, call: Call) -> Any:
        """Return the result of one of the module's methods."""
        method = MODULE_METHODS.get(call.name)
        if method is not None:
            return method(self, call)
        return self.owner if call.name.startswith(("enable_", "disable_")) else UNKNOWN

    def called(self, call: Call) -> Any:
        """Return the result of a forward pass, or of a method of the model's own class, by which it may change."""
        name = next(iter(self.prefixes), "").rpartition(".")[2]
        if not isinstance(self.owner, Model) or not _CHANGES.search(name) or self.owner.has_part(self.prefixes[0]):
            return UNKNOWN
        sentence = (
            f"{call.where}: {name}(...) may add, freeze or change modules of the model; vramtop does not follow it."
        )
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


# Methods of models and their modules that move, convert, freeze, resize or rebuild them.


_DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("float16", "half", "fp16"), "float16"),
    **dict.fromkeys(("float32", "float", "fp32"), "float32"),
}
_CONVERTERS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32"}
_WITHOUT_EFFECT = (
    *("state_dict", "load_state_dict", "save_pretrained", "push_to_hub", "generate", "forward", "zero_grad"),
    *("print_trainable_parameters", "num_parameters", "tie_weights", "init_weights", "post_init", "buffers"),
    *("enable_input_require_grads", "set_adapter", "backward", "step", "get_memory_footprint", "no_sync"),
    *("named_buffers", "get_nb_trainable_parameters", "register_forward_hook"),
)
_SMALL_PART = 0.01
"""Share of a model's parameters below which a new head needs no mention."""


def _is_whole(part: Part) -> bool:
    return part.prefixes == ("",) and not part.unknown


def _shown(call: Call) -> str:
    return short_text(call.node)


def convert(part: Part, dtype: Any, call: Call) -> None:
    """Convert a model's weights to a dtype."""
    owner = part.owner
    if not isinstance(owner, Model):
        owner.dtype = _DTYPES.get(str(plain(dtype)).rpartition(".")[2], owner.dtype)
    if not isinstance(owner, Model) or dtype is None:
        return
    word = _DTYPES.get(str(plain(dtype)).rpartition(".")[2])
    if word is not None and _is_whole(part):
        owner.put("dtype", word, call.where, f".{call.name}({_arguments(call)})")
    elif word is not None and owner.size_of(part.prefixes) < _SMALL_PART:
        return
    elif isinstance(dtype, str) and word is None:
        owner.uncertain_type(call, f"vramtop does not know weights in {dtype!r}")
    elif not _is_whole(part):
        owner.uncertain_type(call, "only part of the model is converted; the estimate counts one dtype")
    else:
        owner.settings.pop("dtype", None)
        owner.settings.pop("torch_dtype", None)
        owner.unresolved["dtype"] = (
            f"{call.where}: .{call.name}({_arguments(call)}) is only known when the script runs."
        )


def given_dtype(call: Call) -> str | None:
    """Return the type to which a method converts; None if it converts to none that is known."""
    if call.name in _CONVERTERS:
        return _CONVERTERS[call.name]
    given = [*call.args, *call.kwargs.values()] if call.name in ("to", "type") else []
    return next((word for each in given if (word := _DTYPES.get(str(plain(each)).rpartition(".")[2]))), None)


def _arguments(call: Call) -> str:
    return ", ".join(
        f"{key}={short_text(node)}" if isinstance(key, str) else short_text(node) for key, node in call.nodes.items()
    )


def _to(part: Part, call: Call) -> Any:
    """Follow ``model.to(device, dtype)``."""
    for at, value in enumerate([*call.args, *(call.kwargs.get(name) for name in ("device", "dtype"))]):
        if value is None:
            continue
        is_dtype = at == len(call.args) + 1 or (isinstance(value, External) and value.owner == "torch")
        shown = short_text(call.nodes.get(at))
        is_dtype = is_dtype or (value is UNKNOWN and re.search(r"(?i)dtype|float|half|precision", shown) is not None)
        if is_dtype:
            convert(part, value, call)
        elif isinstance(part.owner, Model) and _is_whole(part):
            part.owner.on_gpu = not (isinstance(value, str) and value.startswith(("cpu", "meta")))
            call.run.library.notes.note_device(value, call.where)
    return _itself(part)


def _itself(part: Part) -> Any:
    return part.owner if _is_whole(part) else part


def _converter(word: str) -> Callable[[Part, Call], Any]:
    def apply(part: Part, call: Call) -> Any:
        convert(part, word, call)
        return _itself(part)

    return apply


def _type(part: Part, call: Call) -> Any:
    convert(part, call.value(0, "dst_type"), call)
    return _itself(part)


def _move(on_gpu: bool) -> Callable[[Part, Call], Any]:
    def apply(part: Part, call: Call) -> Any:
        if isinstance(part.owner, Model) and _is_whole(part):
            part.owner.on_gpu = on_gpu
            if on_gpu:
                call.run.library.notes.note_device(call.value(0, "device", default="cuda"), call.where)
        return _itself(part)

    return apply


def _require(part: Part, value: Any, call: Call) -> Any:
    """Freeze or train the parameters of modules."""
    if part.unknown or (
        isinstance(part.owner, Model) and any(p and part.owner.has_part(p) is False for p in part.prefixes)
    ):
        part.owner.uncertain.append(f"{call.where}: {_shown(call)} may freeze or train parameters but is not counted.")
        return part
    part.owner.train(None if _is_whole(part) else part.prefixes, value, call)
    if _is_whole(part) and isinstance(part.owner, Model) and isinstance(value, bool):
        part.owner.adapters_train = value
    return _itself(part)


def _requires_grad(part: Part, call: Call) -> Any:
    return _require(part, call.value(0, "requires_grad", default=True), call)


def _freeze_body(part: Part, call: Call) -> Any:
    if isinstance(part.owner, Model):
        _require(part.owner.body(), value=False, call=call)
    return part


def _freeze_named(part: Part, call: Call) -> Any:
    """Follow ``freeze_feature_encoder()`` and the like, which freeze a module that the library chooses."""
    owner, name = part.owner, call.name.removeprefix("freeze_")
    if isinstance(owner, Model):
        word = "feature_extractor" if name.startswith("feature") else name
        shapes = owner.shapes() or {}
        found = sorted({_up_to(each, word) for each in shapes if f".{word}." in f".{each}"})
        if found:
            owner.train(found[:1], value=False, call=call)
        else:
            sentence = f"{call.where}: {_shown(call)} freezes parameters of the model but is not counted."
            owner.uncertain.append(sentence)
    return None


def _up_to(name: str, word: str) -> str:
    parts = name.split(".")
    return ".".join(parts[: parts.index(word) + 1])


def _parameters(part: Part, call: Call) -> Any:
    return ParameterList([(part.owner, part.prefixes, "")], named=call.name.startswith("named"))


def _modules(part: Part, call: Call) -> Any:
    if part.owner.shapes() is None:
        return UNKNOWN
    found: list[tuple[str, Any]] = [("", part), *_below(part, 0)]
    if isinstance(part.owner, Model) and part.owner.has_adapters and _is_whole(part):
        found.append(("lora", Adapter(part.owner)))
    return found if call.name == "named_modules" else [each for _, each in found]


def _below(part: Part, depth: int) -> list[tuple[str, Part]]:
    found: list[tuple[str, Part]] = []
    for _, child in part.children() or [] if depth < 8 else ():
        found.append((child.prefixes[0], child))
        found += _below(child, depth + 1)
    return found


def _children(part: Part, call: Call) -> Any:
    found = part.children()
    if found is None:
        return UNKNOWN
    return found if call.name == "named_children" else [each for _, each in found]


def _apply(part: Part, call: Call) -> Any:
    modules: list[Any] = [each for _, each in _below(part, 0)] if part.owner.shapes() is not None else [UNKNOWN]
    for each in (*modules, part):
        call.run.call(call.value(0), Call(call.run, call.node, "", None, [each]))
    return _itself(part)


def _checkpoint(on: bool) -> Callable[[Part, Call], Any]:
    def apply(part: Part, call: Call) -> Any:
        owner, last = part.owner, next(iter(part.prefixes), "").rpartition(".")[2]
        if isinstance(owner, Model) and last in ("", *_BODY_NAMES[:-2], *_LANGUAGE_NAMES):
            owner.put("activation_checkpointing", on, call.where, short_text(call.node))
        elif isinstance(owner, Model) and on:
            sentence = f"{call.where}: {short_text(call.node)}: checkpointing of part of the model is not counted."
            owner.notes.doubt(sentence, "activations", direction="less")
        return None

    return apply


def _resize(part: Part, call: Call) -> Any:
    """Follow ``resize_token_embeddings(n)``; the few tokens that scripts add to a tokenizer change nothing."""
    owner, number = part.owner, as_number(call.value(0, "new_num_tokens"))
    if not isinstance(owner, Model) or number is None:
        return UNKNOWN
    multiple = call.value(1, "pad_to_multiple_of")
    if isinstance(number, int) and number > 0:
        if isinstance(multiple, int) and multiple > 0:
            number = -(-number // multiple) * multiple
        if owner.config is not None:
            owner.config.set_field("vocab_size", number, call.where, f"resize_token_embeddings({number})")
            owner.forget_shapes()
    elif owner.notes.added_tokens is None or owner.notes.added_tokens > 1000 or _tokenizer_of_another(owner):
        owner.notes.doubt(
            f"{call.where}: resize_token_embeddings({_arguments(call)}) is only known when the script runs; the "
            "model's original vocabulary is counted.",
            *MODEL_STATES,
            "logits",
            direction="more",
        )
    return part


def _tokenizer_of_another(owner: Model) -> bool:
    """Return True if the tokenizer is not the model's own, so that its vocabulary may be another."""
    tokenizer, name = owner.notes.names_found.get(2), owner.name
    return tokenizer is not None and name is not None and tokenizer.value != name.value


def _embeddings(part: Part, call: Call) -> Any:
    """Return the module of the token embedding or of the output head."""
    shapes = part.owner.shapes()
    if shapes is None:
        return Part(part.owner, ("embed_tokens" if "input" in call.name else "lm_head",))
    if "output" in call.name:
        return Part(part.owner, ("lm_head",))
    endings = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "shared.weight")
    found = next((name for name in shapes if name.endswith(endings)), None)
    return Part(part.owner, (found.rpartition(".")[0],)) if found else Part(part.owner, ("",), unknown=True)


def _stack(part: Part, call: Call) -> Any:
    name = call.name.removeprefix("get_")
    owner = part.owner
    if isinstance(owner, Model) and owner.has_part(name) is False:
        return owner.body()
    shared = isinstance(owner, Model) and owner.has_part("shared")
    return Part(owner, (name, "shared") if shared else (name,))


def _submodule(part: Part, call: Call) -> Any:
    name = call.value(0, "target")
    if not isinstance(name, str):
        return Part(part.owner, part.prefixes, unknown=True)
    full = f"{part.prefixes[0]}.{name}" if part.prefixes[0] else name
    return (
        Parameter(part.owner, part.owner.full_name(full)) if call.name == "get_parameter" else Part(part.owner, (full,))
    )


def _add_adapter(part: Part, call: Call) -> Any:
    from .adapters import add_adapters

    if isinstance(part.owner, Model):
        add_adapters(part.owner, call.value(0, "adapter_config", "peft_config"), call)
    return None


def _load_adapter(part: Part, call: Call) -> Any:
    from .adapters import load_adapters

    if isinstance(part.owner, Model):
        load_adapters(part.owner, call, trains=call.value(None, "is_trainable", default=False))
    return None


def _merge(part: Part, call: Call) -> Any:
    if isinstance(part.owner, Model) and not part.owner.notes.living:  # after the training nothing changes it
        part.owner.has_adapters = False
        part.owner.settings = {
            name: setting
            for name, setting in part.owner.settings.items()
            if not name.startswith("lora_") and name != "use_peft"
        }
    return part.owner


def _compile(part: Part, call: Call) -> Any:
    if isinstance(part.owner, Model) and _is_whole(part):
        part.owner.put("torch_compile", True, call.where, "compile()")
    return None


def _set_embeddings(part: Part, call: Call) -> Any:
    value = call.value(0)
    if isinstance(part.owner, Model) and isinstance(value, Thing):
        from .layers import replace_part

        replace_part(part.owner, "lm_head" if "output" in call.name else "embed_tokens", value, call)
    return None


def _add_module(part: Part, call: Call) -> Any:
    name = call.value(0)
    if isinstance(name, str):
        part.set_attribute(name, call.value(1), call)
    return None


def _share(part: Part, call: Call) -> Any:
    return _itself(part)


def _fit(part: Part, call: Call) -> Any:
    """Follow ``fit(objectives, use_amp=True)``, which trains a model of sentence-transformers."""
    if isinstance(part.owner, Model):
        notes = part.owner.notes
        notes.parameters_given.append(part.owner)
        if plain(call.value(None, "use_amp", default=False)) is True:
            setting = Setting(value="fp16", origin=f"{call.where}: fit(use_amp=True)")
            notes.own_loop.setdefault("mixed_precision", setting)
    return None


def _hook(part: Part, call: Call) -> Any:
    """Note a communication hook of DDP's, which may copy its buckets."""
    if isinstance(part.owner, Model):
        part.owner.put("ddp_comm_hook", "hook", call.where, f".{call.name}({_arguments(call)})")
    return UNKNOWN


MODULE_METHODS: Mapping[str, Callable[[Part, Call], Any]] = {
    **dict.fromkeys(("parameters", "named_parameters"), _parameters),
    **dict.fromkeys(("modules", "named_modules"), _modules),
    **dict.fromkeys(("children", "named_children"), _children),
    "to": _to,
    "type": _type,
    "cuda": _move(on_gpu=True),
    "cpu": _move(on_gpu=False),
    **{name: _converter(word) for name, word in _CONVERTERS.items()},
    "requires_grad_": _requires_grad,
    **dict.fromkeys(("freeze", "freeze_parameters"), lambda part, call: _require(part, value=False, call=call)),
    **dict.fromkeys(("unfreeze", "unfreeze_parameters"), lambda part, call: _require(part, value=True, call=call)),
    **dict.fromkeys(("freeze_base_model", "freeze_backbone"), _freeze_body),
    **dict.fromkeys(("freeze_feature_encoder", "freeze_feature_extractor", "freeze_encoder"), _freeze_named),
    **dict.fromkeys(
        ("gradient_checkpointing_enable", "enable_gradient_checkpointing", "_set_gradient_checkpointing"),
        _checkpoint(on=True),
    ),
    **dict.fromkeys(("gradient_checkpointing_disable", "disable_gradient_checkpointing"), _checkpoint(on=False)),
    "resize_token_embeddings": _resize,
    **dict.fromkeys(("get_input_embeddings", "get_output_embeddings"), _embeddings),
    **dict.fromkeys(("set_input_embeddings", "set_output_embeddings"), _set_embeddings),
    **dict.fromkeys(("get_encoder", "get_decoder"), _stack),
    **dict.fromkeys(("get_submodule", "get_parameter"), _submodule),
    "add_adapter": _add_adapter,
    "load_adapter": _load_adapter,
    "apply": _apply,
    "compile": _compile,
    "fit": _fit,
    "register_comm_hook": _hook,
    **dict.fromkeys(("add_module", "register_module"), _add_module),
    **dict.fromkeys(("merge_and_unload", "unload", "merge_adapter"), _merge),
    **dict.fromkeys(
        ("train", "eval", "get_base_model", "get_model", "share_memory", "unwrap", "to_bettertransformer"), _share
    ),
    **dict.fromkeys(_WITHOUT_EFFECT, lambda _, __: UNKNOWN),
}
"""Methods of modules by name."""
