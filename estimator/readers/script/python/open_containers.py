"""Containers and counts that a loop over unknown data fills: how many items they have is unknown after it."""

import ast
from collections.abc import Iterator
from typing import Any

from .values import PLAIN, UNKNOWN, Instance, Scope

_FILLING = {"append", "extend", "add", "insert", "update", "setdefault", "appendleft"}


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
