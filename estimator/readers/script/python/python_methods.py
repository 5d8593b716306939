"""Methods of texts, lists and tables, and regular expressions, as far as they can be applied without risk."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from .call import Call
from .operators import MAX_LENGTH, truth
from .values import PLAIN, UNKNOWN, Attribute, Instance, Scope, Thing

_TEXT_METHODS = {
    *("lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "split", "rsplit", "replace", "title"),
    *("removeprefix", "removesuffix", "partition", "rpartition", "count", "find", "isdigit", "casefold", "isalpha"),
    *("splitlines", "rfind", "index", "capitalize"),
}


_FIELD_WITH_MORE = re.compile(r"\{[^}]*[.\[:!{]")
"""A replacement field with a width, a conversion or an attribute, which could be anything."""


_FILLING = {"append", "extend", "add", "insert", "update", "setdefault", "appendleft"}
"""Methods that put something into a container."""
_GROUP_REPEATED = re.compile(r"\([^()]*[*+{|][^()]*\)[*+{]|\)\)+[*+{]|[*+}][*+{]")
"""A repeated group with choices or repeats in it, whose matching could take forever."""


def is_plain_container(value: Any) -> bool:
    """Return True for a list, tuple, set or table."""
    return isinstance(value, list | tuple | set | frozenset | dict)


def call_method(value: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of a method of a text, list or table; lists and tables change in place."""
    try:
        if isinstance(value, str):
            return _text_method(value, name, args, kwargs)
        if isinstance(value, dict):
            return _table_method(value, name, args, kwargs)
        if isinstance(value, list):
            return _list_method(value, name, args)
        if isinstance(value, set | frozenset | tuple):
            return _other_method(value, name, args)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, MemoryError):
        pass
    return UNKNOWN


def _text_method(value: str, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if name == "join" and args:
        if isinstance(args[0], list | tuple) and all(isinstance(item, str) for item in args[0]):
            return value.join(args[0]) if sum(map(len, args[0])) < MAX_LENGTH else UNKNOWN
        return UNKNOWN
    if name == "format":
        given = (*args, *kwargs.values())
        known = all(isinstance(item, str | int) for item in given) and not _FIELD_WITH_MORE.search(value)
        if not known or sum(len(str(item)) for item in given) * value.count("{") > MAX_LENGTH:
            return UNKNOWN
        return value.format(*args, **kwargs)
    if name not in _TEXT_METHODS or not all(_is_text_argument(item) for item in (*args, *kwargs.values())):
        return UNKNOWN
    if name == "replace" and len(value) * len(args[1] or " ") > MAX_LENGTH:
        return UNKNOWN
    args = [tuple(item) if isinstance(item, list) else item for item in args]
    result = getattr(value, name)(*args, **kwargs)
    return list(result) if isinstance(result, tuple) else result


def _is_text_argument(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, PLAIN)


def _table_method(value: dict[Any, Any], name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if name in ("get", "pop", "setdefault") and args:
        key = args[0]
        if not isinstance(key, PLAIN):
            return UNKNOWN
        default = args[1] if len(args) > 1 else None
        if name == "setdefault":
            return value.setdefault(key, default)
        return value.get(key, default) if name == "get" else value.pop(key, default)
    if name == "update":
        if args and isinstance(args[0], dict):
            value.update(args[0])
        value.update(kwargs)
        return None
    if name == "copy":
        return dict(value)
    views = {"keys": list(value), "values": list(value.values()), "items": [tuple(pair) for pair in value.items()]}
    return views.get(name, UNKNOWN)


def _list_method(value: list[Any], name: str, args: list[Any]) -> Any:
    if len(value) > MAX_LENGTH:
        return UNKNOWN
    if name == "append" or (name == "add" and not _holds(value, args[0])):
        value.append(args[0])
        return None
    if name == "extend":
        more = args[0]
        value.extend(more if isinstance(more, list | tuple) else [UNKNOWN])
        return None
    if name == "insert":
        value.insert(args[0] if isinstance(args[0], int) else 0, args[1])
        return None
    if name == "remove":
        value[:] = [item for item in value if not (type(item) is type(args[0]) and item == args[0])]
        return None
    if name == "pop":
        return value.pop(*[item for item in args if isinstance(item, int)])
    if name == "copy":
        return list(value)
    return _other_method(value, name, args)


def _holds(items: list[Any], wanted: Any) -> bool:
    return any(item is wanted or (isinstance(item, PLAIN) and item == wanted) for item in items)


def _other_method(value: Any, name: str, args: list[Any]) -> Any:
    if name == "add" and isinstance(value, set) and isinstance(args[0], PLAIN):
        value.add(args[0])
        return None
    if name in ("index", "count") and isinstance(args[0], PLAIN) and truth(args[0]) is not None:
        return getattr(value, name)(args[0])
    if name in ("union", "update") and isinstance(args[0], list | tuple | set):
        return [*value, *args[0]]
    return UNKNOWN


def match_pattern(call: Call) -> Any:
    """Return the match of a regular expression in a short text; patterns that could take long are not tried."""
    pattern, text = call.value(0), call.value(1)
    if not isinstance(pattern, str) or not isinstance(text, str) or len(text) > 200 or len(pattern) > 500:
        return UNKNOWN
    repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
    if _GROUP_REPEATED.search(pattern) or repeats > 4:
        return UNKNOWN
    call.run.steps_left -= 10
    try:
        found = getattr(re, call.name)(pattern, text)
    except (re.error, RecursionError, OverflowError):
        return UNKNOWN
    return None if found is None else _Match(found)


class _Match(Thing):
    """A match of a regular expression."""

    def __init__(self, found: re.Match[str]) -> None:
        self._found = found

    def attribute(self, name: str) -> Any:
        return Attribute(self, name)

    def method(self, call: Call) -> Any:
        if call.name == "group":
            return self.item(call.value(0, default=0))
        return list(self._found.groups()) if call.name == "groups" else UNKNOWN

    def item(self, key: Any) -> Any:
        try:
            return self._found[key]
        except (IndexError, TypeError):
            return UNKNOWN


class _Pattern(Thing):
    """A compiled regular expression."""

    def __init__(self, text: str) -> None:
        self._text = text

    def attribute(self, name: str) -> Any:
        return Attribute(self, name)

    def method(self, call: Call) -> Any:
        call.args = [self._text, *call.args]
        return match_pattern(call) if call.name in ("match", "search", "fullmatch") else UNKNOWN


def compile_pattern(call: Call) -> Any:
    """Return a compiled regular expression."""
    pattern = call.value(0)
    return _Pattern(pattern) if isinstance(pattern, str) and len(call.args) == 1 else UNKNOWN


def set_item(owner: Any, key: Any, value: Any) -> None:
    """Assign an item of a list or table, if it can be."""
    if isinstance(owner, dict):
        if isinstance(key, str | int | float | bool):
            owner[key] = value
    elif isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
        owner[key] = value


def forget_lengths(run: Any, body: list[ast.stmt], scope: Scope) -> None:
    """Forget how many items containers have that a loop's body fills, and what it counts up.

    Args:
        run: the interpreter.
        body: the loop's statements.
        scope: in which they were followed.
    """
    nodes = list(_statements(body))
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    own = {target.id for target in targets if isinstance(target, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name) and node.target.id not in own:
                _forget_count(node.target.id, run, scope)
            _open(node.target, own, run, scope)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    _open(target.value, own, run, scope)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLING:
            _open(node.func.value, own, run, scope)


def scope_value(node: ast.expr, scope: Scope) -> Any:
    """Return what a name or an attribute of a name refers to; UNKNOWN for other expressions."""
    if isinstance(node, ast.Name):
        found = scope.find(node.id)
        return found.names[node.id] if found is not None else UNKNOWN
    if isinstance(node, ast.Attribute):
        owner = scope_value(node.value, scope)
        return owner.values.get(node.attr, UNKNOWN) if isinstance(owner, Instance) else UNKNOWN
    return UNKNOWN


def _open(node: ast.expr, own: set[str], run: Any, scope: Scope) -> None:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name) and node.id in own:
        return
    value = scope_value(node, scope)
    if isinstance(value, list | dict | set):
        run.open_containers[id(value)] = value


def _forget_count(name: str, run: Any, scope: Scope) -> None:
    found = scope.find(name)
    if found is not None and isinstance(found.names[name], PLAIN) and type(found.names[name]) in (int, float):
        found.assign(name, UNKNOWN)


def _statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of statements, without those of functions and classes defined in them."""
    left: list[ast.AST] = list(body)
    while left:
        node = left.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            left += ast.iter_child_nodes(node)
