"""Parameters of a model and whether they train, under the names of ``named_parameters``."""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from ....common import VramtopError
from ....job import Task
from ....model.count_parameters import count_parameters
from ....model.read_architecture import read_architecture
from ..python import UNKNOWN, Attribute, Call, External, Thing, truth

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
            self.uncertain.append(f"{call.where}: which parameters train is only known when the script runs.")
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
    """Yield the numbers of the layers that have a parameter; mixtures of experts begin with dense layers."""
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
