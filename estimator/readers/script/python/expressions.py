"""Evaluates the expressions of a script; what only the running script could know is UNKNOWN."""

import ast
from collections.abc import Callable, Mapping
from typing import Any

from .call import Call
from .evaluation import Evaluation
from .operators import MAX_LENGTH, as_number, binary, compare, truth
from .python_methods import scope_value
from .values import PLAIN, UNKNOWN, External, Function, Scope, Super, Thing

_MAX_DEPTH = 40
"""Expressions inside expressions that are followed."""
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)


class Expressions(Evaluation):
    """Evaluates expressions."""

    def evaluate(self, node: ast.expr, scope: Scope) -> Any:
        """Return an expression's value."""
        self.step()
        handler = _HANDLERS.get(type(node))
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


_HANDLERS: Mapping[type[ast.expr], Callable[[Expressions, Any, Scope], Any]] = {
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
