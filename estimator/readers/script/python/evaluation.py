"""Calls and attributes of a script, by the kind of value that is called; the base of what follows a script."""

import ast
from typing import TYPE_CHECKING, Any, Protocol

from ...source import Setting
from .call import Call
from .operators import MAX_LENGTH
from .python_methods import call_method, is_plain_container
from .values import (
    PLAIN,
    UNKNOWN,
    Attribute,
    External,
    Function,
    Instance,
    Method,
    Scope,
    ScriptClass,
    ScriptModule,
    Thing,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MAX_PASSES = 3
"""Times that one ``forward`` is followed: what it does is the same in every layer and every step."""


class Library(Protocol):
    """What libraries do, as far as memory depends on it."""

    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of a library's name, or of a value that nothing is known about."""

    def item(self, run: Any, value: Any, key: Any) -> Any:
        """Return what stands at a key of a library's name: a variable of ``os.environ``."""

    def imported(self, name: str, where: str) -> None:
        """Note the import of a module that is not beside the script."""

    def condition(self, *, decided: bool) -> None:
        """Note that a condition begins, or that it was decided."""

    def make_instance(self, kind: ScriptClass, call: Call) -> Any:
        """Return what a class of the script makes, if it is a copy of a library's; UNKNOWN for others."""

    def instance_made(self, found: Instance, call: Call) -> None:
        """Note a new object of one of the script's classes."""

    def call(self, call: Call) -> Any:
        """Return the result of a library's function, and note what it does to models, optimizers and settings."""

    def instance_method(self, call: Call) -> Any:
        """Return the result of a method that an object of the script inherits from a library."""

    def before_function(self, function: Function, args: list[Any]) -> Any:
        """Return what ``after_function`` is to compare with: a function of the script's own begins."""

    def after_function(self, function: Function, args: list[Any], before: Any, where: str) -> None:
        """Note a function of the script's own that has ended."""


class KnownFailureError(Exception):
    """The script raises an exception, which it may handle."""


class BudgetSpentError(Exception):
    """The script takes more steps than are followed."""


class Evaluation:
    """Follows calls, and keeps count of the steps.

    Args:
        library: what libraries do.
        max_steps: statements and expressions that are followed.
    """

    def __init__(self, library: Library, *, max_steps: int) -> None:
        self.library = library
        self.steps_left = max_steps
        self.environ: dict[str, Any] = {}
        self.guards: list[tuple[ast.expr, Scope]] = []
        """Conditions in the innermost loop around what is being followed, outermost first."""
        self.open_containers: dict[int, Any] = {}
        """Lists and tables of which only some items are known, by identity."""
        self.module = ScriptModule("", None)
        self.statement: ast.AST | None = None
        """The call that is a statement of its own, whose result nothing takes."""
        self.replaced: dict[ast.AST, list[Any]] = {}
        """The values that names had until an expression's value was assigned to them, by the expression."""
        self.yielded: list[Any] | None = None
        """What the function that is being followed has yielded."""
        self.depth = 0
        self._passes: dict[int, int] = {}
        """How often each ``forward`` was followed, by identity of its node."""
        self.argv: list[str] | None = None
        """``sys.argv``; None: unknown."""
        self.executing = 0
        """Files that are being executed, one by another."""
        self.find_file: Callable[[str], Path | None] = lambda _: None
        """Returns a file that the script may read, by the name that it uses."""

    def call_function(self, function: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of a function of the script."""
        raise NotImplementedError

    def make_instance(self, kind: ScriptClass, call: Call) -> Any:
        """Return a new object of a class of the script."""
        raise NotImplementedError

    def decide(self, test: ast.expr, scope: Scope, *, usual: bool) -> bool:
        """Return whether a condition holds, by a decision where it cannot be known."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Assign a value to a name, an attribute, an item, or several of them."""
        raise NotImplementedError

    def location(self, node: ast.AST) -> str:
        """Return the script and line of a node: ``train.py line 12``."""
        return f"{self.module.name} line {getattr(node, 'lineno', '?')}"

    def origin(self, node: ast.AST, scope: Scope | None) -> Setting | None:
        """Return the option, or its default, whose value an expression is."""
        if scope is None:
            return None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = scope.find(node.value.id)
            value = owner.names[node.value.id] if owner is not None else None
            find = getattr(value, "option", None)
            found = find(node.attr) if find is not None else None
            return found if isinstance(found, Setting) else None
        if isinstance(node, ast.Name):
            owner = scope.find(node.id)
            return owner.origins.get(node.id) if owner is not None else None
        return None

    def because(self) -> str:
        """Return which option led to the branch that is followed: ``, because --use_lora is True``, or nothing."""
        for test, scope in reversed(self.guards):
            for node in ast.walk(test):
                found = self.origin(node, scope)
                if found is not None and isinstance(found.value, bool | int):
                    flag, given, _ = found.origin.partition(" on the command line")
                    option = flag if given else f"the {found.origin.rpartition(': ')[2]}"
                    return f", because {option} is {found.value}"
        return ""

    def step(self) -> None:
        """Count a step.

        Raises:
            BudgetSpentError: there were too many.
        """
        self.steps_left -= 1
        if self.steps_left < 0:
            raise BudgetSpentError

    def evaluate(self, node: ast.expr, scope: Scope) -> Any:
        """Return an expression's value."""
        raise NotImplementedError

    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of a value."""
        if isinstance(value, External):
            if value.path == "sys" and name == "argv" and self.argv is not None:
                return list(self.argv)
            return self.library.attribute(value, name)
        if not isinstance(value, Thing):
            return Attribute(value, name)
        found = value.attribute(name)
        if isinstance(found, Method) and isinstance(found.function, Function) and found.function.is_property:
            return self.call_function(found.function, list(found.args), {})
        return found

    def iterate(self, value: Any) -> list[Any] | None:
        """Return what iterating over a value yields; None: unknown."""
        if isinstance(value, list | tuple | set | frozenset | str):
            return list(value) if len(value) <= MAX_LENGTH else None
        if isinstance(value, dict):
            return list(value)
        return value.elements() if isinstance(value, Thing) else None

    def call(self, function: Any, call: Call) -> Any:
        """Return the result of calling a value."""
        self.step()
        if isinstance(function, Method):
            call.args = [*function.args, *call.args]
            call.nodes = {
                key + len(function.args) if isinstance(key, int) else key: node for key, node in call.nodes.items()
            }
            call.kwargs = {**function.kwargs, **call.kwargs}
            return self.call(function.function, call)
        if isinstance(function, Function):
            return self.call_function(function, call.args, call.kwargs)
        if isinstance(function, ScriptClass):
            found = self.library.make_instance(function, call)
            return found if found is not UNKNOWN else self.make_instance(function, call)
        if isinstance(function, External):
            call.path, call.receiver = function.path, None
            return self.library.call(call)
        if isinstance(function, Attribute):
            return self._call_method(function, call)
        if isinstance(function, Instance):
            forward = function.kind.find("__call__")
            forward = function.kind.find("forward") if forward is UNKNOWN else forward
            if isinstance(forward, Function):
                self._passes[id(forward.node)] = self._passes.get(id(forward.node), 0) + 1
                if self._passes[id(forward.node)] > _MAX_PASSES:
                    return UNKNOWN
                return self.call_function(forward, [function, *call.args], call.kwargs)
            call.path, call.receiver = "__call__", function
            return self.library.instance_method(call)
        if isinstance(function, Thing):
            return function.called(call)
        return self.library.call(call)

    def _call_method(self, function: Attribute, call: Call) -> Any:
        receiver = function.receiver
        call.receiver, call.path = receiver, function.name
        if isinstance(receiver, Instance):
            return self.library.instance_method(call)
        if isinstance(receiver, Thing):
            return receiver.method(call)
        if isinstance(receiver, PLAIN) or is_plain_container(receiver):
            return call_method(receiver, function.name, call.args, call.kwargs)
        return self.library.call(call)
