"""Recorded stacks: the module of the model, the component of the budget, the phase and the line that allocated.

The rules name functions of torch 2.4 to 2.13, transformers 4.45 to 5, accelerate, DeepSpeed and bitsandbytes.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from ...budget import ComponentName, PhaseName
from ..records import StackFrame, is_torch_file, own_frame, phase_of
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


class ModulePlace(NamedTuple):
    """A module of the model, as a stack shows it."""

    path: str
    """``model.layers.*.mlp``; a class in brackets where the source does not say the attribute."""
    class_name: str
    """The innermost class that is not torch's own, else torch's."""
    part: ModelPart


class _Call(msgspec.Struct, frozen=True):
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
    return not is_torch_file(file) or (_LIBRARY in file and not file.endswith("torch/nn/modules/module.py"))


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


StackComponent = ComponentName | Literal["gradients or temporary", "unknown"]
"""``gradients or temporary``: allocated by autograd itself; ``unknown``: no stack was recorded, or it does not tell."""
_BUILDING_FRAMES = 6
"""Innermost frames among which a module's ``__init__`` stands: a trainer's stands farther out."""
MAX_FRAMES = 200
"""Frames of a stack that are looked at."""
_COMMUNICATION = ("_fsdp_collectives.py", "distributed_c10d.py", "_functional_collectives", "runtime/comm/", "nccl")
_COMMUNICATION_FUNCTIONS = (
    *("init_all_gather_outputs", "alloc_all_gather_outputs", "_all_gather_flat_param", "foreach_reduce"),
    *("_alloc_padded_unsharded_flat_param", "_ddp_init_helper", "all_gather_into_tensor", "reduce_scatter_tensor"),
)
_OPTIMIZER_STATE = ("_init_group", "init_state", "_init_state", "initialize_state", "get_state_buffer", "state_init")
_GRADIENTS = ("to_accumulated_grad_if_needed", "_accumulate_sharded_grad", "_cast_grad_to_param_dtype")
_WEIGHTS = (
    "reset_parameters",
    "_init_sharded_param",
    "create_parameter",
    "materialize",
    "_quantize",
    "from_prequantized",
)
_INPUTS = ("send_to_device", "_prepare_input", "_prepare_inputs", "default_collate", "_try_put_index", "pin_memory")
_LOSS_FILES = ("loss/loss_utils.py", "torch/nn/modules/loss.py", "fused_linear_cross_entropy", "cross_entropy.py")
_LOSS_FUNCTIONS = ("cross_entropy", "nll_loss", "log_softmax", "logsumexp", "selective_log_softmax")


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of allocations, as their stack tells it; all allocations made there share it."""

    component: StackComponent
    phase: PhaseName | None
    place: StackFrame | None
    """The innermost frame outside torch; None: there is none."""
    frames: tuple[StackFrame, ...] = ()
    """Its Python frames, innermost first."""


UNRECORDED = Stack(component="unknown", phase=None, place=None)
AUTOGRAD = Stack(component="gradients or temporary", phase="backward", place=None)
"""A stack without a Python frame: autograd's own thread, which has none."""


class Stacks:
    """Reads stacks, each list of frames once; frames that were read stay, as they are known by their ids."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Stack] = {}
        self._frames: dict[int, tuple[dict[Any, Any], StackFrame]] = {}
        self._alike: dict[tuple[StackFrame, ...], Stack] = {}

    @property
    def frames(self) -> list[StackFrame]:
        """All frames that were read."""
        return [frame for _, frame in self._frames.values()]

    @property
    def has_places(self) -> bool:
        """True if one of the stacks that were read has a frame outside torch."""
        return any(stack.place is not None for stack in self._alike.values())

    def stack(self, frames: Any) -> Stack:
        """Return what a list or tuple of frames says: dictionaries with filename, line and name, innermost first."""
        if not isinstance(frames, list | tuple):
            return UNRECORDED
        if not frames:
            return AUTOGRAD
        key = tuple(map(id, frames[:MAX_FRAMES]))  # torch's snapshot has each frame once
        found = self._known.get(key)
        if found is None:
            dicts = [each for each in frames[:MAX_FRAMES] if isinstance(each, dict)]
            read = tuple(map(self._frame, dicts))
            found = self._alike.get(read)
            if found is None:
                found = self._alike[read] = classify(read)
            if len(dicts) == len(key):
                self._known[key] = found
        return found

    def _frame(self, frame: dict[Any, Any]) -> StackFrame:
        known = self._frames.get(id(frame))
        if known is None:
            line = frame.get("line")
            read = StackFrame(
                file=_plain(frame.get("filename", ""))[:500].replace("\\", "/"),
                line=line if type(line) is int else 0,
                function=_plain(frame.get("name", ""))[:200],
            )
            known = self._frames[id(frame)] = frame, read
        return known[1]


def _plain(value: object) -> str:
    return str(value).encode(errors="replace").decode()


def classify(frames: Sequence[StackFrame]) -> Stack:
    """Return what a stack allocated, innermost frame first."""
    python = [frame for frame in frames if frame.file.endswith(".py") or frame.file.startswith("<")]
    phase = phase_of(frames)
    if phase is None and _mentions(frames, "autograd::Engine"):
        phase = "backward"
    return Stack(
        component=_component(frames, python, phase),
        phase=phase,
        place=own_frame(python),
        frames=tuple(python),
    )


def _component(frames: Sequence[StackFrame], python: Sequence[StackFrame], phase: PhaseName | None) -> StackComponent:
    functions = {frame.function for frame in frames}
    if functions.intersection(_COMMUNICATION_FUNCTIONS) or any(
        part in frame.file for frame in frames for part in _COMMUNICATION
    ):
        return "communication"
    if phase == "optimizer step":
        return "optimizer" if functions.intersection(_OPTIMIZER_STATE) else "temporary"
    if functions.intersection(_GRADIENTS) or _mentions(frames, "AccumulateGrad"):
        return "gradients"
    if phase == "backward":
        recomputed = any("checkpoint.py" in frame.file for frame in frames)
        return "activations" if recomputed else "gradients or temporary"
    if functions.intersection(_INPUTS):
        return "temporary"
    if phase == "loading" or functions.intersection(_WEIGHTS) or _constructs(python):
        return "weights"
    if phase in ("forward", "generation"):
        return "logits" if _is_loss(frames, functions) or _is_head(python) else "activations"
    if _is_loss(frames, functions):
        return "logits"
    return "temporary" if phase == "saving" else "unknown"


def _mentions(frames: Sequence[StackFrame], word: str) -> bool:
    """Return True if a C++ frame names it; such frames are recorded with ``stacks="all"``."""
    return any(word in frame.function for frame in frames)


def _constructs(python: Sequence[StackFrame]) -> bool:
    """Return True if a module is being built on the device: its parameters and buffers."""
    calls = any(frame.function in ("_call_impl", "_wrapped_call_impl", "backward") for frame in python)
    return not calls and any(
        frame.function == "__init__" and ("torch/nn/" in frame.file or not is_torch_file(frame.file))
        for frame in python[:_BUILDING_FRAMES]
    )


def _is_loss(frames: Sequence[StackFrame], functions: set[str]) -> bool:
    return bool(functions.intersection(_LOSS_FUNCTIONS)) or any(
        part in frame.file for frame in frames for part in _LOSS_FILES
    )


def _is_head(python: Sequence[StackFrame]) -> bool:
    """Return True for a linear layer that the model class itself calls: its head, not a layer of a block."""
    in_linear = any(frame.file.endswith("nn/modules/linear.py") for frame in python[:3])
    return in_linear and sum("/modeling_" in frame.file and frame.function == "forward" for frame in python) == 1
