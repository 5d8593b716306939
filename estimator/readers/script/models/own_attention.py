"""The attention of models whose classes stand in the script's own files.

Since 4.36 transformers takes sdpa for classes that say ``_supports_sdpa = True``, and eager attention for others
(``PreTrainedModel`` in modeling_utils.py).
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ....job import UncertaintyDirection
from ...source import Setting
from ..python import Call, External, Function, ScriptClass, ScriptModule
from .notes import Notes

_OF_ATTENTION = re.compile(r"(?i)att(n|ention)")
_SDPA = {"sdpa", "scaled_dot_product_attention", "ALL_ATTENTION_FUNCTIONS"}
_KINDS = (
    ("flash_attention_2", re.compile(r"(?i)flash_?attn|flash_?attention")),
    ("sdpa", re.compile(r"scaled_dot_product_attention|memory_efficient_attention")),
    ("eager", re.compile(r"softmax")),
)
"""Attention by the functions that compute it; xformers' takes the memory of sdpa."""
_COMPUTES = re.compile(
    r"\.(forward|_\w*(attn|attention)_forward|[A-Z]\w*(DecoderLayer|MLP|RMSNorm|Model|For[A-Z]\w+))$"
)
"""Classes and methods that hold a model's activations or logits."""
_DIVIDES = re.compile(
    r"(?!get_|is_|has_)(?i:\w*(ring_(flash_)?att|zigzag|ulysses|(seq|sequence|context)_parallel|dist_(flash_)?att|lightseq))"
)
"""Names of what computes attention over a sequence whose parts lie on several GPUs."""


@dataclass(frozen=True, slots=True)
class OwnAttention:
    """What the files of a class say of its attention, where transformers' default may not hold."""

    name: str | None
    """A value of ``attn_implementation``; None: it cannot be decided, and transformers' default counts."""
    where: str
    """The file and line that compute it, for people."""
    sentence: str
    direction: UncertaintyDirection


def own_attention(kind: ScriptClass | None) -> OwnAttention | None:
    """Return what the files of a class and its bases say of attention; None where transformers' default holds.

    Args:
        kind: the class that makes the model; None: a library's.
    """
    if kind is None or not any(base.endswith("PreTrainedModel") for base in kind.external_bases()):
        return None
    modules = list(_modules(kind))
    where = next((place for module in modules for place in _softmax_of_attention(module)), None)
    supported = kind.find("_supports_sdpa")
    if where is None or supported is True:
        return None
    if supported is not False and any(_SDPA & set(_words(module.tree)) for module in modules):
        sentence = f"{where}: whether {kind.name} runs eager attention or sdpa is not known; sdpa is counted."
        return OwnAttention(None, where, sentence, "more")
    sentence = f"{where}: {kind.name} computes attention itself, without sdpa; eager attention is counted."
    return OwnAttention("eager", where, sentence, "less")


def doubt_patch(call: Call, notes: Notes) -> bool:
    """Note what a script puts in the place of transformers' methods and classes, and sequences that it divides.

    Returns:
        False where it does neither.
    """
    new, key = call.value(0), "parallel.context"
    patches = isinstance(call.receiver, External) and isinstance(new, Function | ScriptClass)
    patches = patches and call.path.startswith("transformers.") and _COMPUTES.search(call.path) is not None
    trees = [new.node, new.module.tree] if patches and isinstance(new, Function | ScriptClass) else []
    divides = any(_DIVIDES.match(word) for tree in trees for word in _words(tree))
    what = f"replaces {'.'.join(call.path.split('.')[-2:])}" if patches else f"calls {call.name}(...)"
    divides = divides or (call.name.islower() and _DIVIDES.match(call.name) is not None)
    if divides:
        if all(doubt.key != key for doubt in notes.doubts.values()):
            sentence = (
                f"{call.where}: the script {what}, by which GPUs may share a sequence; parallel.context says how many."
            )
            notes.doubt(sentence, "activations", "logits", direction="less", key=key)
    elif patches:
        sentence = f"{call.where}: the script {what}; what transformers has there is counted."
        notes.doubt(sentence, "activations", "logits")
    return patches or divides


def patch_attention(call: Call, notes: Notes) -> bool:
    """Note which attention a script puts in the place of a library's: ``LlamaAttention.forward = forward``.

    Returns:
        False where the call is no such assignment.
    """
    new = call.value(0)
    is_patch = isinstance(call.receiver, External) and isinstance(new, Function | ScriptClass)
    if not is_patch or not re.search(r"Attention\w*(\.forward)?$", call.path):
        return False
    for words in (set(_words(new.node)), set(_words(new.module.tree))):
        kind = next((name for name, pattern in _KINDS if any(map(pattern.search, words))), None)
        if kind is not None:
            text = f"{'.'.join(call.path.split('.')[-2:])} = {new.name}"
            notes.hints["attn_implementation"] = Setting(value=kind, origin=f"{call.where}: {text}")
            return True
    return False


def _modules(kind: ScriptClass, depth: int = 0) -> Iterator[ScriptModule]:
    """Yield the files of a class and of its bases."""
    yield kind.module
    for base in kind.bases if depth < 10 else ():
        if isinstance(base, ScriptClass):
            yield from _modules(base, depth + 1)


def _softmax_of_attention(module: ScriptModule) -> Iterator[str]:
    """Yield the places at which classes and functions of attention take a softmax."""
    for part in module.tree.body if module.tree is not None else ():
        if isinstance(part, ast.ClassDef | ast.FunctionDef) and _OF_ATTENTION.search(part.name):
            for node in ast.walk(part):
                if isinstance(node, ast.Call) and "softmax" in (
                    getattr(node.func, "attr", None),
                    getattr(node.func, "id", None),
                ):
                    yield f"{module.name} line {node.lineno}"


def _words(tree: ast.AST | None) -> Iterator[str]:
    """Yield the names and texts in a file or a part of one."""
    for node in ast.walk(tree) if tree is not None else ():
        for part in ("id", "attr", "name", "value"):
            word = getattr(node, part, None)
            if isinstance(word, str):
                yield word
