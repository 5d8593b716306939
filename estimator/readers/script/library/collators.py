"""Collators of a script's own that put several sequences of each example into a batch."""

import ast
import re
from collections.abc import Iterator, Mapping

from ...source.evidence import Setting, as_int
from ..python.values import Function, ScriptClass

_METHODS = ("__call__", "torch_call")
_NO_SEQUENCES = re.compile(r"(?i)ids|label|mask|token|position|image|pixel|audio|video|len|extra_keys")
"""Words of what is joined that is no list of sequences: their tokens, or what lies beside them."""
_GROUP = re.compile(r"(?i)(^|_)(group_size|n_?passages|num_passages)$")
_NEGATIVES = re.compile(r"(?i)(^|_)(n|num|number_of)_(hard_)?neg\w*$|(^|_)(hard_)?negatives?_per_\w+$")


def is_collator(kind: ScriptClass) -> bool:
    """Return True for a class that makes batches, by its name."""
    return "collat" in kind.name.lower()


def line_of_several(kind: ScriptClass) -> str | None:
    """Return the file and line at which a collator joins lists of several sequences; None if it does not."""
    for method in _METHODS:
        function = kind.find(method)
        if isinstance(function, Function):
            line = next(_joins(function.node), None)
            return None if line is None else f"{function.module.name} line {line}"
    return None


def sequences_by_option(options: Mapping[str, Setting]) -> Setting | None:
    """Return the sequences of an example, by options on groups of passages or on negatives beside a query."""
    for name, setting in options.items():
        number = as_int(setting)
        beside = 1 if _GROUP.search(name) else 2 if _NEGATIVES.search(name) else 0
        if number is not None and beside:
            return setting.with_value(number + beside)
    return None


def _joins(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that join lists of sequences, or take several of one example."""
    for node in ast.walk(tree):
        joined: ast.expr | None = None
        if isinstance(node, ast.For):
            yield from _of_loop(node, _names(node.target))
        elif isinstance(node, ast.ListComp) and len(node.generators) > 1:
            first, second = node.generators[:2]
            joined = node if _names(first.target) & _names(second.iter) else None
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "sum" and len(node.args) == 2:
            joined = node.args[0] if isinstance(node.args[1], ast.List) else None
        if joined is not None and not _NO_SEQUENCES.search(ast.unparse(joined)):
            yield joined.lineno


def _of_loop(loop: ast.For, variables: set[str]) -> Iterator[int]:
    """Yield the lines of a loop over examples that add several sequences of one to what was made before it."""
    inside = [node for each in loop.body for node in ast.walk(each)]
    made = {name for node in inside if isinstance(node, ast.Assign) for name in _names(node)}
    nested = {node for each in inside if isinstance(each, ast.For) for node in ast.walk(each)}
    for node in inside:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        into, given = node.func.value, node.args[0]
        extends = node.func.attr == "extend"
        adds = (extends or (node.func.attr == "append" and node in nested)) and bool(variables & _names(given))
        words = ast.unparse(into) + (ast.unparse(given) if extends else "")
        is_list = isinstance(into, ast.Name | ast.Attribute) and not _names(into) & made
        if adds and is_list and not _NO_SEQUENCES.search(words):
            yield node.lineno


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
