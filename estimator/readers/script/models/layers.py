"""Layers of torch that a script makes itself, and the modules that hold models and layers."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...source.evidence import MODEL_STATES
from ..python.values import UNKNOWN, Attribute, Call, External, Instance, Scope, Thing, short_text
from .configs import Notes
from .model import Model, Parameter, ParameterList, ParameterOwner, Part, Shape, Tensor, elements, models_in

if TYPE_CHECKING:
    from ....job.settings import UncertaintyDirection

_MAX_DEPTH = 6
_SMALL_PART = 0.01
"""Share of a model's parameters below which a new part needs no mention."""
_ACTIVATIONS = {
    *("ReLU", "GELU", "SiLU", "Tanh", "Sigmoid", "Dropout", "Identity", "Softmax", "LeakyReLU", "Flatten", "ELU"),
    *("MaxPool1d", "MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss"),
    *("KLDivLoss", "NLLLoss", "L1Loss", "SmoothL1Loss", "CosineEmbeddingLoss", "Mish", "Upsample", "LogSoftmax"),
    *("CosineSimilarity", "BCELoss", "Unflatten", "AdaptiveAvgPool1d", "Softplus", "TripletMarginLoss"),
}
"""Modules without parameters."""


class Layer(ParameterOwner):
    """A module of torch that the script makes: ``nn.Linear(768, 3)``.

    Args:
        call: the call that makes it.
    """

    def __init__(self, call: Call) -> None:
        super().__init__(call.where)
        self.kind = call.name
        self._found = _shapes(call)

    def find_shapes(self) -> Mapping[str, Shape] | None:
        """Return the shape of every parameter by name; None: unknown."""
        return self._found

    @property
    def size(self) -> int | None:
        """The number of its parameters; None: unknown."""
        return None if self._found is None else sum(map(elements, self._found.values()))

    def attribute(self, name: str) -> Any:
        """Return a parameter or a method."""
        if name in ("weight", "bias"):
            return Parameter(self, name)
        return Part(self, ("",)).attribute(name)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take a parameter: another layer's, which is shared with it then, or a new one."""
        if self._found is None or name not in self._found:
            return
        if isinstance(value, Parameter) and value.owner is not self:
            self._found = {each: shape for each, shape in self._found.items() if each != name}
        elif isinstance(value, Layer) and value.kind == "Parameter":
            shape = (value.shapes() or {}).get("")
            self._found = None if shape is None else {**self._found, name: shape}
        self.forget_shapes()

    def method(self, call: Call) -> Any:
        """Return the result of one of its methods."""
        found = Part(self, ("",)).method(call)
        return self if isinstance(found, Part) else found

    def is_instance(self, kind: Any) -> bool | None:
        """Return whether it is of a class."""
        return self.kind == kind.name if isinstance(kind, External) else None


class Container(Thing):
    """A module of a library that holds models and layers: ``nn.Sequential(...)``, a class that is not known.

    Args:
        items: what it holds, by name.
        where: the script and line that make it.
    """

    def __init__(self, items: Mapping[str, Any], where: str) -> None:
        self.items, self.where = dict(items), where

    def parts(self) -> Iterator[Any]:
        """Yield what it holds."""
        yield from self.items.values()

    def elements(self) -> list[Any] | None:
        """Return what it holds in order."""
        return list(self.items.values())

    def attribute(self, name: str) -> Any:
        """Return what it holds by a name, or a method."""
        return self.items.get(name, Attribute(self, name))

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Hold another thing."""
        if isinstance(value, Thing):
            self.items[name] = value

    def item(self, key: Any) -> Any:
        """Return what it holds at an index or name."""
        try:
            if isinstance(key, int | slice):
                found = list(self.items.values())[key]
                return (
                    Container({str(at): each for at, each in enumerate(found)}, self.where)
                    if isinstance(found, list)
                    else found
                )
        except IndexError:
            return UNKNOWN
        return self.items.get(str(key), UNKNOWN)

    def set_item(self, key: Any, value: Any, call: Call) -> None:
        """Replace what it holds at an index or name."""
        self.items[str(key)] = value

    def method(self, call: Call) -> Any:
        """Return the result of a module's method."""
        if call.name in ("append", "add_module", "extend"):
            self.items[str(len(self.items))] = call.value(1 if call.name == "add_module" else 0)
            return self
        if call.name in ("items", "keys", "values"):
            pairs = list(self.items.items())
            return {"items": pairs, "keys": list(self.items), "values": list(self.items.values())}[call.name]
        return module_method(self, call)


def module_method(module: Any, call: Call) -> Any:
    """Return the result of a method of ``nn.Module`` on an object that holds models and layers."""
    held = list(_owners(module, "", 0))
    if call.name in ("parameters", "named_parameters"):
        return ParameterList(
            [(owner, prefixes, before) for owner, prefixes, before in held], named="named" in call.name
        )
    if call.name in ("children", "named_children", "modules", "named_modules"):
        named = _named(module)
        return named if call.name.startswith("named") else [value for _, value in named]
    if call.name in ("to", "cuda", "cpu", "half", "bfloat16", "float", "double", "requires_grad_", "type"):
        for owner, prefixes, _ in held:
            Part(owner, prefixes).method(call)
        return module
    if call.name in ("train", "eval", "compile", "apply", "freeze", "unfreeze"):
        return module
    if call.name in ("gradient_checkpointing_enable", "gradient_checkpointing_disable"):
        for owner, prefixes, _ in held:
            if isinstance(owner, Model):
                Part(owner, prefixes).method(call)
    return UNKNOWN


def parameters_of(value: Any) -> ParameterList | None:
    """Return the parameters of a module of the script; None if it holds no model or layer."""
    held = list(_owners(value, "", 0))
    return ParameterList(held, named=False) if held else None


def make_layer(call: Call) -> Any:
    """Return a module of ``torch.nn``."""
    if call.name in ("Sequential", "ModuleList", "ModuleDict"):
        first = call.value(0)
        items = first if isinstance(first, dict | list | tuple) and len(call.args) == 1 else call.args
        if isinstance(first, Part) and len(call.args) == 1:
            items = first.elements() or [first]
        named = items if isinstance(items, dict) else {str(at): item for at, item in enumerate(items)}
        return Container({str(name): item for name, item in named.items()}, call.where)
    if call.name == "DataParallel":
        return call.value(0, "module", default=UNKNOWN)
    return Layer(call)


def _owners(value: Any, before: str, depth: int) -> Iterator[tuple[ParameterOwner, tuple[str, ...], str]]:
    """Yield the models and layers inside a value with the prefixes of their parameters' names."""
    if isinstance(value, ParameterOwner):
        yield value, ("",), before
    elif isinstance(value, Part):
        yield value.owner, value.prefixes, before
    elif depth > _MAX_DEPTH:
        return
    elif isinstance(value, Instance):
        for name, item in value.values.items():
            if isinstance(item, Thing):
                yield from _owners(item, f"{before}{name}.", depth + 1)
    elif isinstance(value, Container):
        for name, item in value.items.items():
            yield from _owners(item, f"{before}{name}.", depth + 1)


def _named(module: Any) -> list[tuple[str, Any]]:
    items = module.values if isinstance(module, Instance) else module.items
    return [(name, item) for name, item in items.items() if isinstance(item, Thing)]


def _shapes(call: Call) -> dict[str, Shape] | None:
    """Return the parameters of a layer; None: unknown."""
    name, bias = call.name, call.value(None, "bias", default=True) is not False
    if name in _ACTIVATIONS:
        return {}
    if name == "Linear":
        inside, outside = call.value(0, "in_features"), call.value(1, "out_features")
        return _matrix((outside, inside), bias=bias)
    if name == "Embedding":
        return _matrix((call.value(0, "num_embeddings"), call.value(1, "embedding_dim")), bias=False)
    if name in ("LayerNorm", "RMSNorm", "BatchNorm1d", "BatchNorm2d"):
        return _matrix((call.value(0, "normalized_shape", "num_features"),), bias=name != "RMSNorm")
    if name == "Parameter":
        data = call.value(0, "data")
        return {"": data.shape} if isinstance(data, Tensor) else None
    return None


def _matrix(shape: tuple[Any, ...], *, bias: bool) -> dict[str, Shape] | None:
    if not all(isinstance(size, int) and 0 < size < 2**31 for size in shape):
        return None
    return {"weight": shape, **({"bias": shape[:1]} if bias else {})}


def reachable_models(run: Any, call: Call) -> list[Model]:
    """Return the models that the variables of all calls that are being followed refer to."""
    roots: list[Any] = [call.receiver, *call.args, *call.kwargs.values()]
    scopes: list[Scope] = []
    for scope in run.scopes:
        inner: Scope | None = scope
        while inner is not None and inner not in scopes:
            scopes.append(inner)
            inner = inner.outer
    for scope in scopes:
        for name, value in scope.names.items():
            if isinstance(value, Model):
                value.names.add(name)
            if isinstance(value, Thing | list | tuple | dict):
                roots.append(value)
    return [model for root in roots for model in models_in(root) if isinstance(model, Model)]


def replace_part(owner: Model, name: str, value: Thing, call: Call) -> None:
    """Take a module that the script puts in a model: a new head, fewer layers, a part of its own."""
    inner = value.elements() if not isinstance(value, ParameterOwner) else None
    same = [part for part in inner or [] if isinstance(part, Part) and part.owner is owner]
    if same and len(same) == len(inner or []):
        _keep_layers(owner, name, same, call)
        return
    if isinstance(value, Part) and value.owner is owner:
        return
    owner.replaced[name] = value
    before = owner.size_of((name,), absolute=True)
    found = parameters_of(value)
    counts = [_size(part) for part, _, _ in found.groups] if found is not None else [None]
    after = None if None in counts else sum(count or 0 for count in counts)
    if owner.has_part(name):
        owner.train([name], value=after != 0, call=call)
    total = owner.size_of(("",), absolute=True)
    small = _SMALL_PART * (total or 10**9)
    if after is None or abs(after - (before or 0)) > small:
        direction: UncertaintyDirection = "either" if after is None else "more" if after > (before or 0) else "less"
        owner.notes.doubt(
            f"{call.where}: {short_text(call.node)} replaces a part of the model by one of another size; the original "
            "is counted.",
            *MODEL_STATES,
            "logits",
            direction=direction,
        )


def _keep_layers(owner: Model, name: str, kept: list[Part], call: Call) -> None:
    """Take a list of layers that is a part of the one before: the model becomes shallower."""
    children = Part(owner, (name,)).children()
    if owner.config is not None and children is not None and len(kept) != len(children):
        owner.config.set_field(
            "num_hidden_layers", len(kept), call.where, f"{len(kept)} of {len(children)} layers kept"
        )
        owner.forget_shapes()
        owner.requires = None


def _size(owner: ParameterOwner) -> int | None:
    shapes = owner.shapes()
    return None if shapes is None else sum(map(elements, shapes.values()))


def assign_attribute(call: Call, notes: Notes) -> Any:
    """Follow ``setattr``."""
    value, name = call.value(0), call.value(1)
    call.path = "setattr"
    if isinstance(value, Thing) and isinstance(name, str):
        value.set_attribute(name, call.value(2), call)
    elif list(models_in(value)):
        notes.doubt(
            f"{call.where}: {short_text(call.node)} may change the model.",
            *MODEL_STATES,
            "activations",
            "logits",
        )
    return None


def freeze_unknown(call: Call, notes: Notes) -> Any:
    """Note that something that is not known is frozen: it may be parameters of the model."""
    if call.value(0, default=True) is not True:
        sentence = (
            f"{call.where}: {short_text(call.node)} may freeze parameters of the model; vramtop does not follow it."
        )
        notes.doubt(sentence, "gradients", "optimizer", "activations", direction="less")
    return UNKNOWN
