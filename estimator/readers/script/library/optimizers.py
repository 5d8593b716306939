"""Optimizers of a script: their class, arguments, and the parameters that they are given."""

import ast
import re
from typing import Any

from ....job.rules import NOT_KNOWN, optimizer_arguments, optimizer_by_class, optimizer_class_names
from ...source import Setting
from ..models import (
    Adapter,
    Container,
    Model,
    Notes,
    Parameter,
    ParameterList,
    ParameterOwner,
    parameters_of,
)
from ..python import UNKNOWN, Attribute, Call, Instance, ScriptClass, Thing, as_number, plain, short_text

_AVERAGES = re.compile(r"(?i)ema|ema.?(model|v\d|params)?|.*exponentialmovingaverage|averagedmodel|modelema\w*|.*_ema")
"""Classes that keep an average of a model's weights."""


_MAX_ACCUMULATION = 4096
_BASES = ("Optimizer", "Optimizer1State", "Optimizer2State")
"""Bases of the optimizers of torch and bitsandbytes."""


class Optimizer(Thing):
    """An optimizer.

    Args:
        call: the call that makes it.
        name: its class's name.
        notes: the reading that it belongs to.
    """

    def __init__(self, call: Call, name: str, notes: Notes) -> None:
        self.name, self.path, self.where, self._notes = name, call.path, call.where, notes
        self.arguments = {key: plain(value) for key, value in call.kwargs.items() if key not in ("params", "model")}
        """Keyword arguments; UNKNOWN for those only known at run time."""
        self.values: list[Any] = []
        """What it was given to train."""
        self.take(call.value(0, "params", "model_params", "parameters"))

    @property
    def setting(self) -> Setting:
        """Its row: an ``OptimizerChoice``."""
        known = {name: value for name, value in self.arguments.items() if name in optimizer_arguments()}
        given = {name: NOT_KNOWN if value is UNKNOWN else value for name, value in known.items()}
        return Setting(value=optimizer_by_class(self.path, given), origin=f"{self.where}: {self.name}(...)")

    def take(self, value: Any) -> None:
        """Take more parameters to train: a list, or groups with ``params``."""
        if isinstance(value, list | tuple):
            for item in value[:50_000]:
                self.take(item)
        elif isinstance(value, dict):
            if "params" in value:
                self.take(value["params"])
                for name in set(optimizer_arguments()) & value.keys():  # the rank of GaLore's group
                    self.arguments.setdefault(name, plain(value[name]))
        else:
            self.values.append(value)

    def trains(self) -> dict[ParameterOwner, set[str] | None]:
        """Return the models and layers that it trains: names of parameters, or None for all of them."""
        found: dict[ParameterOwner, set[str] | None] = {}
        for value in self.values:
            groups = value.groups if isinstance(value, ParameterList) else []
            for owner, prefixes, _ in groups:
                listed = owner.list_parameters(prefixes) if prefixes != ("",) else None
                names = None if listed is None else {each.name or "" for _, each in listed}
                _add(found, owner, names)
            if isinstance(value, Parameter):
                _add(found, value.owner, None if value.name is None or value.many else {value.name})
            elif isinstance(value, Adapter):
                found.setdefault(value.owner, set())
            elif isinstance(value, ParameterOwner):
                _add(found, value, None)
        return found

    def trains_unknown(self) -> bool:
        """Return True if it was given the parameters of a model of which nothing is known."""
        return any(isinstance(value, UnknownParameters) for value in self.values)

    def has_unknown(self) -> bool:
        """Return True if it was given parameters of which nothing is known."""
        return not self.values or any(not isinstance(value, Thing) for value in self.values)

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return UNKNOWN if name in ("param_groups", "state") else Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Follow a step, and groups that are added."""
        if call.name == "add_param_group":
            self.take(call.value(0, "param_group"))
        elif call.name == "step":
            note_accumulation(call, self._notes)
            call.run.library.train_step(call)
        return UNKNOWN


def _add(found: dict[ParameterOwner, set[str] | None], owner: ParameterOwner, names: set[str] | None) -> None:
    before = found.get(owner, set())
    found[owner] = None if names is None or before is None else before | names


def is_parameters(value: Any) -> bool:
    """Return True for what an optimizer is given: parameters, a list of them, or groups of them."""
    if isinstance(value, list | tuple) and value:
        first = value[0]
        return is_parameters(first) or (isinstance(first, dict) and "params" in first)
    return isinstance(value, ParameterList | Parameter | Adapter | UnknownParameters)


class UnknownParameters(Thing):
    """``model.parameters()`` of a model of which nothing is known."""

    def elements(self) -> list[Any] | None:
        """Return nothing that is known."""
        return None


def make_optimizer(call: Call, notes: Notes) -> Optimizer:
    """Follow the constructor of an optimizer."""
    optimizer = Optimizer(call, call.name, notes)
    model = call.value(None, "model")
    if isinstance(model, Model) and not optimizer.values:
        optimizer.take(model)
    notes.optimizers.append(optimizer)
    return optimizer


def make_average(call: Call, notes: Notes) -> Any:
    """Follow a class that keeps an average of a model's weights; None if it is given no model."""
    value = call.value(0, "model", "parameters", default=None)
    value = call.value(None, "ema_model", "params", default=value)
    found = value if isinstance(value, Model) else None
    if isinstance(value, ParameterList) and value.groups and isinstance(value.groups[0][0], Model):
        found = value.groups[0][0]
    if isinstance(value, Instance | Container):
        inside = parameters_of(value)
        found = next((owner for owner, _, _ in inside.groups if isinstance(owner, Model)), None) if inside else None
    if found is None:
        return None
    average = found.copy(call.where)
    average.label, average.role, average.runs = f"{call.name}(...)", "ema", False
    device = call.value(None, "device")
    if device == "cpu":
        average.on_gpu = False
    notes.models = [each for each in notes.models if each is not average]
    notes.models.append(average)
    return average


def is_average(name: str) -> bool:
    """Return True for the name of a class that keeps an average of weights."""
    return _AVERAGES.fullmatch(name) is not None


def optimizer_path(kind: ScriptClass, base: str) -> str | None:
    """Return the path by which a script's class that derives from a base counts as an optimizer; None if it is none.

    A class that derives from torch's plain ``Optimizer`` has its module in its path, so that it is not taken for a
    library's class of the same name.
    """
    last = base.rpartition(".")[2]
    if last in optimizer_class_names():
        return base
    if last not in _BASES:
        return None
    file = kind.module.path
    return f"{file.parent.name}.{file.stem}.{kind.name}" if file is not None else f"script.{kind.name}"


def note_accumulation(call: Call, notes: Notes) -> None:
    """Note the accumulation in the conditions around an optimizer's step: ``(step + 1) % accumulation == 0``."""
    for test, scope in call.run.guards:
        for node in ast.walk(test):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                steps = as_number(call.run.evaluate(node.right, scope))
                shown = f"{call.run.location(test)}: {short_text(test)}"
                if isinstance(steps, int) and 1 < steps <= _MAX_ACCUMULATION:
                    origin = call.run.origin(node.right, scope)
                    origin = f"{origin.origin} ({shown})" if origin is not None else shown
                    notes.hints.setdefault("gradient_accumulation_steps", Setting(value=steps, origin=origin))
                elif not isinstance(steps, int):
                    sentence = f"{shown}: how often the optimizer steps is only known when the script runs."
                    notes.doubt(sentence, "gradients", direction="more", key="training.gradient_accumulation")
