"""Follows the statements of a script: functions with their arguments, branches, loops, classes. Nothing is executed."""

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from .evaluation import Evaluation, KnownFailureError, Library
from .imports import Imports
from .values import (
    MAX_LENGTH,
    PLAIN,
    UNKNOWN,
    Call,
    Decisions,
    External,
    Function,
    Instance,
    Scope,
    ScriptClass,
    ScriptModule,
    Super,
    Thing,
    as_number,
    binary,
    compare,
    ends,
    forget_lengths,
    has_succeeded,
    is_interruption,
    is_periodic,
    is_quiet,
    raises,
    saves,
    scope_value,
    set_item,
    truth,
)

# Evaluates the expressions of a script; what only the running script could know is UNKNOWN.


_MAX_DEPTH = 40
"""Expressions inside expressions that are followed."""
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)


class Expressions(Evaluation):
    """Evaluates expressions."""

    def evaluate(self, node: ast.expr, scope: Scope) -> Any:
        """Return an expression's value."""
        self.step()
        handler = _EXPRESSIONS_HANDLERS.get(type(node))
        if handler is None or self.depth > _MAX_DEPTH:
            return UNKNOWN
        self.depth += 1
        try:
            return handler(self, node, scope)
        finally:
            self.depth -= 1

    def bases(self, scope: Scope) -> Super | None:
        """Return ``super()`` in the method that is being followed; None outside of methods."""
        raise NotImplementedError

    # --- expressions, by their kind

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        found = scope.find(node.id)
        if found is not None:
            return found.names[node.id]
        return External(node.id)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        return self.attribute(self.evaluate(node.value, scope), node.attr)

    def _items(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
        items: list[Any] = []
        for element in node.elts:
            if isinstance(element, ast.Starred):
                more = self.iterate(self.evaluate(element.value, scope))
                items += more if more is not None else [UNKNOWN]
            else:
                items.append(self.evaluate(element, scope))
        return tuple(items) if isinstance(node, ast.Tuple) else items

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        table: dict[Any, Any] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.evaluate(value_node, scope)
            key = self.evaluate(key_node, scope) if key_node is not None else None
            if key_node is None and isinstance(value, dict):
                table.update(value)
            elif isinstance(key, PLAIN) and key_node is not None:
                table[key] = value
        return table

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope)
        key = self.evaluate(node.slice, scope)
        if isinstance(value, Thing):
            return value.item(key)
        if isinstance(value, External):
            return self.library.item(self, value, key)
        try:
            if isinstance(value, dict):
                return value.get(key, UNKNOWN) if isinstance(key, PLAIN) else UNKNOWN
            if isinstance(value, list | tuple | str) and isinstance(key, int | slice):
                return value[key]
        except (IndexError, TypeError, ValueError):
            pass
        return UNKNOWN

    def _slice(self, node: ast.Slice, scope: Scope) -> Any:
        ends = [self.evaluate(end, scope) if end is not None else None for end in (node.lower, node.upper, node.step)]
        known = all(end is None or isinstance(end, int) for end in ends)
        return slice(*ends) if known else UNKNOWN

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        function = self.evaluate(node.func, scope)
        if isinstance(function, External) and function.path == "super" and (bases := self.bases(scope)) is not None:
            return bases
        call = Call(self, node, self._path(node.func), None, scope=scope)
        if isinstance(node.func, ast.Attribute):
            call.receiver = UNKNOWN
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                more = self.iterate(self.evaluate(argument.value, scope))
                call.args += more if more is not None else [UNKNOWN]
            else:
                call.nodes[len(call.args)] = argument
                call.args.append(self.evaluate(argument, scope))
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, scope)
            if keyword.arg is not None:
                call.kwargs[keyword.arg] = value
                call.nodes[keyword.arg] = keyword.value
            elif (table := self._table(value)) is not None:
                call.kwargs.update({str(key): item for key, item in table.items()})
                call.nodes.update({str(key): keyword.value for key in table})
            else:
                call.unknown_table = keyword.value
        return self.call(function, call)

    def _table(self, value: Any) -> Mapping[Any, Any] | None:
        """Return the arguments that ``**value`` passes; None: unknown."""
        if isinstance(value, dict):
            return value
        find = getattr(value, "as_table", None)
        found = find() if find is not None else None
        return found if isinstance(found, dict) else None

    def _path(self, node: ast.expr) -> str:
        """Return a dotted name as it is written."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        parts.append(node.id if isinstance(node, ast.Name) else "")
        return ".".join(reversed(parts))

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.evaluate(node.operand, scope)
        if isinstance(node.op, ast.Not):
            known = truth(value)
            return UNKNOWN if known is None else not known
        value = as_number(value)
        if not isinstance(value, int | float) or isinstance(node.op, ast.Invert):
            return UNKNOWN
        return -value if isinstance(node.op, ast.USub) else value

    def _either(self, node: ast.BoolOp, scope: Scope) -> Any:
        """Evaluate ``a or b`` to the first true value, ``a and b`` to the first false one, else to the last."""
        wanted = isinstance(node.op, ast.Or)
        unknown = False
        value: Any = UNKNOWN
        for part in node.values:
            value = self.evaluate(part, scope)
            known = truth(value)
            if known is wanted:
                return UNKNOWN if unknown and not isinstance(value, bool) else value
            unknown = unknown or known is None
        return UNKNOWN if unknown else value

    def _binary(self, node: ast.BinOp, scope: Scope) -> Any:
        left, right = self.evaluate(node.left, scope), self.evaluate(node.right, scope)
        if isinstance(left, Thing) and isinstance(node.op, ast.Add | ast.BitOr):
            left = self.iterate(left) or left
        if isinstance(right, Thing) and isinstance(node.op, ast.Add | ast.BitOr):
            right = self.iterate(right) or right
        if isinstance(left, External) and left.name == "Path":
            return UNKNOWN
        return binary(type(node.op), left, right)

    def _comparison(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.evaluate(node.left, scope)
        result: Any = True
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(right_node, scope)
            if isinstance(right, External) and right.name == "environ":
                right = dict(self.environ)
            part = compare(type(kind), left, right)
            if part is False:
                return False
            result = UNKNOWN if part is UNKNOWN or result is UNKNOWN else True
            left = right
        return result

    def _choice(self, node: ast.IfExp, scope: Scope) -> Any:
        known = truth(self.evaluate(node.test, scope))
        if known is None:
            body, orelse = self.evaluate(node.body, scope), self.evaluate(node.orelse, scope)
            if isinstance(body, PLAIN) and isinstance(orelse, PLAIN) and body == orelse:
                return body
            return body if self.decide(node.test, scope, usual=True) else orelse
        return self.evaluate(node.body if known else node.orelse, scope)

    def _text(self, node: ast.JoinedStr, scope: Scope) -> Any:
        pieces = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.evaluate(part.value, scope)
                if part.format_spec is not None or not isinstance(value, str | int | float | bool):
                    return UNKNOWN
                pieces.append(str(value))
            else:
                pieces.append(str(part.value) if isinstance(part, ast.Constant) else "")
        text = "".join(pieces)
        return text if len(text) < MAX_LENGTH else UNKNOWN

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope) -> Any:
        found: list[Any] = []
        complete = self._each(node.generators, Scope(scope), lambda inner: found.append(self.evaluate(node.elt, inner)))
        if any(id(scope_value(each.iter, scope)) in self.open_containers for each in node.generators):
            self.open_containers[id(found)] = found
        return found if complete else UNKNOWN

    def _dict_comprehension(self, node: ast.DictComp, scope: Scope) -> Any:
        found: dict[Any, Any] = {}

        def add(inner: Scope) -> None:
            key, value = self.evaluate(node.key, inner), self.evaluate(node.value, inner)
            if isinstance(key, PLAIN):
                found[key] = value

        return found if self._each(node.generators, Scope(scope), add) else UNKNOWN

    def _each(self, generators: list[ast.comprehension], scope: Scope, act: Callable[[Scope], None]) -> bool:
        """Act for every combination of a comprehension's loops; return False if they are not known."""
        first, *rest = generators
        items = self.iterate(self.evaluate(first.iter, scope))
        if items is None or len(items) > MAX_LENGTH:
            return False
        complete = True
        for item in items:
            self.assign(first.target, item, scope)
            wanted = [truth(self.evaluate(test, scope)) for test in first.ifs]
            if None in wanted and False not in wanted:
                test = first.ifs[wanted.index(None)]
                wanted = [self.decide(test, scope, usual=True)]
            if False not in wanted:
                if rest:
                    complete = self._each(rest, scope, act) and complete
                else:
                    act(scope)
        return complete

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return Function(node, scope, self.module, self.defaults(node.args, scope), "lambda")

    def _walrus(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def _inner(self, node: ast.Await | ast.Yield | ast.YieldFrom | ast.Starred, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope) if node.value is not None else None
        if isinstance(node, ast.Await):
            return value
        if isinstance(node, ast.Yield | ast.YieldFrom):
            more = [value] if isinstance(node, ast.Yield) else self.iterate(value)
            self.yielded = [*(self.yielded or []), *(more if more is not None else [UNKNOWN])]
        return UNKNOWN

    def defaults(self, arguments: ast.arguments, scope: Scope) -> dict[str, Any]:
        """Return the values of parameters that have a default."""
        named = [*arguments.posonlyargs, *arguments.args]
        pairs = [
            *zip(named[len(named) - len(arguments.defaults) :], arguments.defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        return {parameter.arg: self.evaluate(default, scope) for parameter, default in pairs if default is not None}


_EXPRESSIONS_HANDLERS: Mapping[type[ast.expr], Callable[[Expressions, Any, Scope], Any]] = {
    ast.Constant: lambda _, node, __: node.value if isinstance(node.value, PLAIN) else UNKNOWN,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.List: Expressions._items,
    ast.Tuple: Expressions._items,
    ast.Set: Expressions._items,
    ast.Dict: Expressions._dict,
    ast.Subscript: Expressions._subscript,
    ast.Slice: Expressions._slice,
    ast.Call: Expressions._call,
    ast.UnaryOp: Expressions._unary,
    ast.BoolOp: Expressions._either,
    ast.BinOp: Expressions._binary,
    ast.Compare: Expressions._comparison,
    ast.IfExp: Expressions._choice,
    ast.JoinedStr: Expressions._text,
    **dict.fromkeys(_COMPREHENSIONS, Expressions._comprehension),
    ast.DictComp: Expressions._dict_comprehension,
    ast.Lambda: Expressions._lambda,
    ast.NamedExpr: Expressions._walrus,
    ast.Await: Expressions._inner,
    ast.Yield: Expressions._inner,
    ast.YieldFrom: Expressions._inner,
    ast.Starred: Expressions._inner,
}


# Functions, classes, imports and patterns of a script: the statements that define names.


class Definitions(Expressions):
    """Follows the statements that define names."""

    imports: Imports
    functions: list[Function]

    def block(self, body: list[ast.stmt], scope: Scope) -> Any:
        """Follow statements."""
        raise NotImplementedError

    def bind(self, function: Function, args: list[Any], kwargs: dict[str, Any], scope: Scope) -> None:
        """Give a function's parameters their values: the call's, options', defaults, or unknown."""
        arguments = function.node.args
        named = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
        args = [*function.given, *args]
        values = dict(zip(named, args, strict=False))
        for name in (*named, *(parameter.arg for parameter in arguments.kwonlyargs)):
            if name in values:
                scope.names[name] = values[name]
            elif name in kwargs:
                scope.names[name] = kwargs[name]
            elif function.options is not None and name in function.options:
                scope.names[name] = function.options[name].value
                scope.origins[name] = function.options[name]
            else:
                scope.names[name] = function.defaults.get(name, UNKNOWN)
        if arguments.vararg is not None:
            scope.names[arguments.vararg.arg] = tuple(args[len(named) :])
        if arguments.kwarg is not None:
            known = {*named, *(parameter.arg for parameter in arguments.kwonlyargs)}
            scope.names[arguments.kwarg.arg] = {key: value for key, value in kwargs.items() if key not in known}

    def define_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        """Define a function, and apply its decorators."""
        function = Function(node, scope, self.module, self.defaults(node.args, scope), node.name)
        if scope is self.module.scope:
            self.functions.append(function)
        scope.assign(node.name, function)
        for decorator in reversed(node.decorator_list):
            self._decorate(function, decorator, scope)

    def _decorate(self, function: Function, decorator: ast.expr, scope: Scope) -> None:
        """Apply a decorator: those of libraries leave the function a function of the script."""
        value = self.evaluate(decorator.func if isinstance(decorator, ast.Call) else decorator, scope)
        name = value.name if isinstance(value, External) else getattr(value, "name", "")
        function.is_property = function.is_property or name in ("property", "cached_property")
        function.is_static = function.is_static or name == "staticmethod"
        function.is_class_method = function.is_class_method or name == "classmethod"
        call = Call(self, decorator, name, None, [function], scope=scope)
        if isinstance(decorator, ast.Call):
            call.args += [self.evaluate(each, scope) for each in decorator.args]
            call.kwargs = {each.arg: self.evaluate(each.value, scope) for each in decorator.keywords if each.arg}
        call.path = f"@{name}"
        self.library.call(call)

    def define_class(self, node: ast.ClassDef, scope: Scope) -> None:
        """Define a class."""
        bases = tuple(self.evaluate(base, scope) for base in node.bases)
        kind = ScriptClass(node.name, node, bases, self.module)
        for base in bases:
            if isinstance(base, ScriptClass):
                kind.fields.update(base.fields)
                kind.is_dataclass = kind.is_dataclass or base.is_dataclass
        inner = Scope(scope)
        self.block(node.body, inner)
        kind.members = inner.names
        kind.fields.update(
            {
                each.target.id: each
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
        )
        for member in kind.members.values():
            if isinstance(member, Function):
                member.owner = kind
                member.scope = scope
        kind.is_dataclass = kind.is_dataclass or any("dataclass" in ast.dump(each) for each in node.decorator_list)
        scope.assign(node.name, kind)
        self.library.call(Call(self, node, "@class", None, [kind], scope=scope))

    def import_modules(self, node: ast.Import, scope: Scope) -> None:
        """Import modules: those beside the script, or names of libraries."""
        for alias in node.names:
            first = alias.name.partition(".")[0]
            module = self.imports.load(self, alias.name if alias.asname else first)
            if module is None:
                self.library.imported(alias.name, self.location(node))
            scope.assign(alias.asname or first, module or External(alias.name if alias.asname else first))

    def import_names(self, node: ast.ImportFrom, scope: Scope) -> None:
        """Import names of a module."""
        name = node.module or ""
        module = self.imports.load(self, name, level=node.level)
        if module is None:
            self.library.imported(name, self.location(node))
        for alias in node.names:
            if alias.name == "*":
                for key, value in module.public_names() if module is not None else ():
                    scope.assign(key, value)
                continue
            value = module.scope.names.get(alias.name) if module is not None else None
            if value is None:
                value = self.imports.load(self, f"{name}.{alias.name}".strip("."), level=node.level)
            scope.assign(alias.asname or alias.name, value or External(f"{name}.{alias.name}".strip(".")))

    def fits(self, pattern: ast.pattern, subject: Any, scope: Scope) -> bool | None:
        """Return whether a value fits the pattern of a case; None: unknown."""
        if isinstance(pattern, ast.MatchValue):
            value = self.evaluate(pattern.value, scope)
            return None if UNKNOWN in (value, subject) else value == subject
        if isinstance(pattern, ast.MatchSingleton):
            return None if subject is UNKNOWN else pattern.value is subject
        if isinstance(pattern, ast.MatchOr):
            fits = [self.fits(each, subject, scope) for each in pattern.patterns]
            return True if True in fits else None if None in fits else False
        if isinstance(pattern, ast.MatchAs):
            if pattern.name:
                scope.assign(pattern.name, subject)
            return True if pattern.pattern is None else self.fits(pattern.pattern, subject, scope)
        return None


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


def frees_activations(nodes: Iterable[ast.expr]) -> bool:
    """Return True for ``torch.no_grad()`` among contexts or decorators."""
    return any(re.search(r"no_grad|inference_mode|set_grad_enabled\(False", ast.unparse(node)) for node in nodes)


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
        gradients = self.without_gradients
        self.without_gradients |= frees_activations(getattr(node, "decorator_list", ()))
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
            self.without_gradients = gradients
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
        before, loops = self.guards, self.loops
        self.loops = (*loops, node)
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
            self.guards, self.loops = before, loops
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
        before = self.without_gradients
        self.without_gradients |= frees_activations(item.context_expr for item in node.items)
        try:
            return self._inside(node, scope)
        finally:
            self.without_gradients = before

    def _inside(self, node: ast.With | ast.AsyncWith, scope: Scope) -> End:
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
