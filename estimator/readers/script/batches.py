"""Reads from the source of a script, without following it, the lengths of its batches and what its loop keeps.

Sequences are of one length where the tokenizer pads them to the limit, or where they are concatenated and cut
(``group_texts`` of transformers' examples); collators that pad take a batch to its longest sequence (transformers'
``data/data_collator.py``).
"""

import ast
from collections.abc import Iterator

from ..arguments.table import scripts
from ..source.evidence import Setting

_PADDING_COLLATORS = scripts().names["padding_collators"]
_ONE_LENGTH = ("ConstantLengthDataset", "TextDataset")
_GROUPING = ("group_texts", "group_text")
_TO_LONGEST: tuple[object, ...] = (True, "longest")
_TO_LIMIT = "max_length"


def varying_lengths(tree: ast.Module, name: str) -> Setting | None:
    """Return whether lengths vary, with the origin; None where the script leaves it open.

    Args:
        tree: the script.
        name: the script's, for the origin.
    """
    found = list(_evidence(tree))
    fixed = [each for each in found if each[0] is False]
    either = any(each[0] is None for each in found)
    if fixed:
        _, line, text = fixed[0]
        return Setting(value=False, origin=f"{name}:{line}: {text}")
    if either or not found:
        return None
    _, line, text = found[0]
    return Setting(value=True, origin=f"{name}:{line}: {text}")


def _evidence(tree: ast.Module) -> Iterator[tuple[bool | None, int, str]]:
    """Yield what speaks for lengths that vary (True), that do not (False), or for either (None)."""
    assigned = {value for value, _ in _assigned_paddings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in _GROUPING:
            yield False, node.lineno, f"{node.name} makes sequences of one length"
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in _ONE_LENGTH:
            yield False, node.lineno, f"{called}(...) makes sequences of one length"
        for keyword in node.keywords:
            if keyword.arg != "padding":
                continue
            if isinstance(keyword.value, ast.Name):
                one = next(iter(assigned)) if len(assigned) == 1 else None
                yield _varies(one), node.lineno, f"padding={keyword.value.id}"
            elif isinstance(keyword.value, ast.Constant) and _varies(keyword.value.value) is not None:
                yield _varies(keyword.value.value), node.lineno, f"padding={keyword.value.value!r}"
        if called in _PADDING_COLLATORS and not any(keyword.arg == "padding" for keyword in node.keywords):
            yield True, node.lineno, f"{called}(...) pads to the longest sequence"


def _assigned_paddings(tree: ast.Module) -> Iterator[tuple[object, int]]:
    """Yield the values that the script gives to variables of that name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        if any(isinstance(target, ast.Name) and target.id == "padding" for target in node.targets):
            yield (node.value.value if isinstance(node.value, ast.Constant) else None), node.lineno


def _varies(padding: object) -> bool | None:
    if padding == _TO_LIMIT:
        return False
    return True if padding in _TO_LONGEST else None


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
    backward = [node.lineno for node in nodes if isinstance(node, ast.Call) and _last(node.func) == "backward"]
    read = {_last(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr in _OUTPUTS}
    deleted = [(_last(each), node.lineno) for node in nodes if isinstance(node, ast.Delete) for each in node.targets]
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        end = min((line for line in backward if line > node.lineno), default=0)
        for name in ({*map(_last, node.targets)} & read) - {""} if end else ():
            if not any(name == each and node.lineno < line <= end for each, line in deleted):
                yield name, node.lineno


def _last(node: ast.expr) -> str:
    """Return the name of a variable or attribute; empty for anything else."""
    return str(getattr(node, "attr", getattr(node, "id", "")))
