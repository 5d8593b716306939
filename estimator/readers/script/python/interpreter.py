"""Follows the statements of a script: functions with their arguments, branches, loops, classes. Nothing is executed."""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from .call import Call
from .decisions import Decisions, ends, has_succeeded, is_interruption, is_periodic, is_quiet, raises, saves
from .definitions import Definitions
from .evaluation import KnownFailureError, Library
from .imports import Imports
from .operators import binary, truth
from .python_methods import forget_lengths, set_item
from .values import (
    UNKNOWN,
    External,
    Function,
    Instance,
    Scope,
    ScriptClass,
    ScriptModule,
    Super,
    Thing,
)

_MAX_CALLS = 14
_MAX_RECURSION = 3
"""Times that a function may call itself: enough for tables in tables."""
"""Functions inside functions that are followed; their locals are unknown beyond."""
_MAX_ROUNDS = 160
"""Rounds of a loop over numbers that are followed one by one: more than any model has layers."""
_MAX_ITEMS = 30_000
"""Items of a list of parameters that are followed one by one."""
_STEPS_OF_A_DECISION = 30
"""What following a condition that cannot be decided costs, beside its expression."""
End = Literal["return", "break", "continue"] | None
"""Why a block ended early."""


class ScriptEndsError(Exception):
    """The script raises an exception, at a place that stands in the message, or exits."""


class Interpreter(Definitions):
    """Follows a script.

    Args:
        library: what libraries do.
        decisions: the answers for conditions that cannot be decided.
        imports: the modules beside the script.
        environ: the environment; values may be unknown.
        arguments: the words of the command line after the script.
        max_steps: statements and expressions that are followed.
    """

    def __init__(
        self,
        library: Library,
        decisions: Decisions,
        imports: Imports,
        *,
        environ: Mapping[str, Any],
        arguments: Sequence[str],
        max_steps: int,
    ) -> None:
        super().__init__(library, max_steps=max_steps)
        self.environ, self.arguments = dict(environ), arguments
        self.decisions = decisions
        self.imports = imports
        self.scopes: list[Scope] = []
        """Scopes of the calls that are being followed, innermost last."""
        self.functions: list[Function] = []
        """Functions that the script defines at module level."""
        self.followed: set[int] = set()
        """Functions that were called, by identity of their nodes."""
        self.followed_names: dict[str, str] = {}
        """Place of each function that was called, by its name."""
        self._result: Any = None
        self._function: Function | None = None
        """The function that is being followed."""
        self._may_have_returned = False
        """It may have returned before, under a condition that is not known."""
        self._active: list[int] = []
        """Functions that are being followed, by identity of their nodes."""

    def run_module(self, tree: ast.Module, module: ScriptModule) -> None:
        """Follow the statements of a module."""
        before, self.module = self.module, module
        module.tree = tree
        self.scopes.append(module.scope)
        try:
            self.block(tree.body, module.scope)
        finally:
            self.scopes.pop()
            self.module = before

    def block(self, body: list[ast.stmt], scope: Scope) -> End:
        """Follow statements; return why they ended early."""
        for statement in body:
            self.step()
            handler = _HANDLERS.get(type(statement))
            end = handler(self, statement, scope) if handler is not None else None
            if end is not None:
                return end
        return None

    def decide(self, test: ast.expr, scope: Scope, *, usual: bool) -> bool:
        """Return the answer that this reading takes for granted."""
        self.steps_left -= _STEPS_OF_A_DECISION
        return self.decisions.decide(test, self.location(test), usual=usual)

    def call_function(self, function: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return what a function of the script returns."""
        node = function.node
        self.followed.add(id(node))
        if len(self.scopes) > _MAX_CALLS or self._active.count(id(node)) > _MAX_RECURSION:
            return UNKNOWN
        scope = Scope(function.scope)
        self.bind(function, args, kwargs, scope)
        before = self.module, self._function, self._result, self.yielded, self._may_have_returned
        self.module, self._function = function.module, function
        self._result, self.yielded, self._may_have_returned = None, None, False
        self.followed_names.setdefault(function.name, self.location(node))
        self.scopes.append(scope)
        self._active.append(id(node))
        try:
            if isinstance(node, ast.Lambda):
                return self.evaluate(node.body, scope)
            before_it = self.library.before_function(function, args)
            self.block(node.body, scope)
            self.library.after_function(function, args, before_it, self.location(node))
            return self._result if self.yielded is None else self.yielded
        finally:
            self.scopes.pop()
            self._active.pop()
            self.module, self._function, self._result, self.yielded, self._may_have_returned = before

    def bases(self, scope: Scope) -> Super | None:
        """Return ``super()``, of which the first parameter is the object or class."""
        function = self._function
        first = next(iter(function.node.args.args), None) if function is not None else None
        found = scope.find(first.arg) if first is not None else None
        if function is None or function.owner is None or first is None or found is None:
            return None
        return Super(function.owner, found.names[first.arg])

    def make_instance(self, kind: ScriptClass, call: Call) -> Any:
        """Return a new object; its ``__init__`` is followed."""
        found = Instance(kind)
        if kind.is_dataclass or any(path.endswith(("BaseModel", "Serializable")) for path in kind.external_bases()):
            for name, value in zip(kind.fields, call.args, strict=False):
                found.values[name] = value
            for name in kind.fields:
                if name not in found.values:
                    found.values[name] = call.kwargs.get(name, kind.find(name))
            call.kwargs = {}
        init = kind.find("__init__")
        if isinstance(init, Function):
            self.call_function(init, [found, *call.args], call.kwargs)
        elif not kind.is_dataclass:
            self.library.instance_method(Call(self, call.node, "__init__", found, call.args, call.kwargs, call.nodes))
        if kind.is_dataclass:
            self.finish_dataclass(kind, found)
        self.library.instance_made(found, call)
        return found

    def finish_dataclass(self, kind: ScriptClass, made: Any) -> None:
        """Follow what a dataclass does with its fields when an object has them."""
        finish = kind.find("__post_init__")
        if isinstance(finish, Function):
            try:
                self.call_function(finish, [made], {})
            except KnownFailureError:  # the command line may be a part of the whole
                return

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Assign a value to a name, an attribute, an item, or several of them."""
        if isinstance(target, ast.Name):
            scope.assign(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value, scope)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, scope)
        elif isinstance(target, ast.Attribute):
            owner = self.evaluate(target.value, scope)
            call = Call(self, target, target.attr, owner, [value], scope=scope)
            if isinstance(owner, Thing):
                owner.set_attribute(target.attr, value, call)
            elif isinstance(owner, External) or target.attr == "requires_grad":
                call.path = f"{owner.path}.{target.attr}" if isinstance(owner, External) else "requires_grad_"
                self.library.call(call)
        elif isinstance(target, ast.Subscript):
            owner, key = self.evaluate(target.value, scope), self.evaluate(target.slice, scope)
            call = Call(self, target, "__setitem__", owner, [key, value], scope=scope)
            if isinstance(owner, Thing):
                owner.set_item(key, value, call)
            elif isinstance(owner, External):
                call.path, call.receiver = f"{owner.path}.__setitem__", None
                self.library.call(call)
            else:
                set_item(owner, key, value)

    def _unpack(self, targets: list[ast.expr], value: Any, scope: Scope) -> None:
        items = self.iterate(value)
        if items is None and isinstance(value, Thing) and targets:
            items = [value]  # a model and more, returned by what is not followed
        starred = next((at for at, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
        if items is not None and starred is not None and len(items) >= len(targets) - 1:
            after = len(targets) - starred - 1
            middle = items[starred : len(items) - after]
            items = [*items[:starred], middle, *items[len(items) - after :]]
        for at, target in enumerate(targets):
            self.assign(target, items[at] if items is not None and at < len(items) else UNKNOWN, scope)

    # --- statements, by their kind

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        names = [
            each.id
            for target in node.targets
            for each in ast.walk(target)
            if isinstance(getattr(each, "ctx", None), ast.Store) and isinstance(each, ast.Name)
        ]
        self.replaced[node.value] = [found.names[name] for name in names if (found := scope.find(name)) is not None]
        value = self.evaluate(node.value, scope)
        origin = self.origin(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)
            if scope.outer is None and isinstance(target, ast.Name):
                scope.places[target.id] = self.location(node)
            if origin is not None and isinstance(target, ast.Name):
                scope.elsewhere.get(target.id, scope).origins[target.id] = origin

    def _annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, scope), scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        target = ast.copy_location(ast.Name(node.target.id), node) if isinstance(node.target, ast.Name) else node.target
        before, value = self.evaluate(target, scope), self.evaluate(node.value, scope)
        before, value = (self.iterate(each) if isinstance(each, Thing) else each for each in (before, value))
        self.assign(node.target, binary(type(node.op), before, value), scope)
        if scope.outer is None and isinstance(node.target, ast.Name):
            scope.places[node.target.id] = self.location(node)

    def _expression(self, node: ast.Expr, scope: Scope) -> None:
        self.statement = node.value
        self.evaluate(node.value, scope)

    def _if(self, node: ast.If, scope: Scope) -> End:
        self.library.condition(decided=False)
        known = truth(self.evaluate(node.test, scope))
        self.library.condition(decided=known is not None)
        is_open = known is None
        if known is None:
            if is_quiet(node.body) and is_quiet(node.orelse):
                return None
            periodic = is_periodic(node.test) and not node.orelse
            if periodic or raises(node.body) or raises(node.orelse):
                known = not (ends(node.body) if periodic else raises(node.body))
            else:
                self.steps_left -= _STEPS_OF_A_DECISION
                where, branches = self.location(node.test), [*node.body, *node.orelse]
                lowers = saves(node.body), saves(node.orelse)
                usual = not ends(node.body) if lowers[0] == lowers[1] else lowers[1]
                known = self.decisions.decide(node.test, where, usual=usual, branches=branches)
            left = node.orelse if known else node.body
            self._may_have_returned |= bool(left) and isinstance(left[-1], ast.Return)
        self.guards.append((node.test, scope))
        try:
            end = self.block(node.body if known else node.orelse, scope)
        except ScriptEndsError as error:
            if not is_open or not str(error):
                raise
            end = self.block(node.orelse if known else node.body, scope)  # a run that goes on took the other one
        if not isinstance(node.body[-1], ast.Continue):  # which guards the rest of the round
            self.guards.pop()
        return end

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> End:
        iterated = self.evaluate(node.iter, scope)
        items = self.iterate(iterated)
        if items is None or len(items) > (_MAX_ITEMS if items and isinstance(items[0], Thing | tuple) else _MAX_ROUNDS):
            items, iterated = [UNKNOWN], UNKNOWN
        before = self.guards
        try:
            for item in items:
                self.step()
                self.guards = []
                self.assign(node.target, item, scope)
                end = self.block(node.body, scope)
                if end == "return":
                    return end
                if end == "break":
                    return None
        finally:
            self.guards = before
            if iterated is UNKNOWN or id(iterated) in self.open_containers:
                forget_lengths(self, node.body, scope)
        return self.block(node.orelse, scope)

    def _while(self, node: ast.While, scope: Scope) -> End:
        for _ in range(_MAX_ROUNDS):
            known = truth(self.evaluate(node.test, scope))
            if known is False:
                return self.block(node.orelse, scope)
            end = self.block(node.body, scope)
            if end == "return":
                return end
            if known is None or end == "break" or isinstance(node.test, ast.Constant):
                forget_lengths(self, node.body, scope)
                break
        return None

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> End:
        for item in node.items:
            value = self.evaluate(item.context_expr, scope)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope)
        return self.block(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> End:
        end: End = None
        try:
            end = self.block(node.body, scope)
            if end is None:
                end = self.block(node.orelse, scope)
        except (ScriptEndsError, KnownFailureError) as error:
            if not node.handlers:
                raise
            if isinstance(error, KnownFailureError):
                return self.block(node.handlers[0].body, scope) or self.block(node.finalbody, scope)
        for handler in node.handlers if not has_succeeded(node.body, scope) else ():
            if is_quiet(handler.body) or raises(handler.body) or is_interruption(handler):
                continue
            if self.decisions.fails(handler, self.location(handler)):
                if handler.name:
                    scope.assign(handler.name, UNKNOWN)
                end = self.block(handler.body, scope)
        return self.block(node.finalbody, scope) or end

    def _return(self, node: ast.Return, scope: Scope) -> End:
        self._result = self.evaluate(node.value, scope) if node.value is not None else None
        return "return"

    def _raise(self, node: ast.Raise, scope: Scope) -> End:
        if self._may_have_returned or self.location(node) in self.decisions.passed:
            self._result = UNKNOWN
            return "return" if self._function is not None else None
        raise ScriptEndsError(self.location(node))

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name) and (owner := scope.find(target.id)) is not None:
                del owner.names[target.id]
            elif isinstance(target, ast.Attribute):
                self.assign(target, None, scope)

    def _declare(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        for name in node.names:
            outer = scope.outer.find(name) if isinstance(node, ast.Nonlocal) and scope.outer is not None else None
            scope.elsewhere[name] = outer or scope.outermost()

    def _match(self, node: ast.Match, scope: Scope) -> End:
        subject = self.evaluate(node.subject, scope)
        for case in node.cases:
            fits = self.fits(case.pattern, subject, scope)
            if fits is None:
                text = ast.copy_location(ast.Constant(f"case {ast.unparse(case.pattern)}"), case.pattern)
                fits = self.decide(text, scope, usual=False)
            if fits:
                return self.block(case.body, scope)
        return None


_HANDLERS: Mapping[type[ast.stmt], Callable[[Interpreter, Any, Scope], End]] = {
    ast.Assign: Interpreter._assign,
    ast.AnnAssign: Interpreter._annotated,
    ast.AugAssign: Interpreter._augmented,
    ast.Expr: Interpreter._expression,
    ast.If: Interpreter._if,
    ast.For: Interpreter._for,
    ast.AsyncFor: Interpreter._for,
    ast.While: Interpreter._while,
    ast.With: Interpreter._with,
    ast.AsyncWith: Interpreter._with,
    ast.Try: Interpreter._try,
    ast.Return: Interpreter._return,
    ast.Raise: Interpreter._raise,
    ast.Delete: Interpreter._delete,
    ast.Global: Interpreter._declare,
    ast.Nonlocal: Interpreter._declare,
    ast.FunctionDef: Interpreter.define_function,
    ast.AsyncFunctionDef: Interpreter.define_function,
    ast.ClassDef: Interpreter.define_class,
    ast.Import: Interpreter.import_modules,
    ast.ImportFrom: Interpreter.import_names,
    ast.Match: Interpreter._match,
    ast.Break: lambda _, __, ___: "break",
    ast.Continue: lambda _, __, ___: "continue",
}
