"""Finds a variable of a script's own training loop that holds the model's outputs through the backward pass."""

import ast
from collections.abc import Iterator

from ..source import Setting

_OUTPUTS = ("loss", "logits")
"""Attributes of what transformers' models return."""


def kept_outputs(tree: ast.Module, name: str) -> Setting | None:
    """Return True with its origin if some loop keeps the outputs: ``out = model(...); out.loss.backward()``.

    A variable that is deleted before the backward pass keeps nothing, nor does one of a function that returns the loss.

    Args:
        tree: the script.
        name: the script's, for the origin.
    """
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)):
            for variable, line in _kept_in(list(_own_nodes(scope))):
                origin = f"{name}:{line}: {variable} holds the model's outputs until the next ones replace it"
                return Setting(value=True, origin=origin)
    return None


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _own_nodes(child)


def _kept_in(nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield variables with the lines in which they get their outputs."""
    backward = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
    ]
    deleted = [
        (target.id, node.lineno)
        for node in nodes
        if isinstance(node, ast.Delete)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    read = [
        (node.value.id, node.lineno)
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in _OUTPUTS and isinstance(node.value, ast.Name)
    ]
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        for target in node.targets:
            ends = [line for line in backward if line > node.lineno]
            if not isinstance(target, ast.Name) or not ends:
                continue
            used = any(name == target.id and node.lineno <= line <= min(ends) for name, line in read)
            freed = any(name == target.id and node.lineno < line <= min(ends) for name, line in deleted)
            if used and not freed:
                yield target.id, node.lineno
