"""Collators of a script's own that put several sequences of each example into a batch."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...source.evidence import Setting, as_int
from ..python.values import Function, ScriptClass

_METHODS = ("__call__", "torch_call")
_NO_SEQUENCES = re.compile(r"(?i)ids|label|mask|token|position|image|pixel|audio|video|len|extra_keys")
"""Words of what is joined that is no list of sequences: their tokens, or what lies beside them."""
_PADS = re.compile(r"(^|[._])(pad|stack)")
_GROUP = re.compile(r"(?i)(^|_)(group_size|n_?passages|num_passages)$")
_CUTS = (
    re.compile(r"(?i)^(max_)?(q|query)_(max_)?len(gth)?$"),
    re.compile(r"(?i)^(max_)?(p|passage|doc|document)_(max_)?len(gth)?$"),
)
"""Options on the lengths of queries and passages."""
_NEGATIVES = re.compile(r"(?i)(^|_)(n|num|number_of)_(hard_)?neg\w*$|(^|_)(hard_)?negatives?_per_\w+$")


def is_collator(kind: ScriptClass) -> bool:
    """Return True for a class that makes batches, by its name."""
    return "collat" in kind.name.lower()


def line_of_several(value: Any) -> str | None:
    """Return the file and line at which a collator joins lists of several sequences; None if it does not."""
    found = map(value.find, _METHODS) if isinstance(value, ScriptClass) else [value]
    function = next((each for each in found if isinstance(each, Function)), None)
    line = next(_joins(function.node), None) if function is not None else None
    return f"{function.module.name} line {line}" if function is not None and line is not None else None


def sequences_by_option(options: Mapping[str, Setting]) -> Setting | None:
    """Return the sequences of an example, by options on groups of passages or on negatives beside a query.

    They are of a passage's length; a query that is cut shorter counts as the share of one, rounded.
    """
    lengths = [next((as_int(each) for name, each in options.items() if words.search(name)), None) for words in _CUTS]
    query, passage = lengths
    share = min(1.0, query / passage) if query and passage else 1.0
    for name, setting in options.items():
        number = as_int(setting)
        beside = 0 if _GROUP.search(name) else 1 if _NEGATIVES.search(name) else None
        if number is not None and beside is not None:
            return setting.with_value(round(number + beside + share))
    return None


def _joins(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that join lists of sequences, or take several of one example."""
    padded = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _PADS.search(ast.unparse(node.func))
        for each in node.args[:1]
        for name in _names(each)
    }
    for node in ast.walk(tree):
        joined: ast.expr | None = None
        if isinstance(node, ast.For):
            yield from _of_loop(node, _names(node.target), padded)
        elif isinstance(node, ast.ListComp) and len(node.generators) > 1:
            first, second = node.generators[:2]
            joined = node if _names(first.target) & _names(second.iter) else None
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "sum" and len(node.args) == 2:
            joined = node.args[0] if isinstance(node.args[1], ast.List) else None
        if joined is not None and not _NO_SEQUENCES.search(ast.unparse(joined)):
            yield joined.lineno


def _of_loop(loop: ast.For, variables: set[str], padded: set[str]) -> Iterator[int]:
    """Yield the lines of a loop over examples that add several sequences of one to what was made before it.

    Args:
        loop: the loop.
        variables: an example.
        padded: lists that become a batch: what is added to one is a sequence, whatever its name.
    """
    inside = [node for each in loop.body for node in ast.walk(each)]
    made = {name for node in inside if isinstance(node, ast.Assign) for name in _names(node)}
    parts = set(variables)
    for each in loop.body:
        if isinstance(each, ast.Assign) and parts & _names(each.value):
            parts |= {name for target in each.targets for name in _names(target)}
    loops = [each for each in inside if isinstance(each, ast.For)]
    nested = {node for each in loops for node in ast.walk(each)}
    over_parts = {node for each in loops if parts & _names(each.iter) for node in ast.walk(each)}
    for node in inside:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        into, given = node.func.value, node.args[0]
        if (
            node in over_parts
            and node.func.attr == "append"
            and isinstance(into, ast.Name)
            and into.id in padded - made
        ):
            yield node.lineno
            continue
        extends = node.func.attr == "extend"
        adds = (extends or (node.func.attr == "append" and node in nested)) and bool(variables & _names(given))
        words = ast.unparse(into) + (ast.unparse(given) if extends else "")
        is_list = isinstance(into, ast.Name | ast.Attribute) and not _names(into) & made
        if adds and is_list and not _NO_SEQUENCES.search(words):
            yield node.lineno


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
