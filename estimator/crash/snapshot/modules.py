"""Finds the module of the model in which a stack was recorded: class, path as far as the source tells, and part."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from ..records import StackFrame
from ..step_place import is_torch_file
from .source_files import SourceFiles, SourceFunction

ModelPart = Literal["attention", "MLP", "experts", "norms", "embedding", "head", "rest"]
"""Part of a model; ``rest``: none that its names tell, such as the residual stream of a block."""
_PARTS: tuple[tuple[ModelPart, re.Pattern[str]], ...] = (
    # of the innermost name that says something; the first row with a match
    ("norms", re.compile(r"norm|^ln(_|\d|$)")),
    ("experts", re.compile(r"expert|moe|router")),
    ("MLP", re.compile(r"mlp|feed_?forward|ffn|^(ff|fc|c_fc)(_|\d|$)|intermediate")),
    ("attention", re.compile(r"attn|attention")),
    ("embedding", re.compile(r"embed|^w[tp]e$")),
    ("head", re.compile(r"lm_head|head$|classifier|^score$")),
)
_WHOLE = re.compile(r"(DecoderLayer|EncoderLayer|Model|LM|Transformer|Classification)$")
"""Classes that hold parts of several kinds, whatever their names say."""
_LIBRARY = "torch/nn/modules/"
_CALL = "torch/nn/modules/module.py"


class ModulePlace(NamedTuple):
    """A module of the model, as a stack shows it."""

    path: str
    """``model.layers.*.mlp``; a class in brackets where the source does not say the attribute."""
    class_name: str
    """The innermost class that is not torch's own, else torch's."""
    part: ModelPart


@dataclass(frozen=True, slots=True)
class _Call:
    at: int
    """Index in the stack."""
    class_name: str
    own: bool
    """It is not one of torch's layers."""


def module_of(frames: Sequence[StackFrame], sources: SourceFiles) -> ModulePlace | None:
    """Return the module whose ``forward`` a stack stands in; None: in none, or their source is not here.

    Args:
        frames: of a stack, innermost first.
        sources: the files that they name.
    """
    functions = [sources.function(frame) for frame in frames]
    calls = [
        _Call(at, function.class_name, own=not is_torch_file(frame.file))
        for at, (frame, function) in enumerate(zip(frames, functions, strict=True))
        if function is not None and function.class_name and frame.function == "forward" and _is_layer(frame.file)
    ]
    calls.reverse()  # the outermost first
    if not any(call.own for call in calls):
        return None
    names: list[str] = []
    for outer, inner in pairwise(calls):
        name = _attribute(frames, functions, outer, inner)
        if name is None and not inner.own:
            break  # which of its layers does not matter more than the class that has them
        names.append(name or f"({inner.class_name})")
    own = [call.class_name for call in calls if call.own]
    words = [*own[:1], *(word for name in names for word in name.split(".")), *own[-1:]]
    return ModulePlace(".".join(names), own[-1], _part(words))


def _is_layer(file: str) -> bool:
    """Return False for what calls the model, or wraps it: FSDP, DDP, torch's module class itself."""
    return not is_torch_file(file) or (_LIBRARY in file and not file.endswith(_CALL))


def _attribute(
    frames: Sequence[StackFrame], functions: Sequence[SourceFunction | None], outer: _Call, inner: _Call
) -> str | None:
    """Return the attribute through which a module calls another: at the innermost line of its own class."""
    for at in range(inner.at + 1, outer.at + 1):
        function = functions[at]
        if function is not None and function.class_name == outer.class_name:
            return function.called(frames[at].line)
    return None


def _part(words: Sequence[str]) -> ModelPart:
    for word in reversed([word for word in words if not _WHOLE.search(word)]):
        for part, pattern in _PARTS:
            if pattern.search(word.lower()):
                return part
    return "rest"
