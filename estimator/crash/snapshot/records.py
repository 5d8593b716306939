"""A memory snapshot as plain records: what the allocator of one GPU held, by component and place."""

import ast
import os
import re
import stat
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypedDict

from ...budget import ComponentName, PhaseName, Timeline
from ..records import StackFrame, is_torch_file, own_frame, phase_of

# Source files that recorded stacks name, where they are on this machine: which class and call a line belongs to.
#
# Torch records the file, line and name of a frame, and no class (``appendSymbolized`` in
# ``torch/csrc/profiler/python/combined_traceback.cpp`` of torch 2.13 takes ``co_name``). A file is parsed, never
# imported, and counts only if all frames that were recorded in it stand in functions of their names: otherwise it is
# another version of it.


_MAX_FILES = 200
_MAX_FILE_BYTES = 2 * 2**20
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class SourceFunction:
    """A function in a source file."""

    node: _Function
    class_name: str | None
    """The class that defines it; None: it is no method."""
    methods: frozenset[str] = frozenset()
    """All methods of that class, which are no modules."""

    def called(self, line: int) -> str | None:
        """Return the attribute of ``self`` that a line calls, as a path; None: none, or several.

        Elements of a list of modules are ``*``: ``layers.*`` for ``layer(...)`` in ``for layer in self.layers``.
        """
        calls = [call for call in self._calls if call.lineno <= line <= (call.end_lineno or call.lineno)]
        begun = [call for call in calls if line in (call.lineno, call.func.end_lineno)]
        found = {path for call in begun or calls if (path := self._target(call.func))}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def _calls(self) -> list[ast.Call]:
        return [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]

    @cached_property
    def _locals(self) -> dict[str, str]:
        """Names of local variables that are modules, with the paths of these."""
        found: dict[str, str] = {}
        for node in ast.walk(self.node):
            if isinstance(node, ast.For | ast.comprehension):
                path = next((path for each in ast.walk(node.iter) if (path := _path(each)) is not None), None)
                if path is not None:
                    element = f"{path}.*" if path else "*"
                    found |= {name.id: element for name in ast.walk(node.target) if isinstance(name, ast.Name)}
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                path = _path(node.value)
                if path:
                    found[node.targets[0].id] = path
        return found

    def _target(self, function: ast.expr) -> str | None:
        if isinstance(function, ast.Name):
            return self._locals.get(function.id)
        path = (_path(function) or "").removesuffix(".forward")
        return path if path and path not in self.methods else None


def _path(node: ast.AST) -> str | None:
    """Return the path of an attribute of ``self``; empty: ``self`` itself; None: it is something else."""
    if isinstance(node, ast.Name):
        return "" if node.id == "self" else None
    if isinstance(node, ast.Subscript | ast.Attribute):
        above = _path(node.value)
        if above is None or (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)):
            return above
        return f"{above}.{'*' if isinstance(node, ast.Subscript) else node.attr}".lstrip(".")
    return None


class SourceFiles:
    """The source files of a snapshot's frames.

    Args:
        frames: all frames that were recorded.
        until: Unix seconds of the snapshot: a file that was changed later is another one; None: unknown.
    """

    def __init__(self, frames: Iterable[StackFrame], *, until: float | None = None) -> None:
        self._until = until
        self._frames: dict[str, set[tuple[int, str]]] = {}
        for frame in frames:
            self._frames.setdefault(frame.file, set()).add((frame.line, frame.function))
        self._functions: dict[str, tuple[SourceFunction, ...]] = {}

    def function(self, frame: StackFrame) -> SourceFunction | None:
        """Return the function of a frame; None: its file is not here, or is another version."""
        functions = self._functions.get(frame.file)
        if functions is None:
            functions = self._read(frame.file) if len(self._functions) < _MAX_FILES else ()
            self._functions[frame.file] = functions
        return _at(functions, frame.line, frame.function)

    def _read(self, file: str) -> tuple[SourceFunction, ...]:
        text = _text(file, self._until)
        if text is None:
            return ()
        try:
            with warnings.catch_warnings():  # of the other file's syntax
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
            functions = tuple(_functions(tree, None))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ()
        named = ((line, name) for line, name in self._frames[file] if name.isidentifier())
        return functions if all(_at(functions, line, name) for line, name in named) else ()


def _at(functions: Iterable[SourceFunction], line: int, name: str) -> SourceFunction | None:
    """Return the function of a name that a line stands in; None: the innermost function there has another name."""
    around = [each for each in functions if each.node.lineno <= line <= (each.node.end_lineno or 0)]
    innermost = max(around, key=lambda each: each.node.lineno, default=None)
    return innermost if innermost is not None and innermost.node.name == name else None


def _functions(
    node: ast.AST, class_name: str | None, methods: frozenset[str] = frozenset()
) -> Iterator[SourceFunction]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            names = frozenset(each.name for each in child.body if isinstance(each, _Function))
            yield from _functions(child, child.name, names)
        elif isinstance(child, _Function):
            yield SourceFunction(child, class_name, methods)
            yield from _functions(child, None)
        else:
            yield from _functions(child, class_name, methods)


def _text(file: str, until: float | None) -> bytes | None:
    """Return a regular file's text; None: there is none, it is too large, or it is newer than expected."""
    if not file.endswith(".py"):
        return None
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb") as opened:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MAX_FILE_BYTES:
            return None
        if until is not None and facts.st_mtime > until:
            return None
        return opened.read(_MAX_FILE_BYTES)


# Finds the module of the model in which a stack was recorded: class, path as far as the source tells, and part.


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


# Assigns a recorded stack to a component of the budget, a phase of the step, and the line that allocated.
#
# The rules name functions of torch 2.4 to 2.13, transformers 4.45 to 5, accelerate, DeepSpeed and bitsandbytes.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Origin of allocations, as their stack tells it; all allocations made there share it."""

    component: StackComponent
    phase: PhaseName | None
    place: StackFrame | None
    """The innermost frame outside torch; None: there is none."""
    recorded: bool
    """A stack was recorded, even if no Python frame stands in it."""
    frames: tuple[StackFrame, ...] = ()
    """Its Python frames, innermost first."""


UNRECORDED = Stack(component="unknown", phase=None, place=None, recorded=False)
AUTOGRAD = Stack(component="gradients or temporary", phase="backward", place=None, recorded=True)
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
        recorded=True,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """Tensors that were allocated at one place for one purpose."""

    component: StackComponent
    place: StackFrame | None
    """None: its stack was not recorded, or has no line outside torch."""
    module: ModulePlace | None
    """None: it was not allocated in a module, or its source is not on this machine."""
    bytes: int
    blocks: int
    largest_bytes: int

    def to_json(self) -> "BlockGroupJson":
        """Return the group for ``--json``."""
        return {
            "component": self.component,
            "place": str(self.place) if self.place else None,
            "module": self.module.path if self.module else None,
            "module_class": self.module.class_name if self.module else None,
            "part": self.module.part if self.module else None,
            "bytes": self.bytes,
            "blocks": self.blocks,
            "largest_bytes": self.largest_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAllocation:
    """The allocation that failed, as the history has it."""

    tried_bytes: int
    free_bytes: int | None
    """Free on the GPU as CUDA counted it then."""
    component: StackComponent
    phase: PhaseName | None
    place: StackFrame | None

    def to_json(self) -> "FailedAllocationJson":
        """Return it for ``--json``."""
        return {
            "tried_bytes": self.tried_bytes,
            "free_bytes": self.free_bytes,
            "component": self.component,
            "phase": self.phase,
            "place": str(self.place) if self.place else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """Memory of torch's allocator on one GPU."""

    device: int
    devices: tuple[int, ...]
    """All GPUs in the file, on which the process has allocated."""
    reserved_bytes: int
    allocated_bytes: int
    """Bytes of blocks that tensors hold."""
    waiting_bytes: int
    """Bytes of blocks that are freed once another stream has finished with them."""
    free_blocks: int
    largest_free_bytes: int
    """The largest of them: an allocation must fit into one."""
    private_free_bytes: int
    """Unused in pools of CUDA graphs or of the program's own, which other allocations may not use."""
    segments: int
    expandable: bool
    """The allocator maps memory into expandable segments."""
    groups: tuple[BlockGroup, ...]
    """The largest first."""
    components: dict[StackComponent, int]
    """Bytes of the tensors by component."""
    parts: dict[StackComponent, dict[ModelPart, int]]
    """Bytes by component and part of the model, as far as the source of its modules is on this machine."""
    failed: FailedAllocation | None
    """The last allocation that failed; None: none did, or no history was recorded."""
    timeline: Timeline | None
    """Memory over the last recorded step, without what lies outside torch; None: no history was recorded."""
    has_stacks: bool
    total_bytes: int | None = None
    """Capacity of the GPU, if vramtop wrote the snapshot."""
    allowed_bytes: int | None = None
    """Limit that the program has set with ``set_per_process_memory_fraction``, as far as it is known."""

    @property
    def unallocated_bytes(self) -> int:
        """Reserved, but held by no tensor."""
        return self.reserved_bytes - self.allocated_bytes - self.waiting_bytes

    def to_json(self) -> "MemorySnapshotJson":
        """Return the snapshot for ``--json``."""
        return {
            "device": self.device,
            "devices": list(self.devices),
            "reserved_bytes": self.reserved_bytes,
            "allocated_bytes": self.allocated_bytes,
            "unallocated_bytes": self.unallocated_bytes,
            "waiting_bytes": self.waiting_bytes,
            "free_blocks": self.free_blocks,
            "largest_free_bytes": self.largest_free_bytes,
            "private_free_bytes": self.private_free_bytes,
            "segments": self.segments,
            "expandable_segments": self.expandable,
            "total_bytes": self.total_bytes,
            "allowed_bytes": self.allowed_bytes,
            "components": dict(self.components),
            "parts": {name: dict(parts) for name, parts in self.parts.items()},
            "groups": [group.to_json() for group in self.groups],
            "failed": self.failed.to_json() if self.failed else None,
            "has_stacks": self.has_stacks,
        }


# The JSON of a memory snapshot, key by key (``vramtop explain --json``); its schema is made from these types.


class BlockGroupJson(TypedDict):
    """Tensors that were allocated at one place for one purpose."""

    component: StackComponent
    """Component that they are counted as."""
    place: str | None
    """Line that allocated them: `file:line function`; null: its stack was not recorded, or is torch's own."""
    module: str | None
    """Path of the module in the model; null: allocated in none, or its source is not on this machine."""
    module_class: str | None
    """Class of that module; null: likewise."""
    part: ModelPart | None
    """Part of the model that the module belongs to; null: unknown."""
    bytes: int
    """Sum of their sizes in bytes."""
    blocks: int
    """Number of blocks of the allocator."""
    largest_bytes: int
    """Size of the largest of them."""


class FailedAllocationJson(TypedDict):
    """The last allocation that failed."""

    tried_bytes: int
    """Size of the allocation."""
    free_bytes: int | None
    """Free on the GPU then, as CUDA counted it; null: unknown."""
    component: StackComponent
    """Component that it would have been counted as."""
    phase: PhaseName | None
    """Part of the step; null: unknown."""
    place: str | None
    """Line that asked for it: `file:line function`; null: unknown."""


class MemorySnapshotJson(TypedDict):
    """Memory of torch's allocator on one GPU."""

    device: int
    """GPU, by its number in the process."""
    devices: list[int]
    """All GPUs in the file, on which the process has allocated."""
    reserved_bytes: int
    """Held by the allocator."""
    allocated_bytes: int
    """Held by tensors."""
    unallocated_bytes: int
    """Reserved, but held by no tensor."""
    waiting_bytes: int
    """Bytes of blocks that are freed once another stream has finished with them."""
    free_blocks: int
    """Number of blocks that no tensor holds."""
    largest_free_bytes: int
    """Size of the largest of them: an allocation must fit into one."""
    private_free_bytes: int
    """Unused in pools of CUDA graphs or of the program's own, which other allocations may not use."""
    segments: int
    """Number of segments that the allocator has from CUDA."""
    expandable_segments: bool
    """The allocator maps memory into expandable segments."""
    total_bytes: int | None
    """Memory of the GPU; null: unknown, unless vramtop wrote the snapshot."""
    allowed_bytes: int | None
    """Limit that the program has set with `set_per_process_memory_fraction`; null: none, or unknown."""
    components: dict[StackComponent, int]
    """Bytes of the tensors by component."""
    parts: dict[StackComponent, dict[ModelPart, int]]
    """Bytes of the tensors by component and part of the model, as far as the source of its modules is on this
    machine."""
    groups: list[BlockGroupJson]
    """Tensors by the place that allocated them, the largest first."""
    failed: FailedAllocationJson | None
    """The last allocation that failed; null: none did, or no history was recorded."""
    has_stacks: bool
    """The snapshot has the stacks of its allocations."""
