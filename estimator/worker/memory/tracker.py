"""Tracker of all storages that torch allocates and frees, each with its component.

A dispatch mode sees each new storage, a finalizer its release, and a patched ``resize_`` the storages that FSDP empties
and fills in place. A record gets its component as soon as that is known, at the latest when its phase ends.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..replaced import replaced
from .allocator import RELEASED, RETURNED, USED_ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# History of a traced job: storages as they are allocated and freed, and the phases of its steps.


BLOCK_BYTES = 512
"""CUDA's allocator rounds sizes up to whole blocks."""
COMPONENTS = ("weights", "gradients", "optimizer", "activations", "logits", "temporary", "communication")
REHEARSED = ("inputs", "other_models")
"""Components of what a rehearsed program copies to the GPU, and of models that it does not train; a traced step makes
its inputs there, and other models are added to it."""


@dataclass(eq=False)
class StorageRecord:
    """One storage between its allocation and its release."""

    number: int
    size: int
    """Bytes, in whole blocks of the allocator."""
    nbytes: int
    """Bytes asked for."""
    shape: tuple[int, ...]
    dtype: str
    module: str
    """Path of the module whose forward or backward pass allocated it; empty outside of modules."""
    stream: int
    """0 is the compute stream; others are numbered in the order of their first use."""
    component: str | None = None
    host: bool = False
    """In a real run it would be in host memory, or on a GPU other than the one that is looked at."""
    used_on: tuple[int, ...] = ()
    """Other streams that use it (``record_stream``): its block returns to its pool once they are done with it."""
    gpu: int = 0
    """Number of its GPU among those of the process."""
    line: str = ""
    """File and line of the program that made it, in a rehearsal."""
    own_line: str = ""
    """Where that is a library's: the line in the program's own folder that led there."""


@dataclass
class Phase:
    """One phase of one step."""

    step: int
    name: str
    start: int
    """Index of its first event."""


@dataclass(frozen=True)
class PhaseSpan:
    """One phase of one step, with the events in it."""

    step: int
    name: str
    start: int
    """Index of its first event."""
    end: int
    """Index of the event after its last."""


@dataclass
class AllocationHistory:
    """Records, events and phases, in order."""

    records: list[StorageRecord] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    """``n + 1`` allocates record n; ``-(n + 1)`` frees it."""
    phases: list[Phase] = field(default_factory=list)
    returns: list[tuple[int, int]] = field(default_factory=list)
    """The number of events before the block of a freed record with ``used_on`` returns to its pool, and the record."""


def phase_spans(history: AllocationHistory) -> list[PhaseSpan]:
    """Return the phases of all steps with their events."""
    ends = [phase.start for phase in history.phases[1:]] + [len(history.events)]
    pairs = zip(history.phases, ends)  # noqa: B905 - not in Python 3.9
    return [PhaseSpan(phase.step, phase.name, phase.start, end) for phase, end in pairs]


def block_bytes(nbytes: int) -> int:
    """Return a size in whole blocks of the allocator."""
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def settled(history: AllocationHistory) -> AllocationHistory:
    """Return the history until the phase ``end``, with releases that follow each other in the order of allocation.

    Nothing that happens after the end is part of a step. The order of releases without an allocation between them does
    not matter to the allocator, and may be that of a hash table (autocast's cache) or of nested deallocators.
    """
    end = next((phase.start for phase in history.phases if phase.name == "end"), len(history.events))
    returns = [each for each in history.returns if each[0] <= end]
    starts = sorted(
        {at for at in (*(phase.start for phase in history.phases), *(at for at, _ in returns), end) if at <= end}
    )
    events: list[int] = []
    released: list[int] = []
    before = 0
    for start in starts:
        for event in history.events[before:start]:
            if event < 0:
                released.append(event)
                continue
            if released:
                events += sorted(released, reverse=True)
                released.clear()
            events.append(event)
        events += sorted(released, reverse=True)
        released.clear()
        before = start
    return AllocationHistory(history.records, events, history.phases, returns)


# Results of operations on fake tensors, made again from the shapes of their first results.
#
# ``FakeTensorMode`` has such a cache of its own, but looking up an operation in it takes longer than all else that a
# trace does. This one knows plain strided CPU tensors only, and these kinds of operations: those whose results have
# storages of their own, views, and those that return nothing or what they write into. All others go to the mode.


MAX_ENTRIES = 50_000
_VALUES = (
    int,
    float,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_CPU, _STRIDED = torch.device("cpu"), torch.strided
_TAGS = torch.Tag
_UNSURE_TAGS = {_TAGS.data_dependent_output, _TAGS.dynamic_output_shape, _TAGS.inplace_view}
_FRESH, _VIEW, _WRITTEN, _UNTOUCHED, _UNKNOWN = range(5)

_OF_META = {
    torch.ops.aten.native_batch_norm.default: 5,
    torch.ops.aten.native_batch_norm_backward.default: 7,
}
"""Operations with meta kernels for training, and which argument says that it is."""
_KINDS: dict[Any, int] = {}
"""Kind of each operation: how its results relate to its arguments."""
_ENTRIES: dict[tuple[Any, ...], Any] = {}
"""Shape, stride, dtype and offset of each result, by operation and arguments; None: not kept."""


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on fake tensors, whose mode is active, below a dispatch mode."""
    kind = _kind_of(func)
    if kind == _UNKNOWN or (kind == _VIEW and torch.is_inference_mode_enabled()):  # whose views follow their sources
        return func(*args, **kwargs)
    if kind == _UNTOUCHED:
        with torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)
    parts: list[Any] = [func, torch.get_default_dtype()]
    ignores_values = kind == _FRESH and any(map(_hides_values, args))
    if not (_describe(args, parts, kind == _VIEW, ignores_values) and (not kwargs or _describe_named(kwargs, parts))):
        return func(*args, **kwargs)
    key = tuple(parts)
    entry = _ENTRIES.get(key)
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    if mode is None:  # the arguments are fake, and what else runs is not
        mode = _mode_of(args) or _mode_of(kwargs.values())
    if entry is None and mode is not None and _is_of_meta(func, args):
        with in_kernel_invocation_manager(mode):
            entry = _of_meta(func(*args, **kwargs))
        _keep(key, entry)
    if entry is None:
        result = func(*args, **kwargs)
        if key not in _ENTRIES:
            _keep(key, _entry(kind, args, result))
        return result
    if kind == _WRITTEN:
        return args[0] if entry is _SELF else None
    storage = args[0].untyped_storage() if kind == _VIEW else None
    many, described = entry
    made = [None if each is None else _make(mode, each, storage) for each in described]
    return many(made) if many else made[0]


_SELF, _NOTHING = object(), object()


def _keep(key: tuple[Any, ...], entry: Any) -> None:
    if len(_ENTRIES) >= MAX_ENTRIES:
        _ENTRIES.clear()
    _ENTRIES[key] = entry


def _is_of_meta(func: Any, args: tuple[Any, ...]) -> bool:
    """Return True if torch's meta kernel gives the shapes that fake tensors find only by many operations."""
    at = _OF_META.get(func)
    return args[at] is True if at is not None else func._schema.name.startswith("aten::_foreach_")


def _of_meta(result: Any) -> Any:
    if result is None:
        return _NOTHING
    many = type(result) if isinstance(result, (list, tuple)) else None
    return many, _layouts(result if many else [result])


def _layouts(results: Iterable[Any]) -> list[Any]:
    """Return what makes each result again; None for a gradient that nobody asks for."""
    return [
        None if each is None else (each.shape, each.stride(), each.dtype, each.storage_offset()) for each in results
    ]


def shares_storage(func: Any) -> bool:
    """Return True for an operation whose results are views of its first argument, or that argument, written into."""
    return _kind_of(func) in (_VIEW, _WRITTEN)


def _kind_of(func: Any) -> int:
    kind = _KINDS.get(func)
    if kind is None:
        kind = _KINDS[func] = _kind(func)
    return kind


def _kind(func: Any) -> int:
    """Return how an operation's results relate to its arguments, by its schema."""
    schema = getattr(func, "_schema", None)
    if schema is None or not isinstance(func, torch._ops.OpOverload) or _UNSURE_TAGS & set(func.tags):
        return _UNKNOWN
    if func.namespace == "profiler":  # reads and writes no tensor
        return _UNTOUCHED
    if func.namespace == "fsdp" and not schema.returns:  # copies into tensors that it is given
        return _WRITTEN
    if func.namespace not in ("aten", "prims"):
        return _UNKNOWN
    if func is torch.ops.aten._unsafe_view.default:  # a view, though its schema does not say so
        return _VIEW
    written = [each.alias_info for each in schema.arguments if each.alias_info is not None]
    returned = [each.alias_info for each in schema.returns if each.alias_info is not None]
    first = schema.arguments[0].alias_info if schema.arguments else None
    if not written and not returned:
        return _FRESH if schema.returns else _UNKNOWN
    if len(written) != 1 or first is None:
        return _UNKNOWN
    if first.is_write:
        return _WRITTEN
    return _VIEW if len(schema.returns) == 1 and returned else _UNKNOWN


def _hides_values(value: Any) -> bool:
    """Return True for an argument that leaves the result's values unknown, and its dtype independent of numbers."""
    return type(value) is FakeTensor and value.constant is None and value.dtype.is_floating_point and value.dim() > 0


def _describe(values: Any, parts: list[Any], offsets: bool, ignores_values: bool = False) -> bool:
    """Add what results depend on; False: a value is of another kind."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            is_known = value.constant is not None and not ignores_values
            if is_known or value.fake_device != _CPU or value.dtype.is_complex or value.layout != _STRIDED:
                return False
            parts += (value.shape, value.stride(), value.dtype)
            if offsets:
                parts.append(value.storage_offset())
        elif kind in _VALUES:
            parts += (kind, value)
        elif kind is list or kind is tuple or kind is torch.Size:
            parts.append(len(value))
            if not _describe(value, parts, offsets, ignores_values):
                return False
        else:
            return False
    return True


def _describe_named(values: dict[str, Any], parts: list[Any]) -> bool:
    parts += sorted(values)
    return _describe([values[name] for name in sorted(values)], parts, False)


def _entry(kind: int, args: tuple[Any, ...], result: Any) -> Any:
    """Return what is needed to make a result again; None: it cannot be."""
    if kind == _WRITTEN:
        return _NOTHING if result is None else _SELF if result is args[0] else None
    many = type(result) if isinstance(result, (list, tuple)) else None
    whole = list(result) if many else [result]
    results = [each for each in whole if each is not None]  # a gradient that nobody asks for is None
    if not results or any(type(each) is not FakeTensor or each.fake_device != _CPU for each in results):
        return None
    if any(
        each.constant is not None or each.dtype.is_complex or each.requires_grad or each.layout != _STRIDED
        for each in results
    ):
        return None
    storages = {each.untyped_storage()._cdata for each in results}
    if kind == _VIEW:
        if storages != {args[0].untyped_storage()._cdata}:
            return None
    else:
        inputs = {each.untyped_storage()._cdata for each in args if type(each) is FakeTensor}
        if len(storages) != len(results) or storages & inputs or any(map(_is_partial, results)):
            return None
    return many, _layouts(whole)


def _is_partial(tensor: Any) -> bool:
    """Return True if a tensor's storage is not that of ``torch.empty_strided``."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))  # noqa: B905 - 3.9
    if not tensor.numel():
        elements = 0
    return bool(tensor.storage_offset() != 0 or tensor.untyped_storage().nbytes() != elements * tensor.element_size())


def _mode_of(values: Iterable[Any]) -> Any:
    """Return the mode of the first fake tensor; None: there is none."""
    for value in values:
        if type(value) is FakeTensor:
            return value.fake_mode
        if isinstance(value, (list, tuple)) and (mode := _mode_of(value)) is not None:
            return mode
    return None


_EMPTY, _EMPTY_STRIDED, _SUBCLASS = torch.empty, torch.empty_strided, torch.Tensor._make_subclass
"""torch's own, which a program may find replaced."""
_NEW = "_vramtop_new"
"""Attributes of a new fake tensor, kept by its mode."""


def new_bytes(mode: Any, count: int) -> Any:
    """Return a new fake tensor of so many bytes."""
    return _make(mode, ((count,), (1,), torch.uint8, 0), None)


def _make(mode: Any, described: tuple[Any, ...], storage: Any) -> Any:
    shape, stride, dtype, offset = described
    with torch._C._DisableTorchDispatch():
        if storage is None:
            tensor = _EMPTY_STRIDED(shape, stride, dtype=dtype, device="meta")
        else:
            tensor = _EMPTY(0, dtype=dtype, device="meta")
            tensor.set_(storage, offset, shape, stride)
    new = getattr(mode, _NEW, None)
    if new is None:
        made = FakeTensor(mode, tensor, _CPU)
        setattr(mode, _NEW, dict(made.__dict__))
        return made
    made = _SUBCLASS(FakeTensor, tensor, False, dispatch_device=True, device_for_backend_keys=_CPU)
    made.__dict__.update(new)  # all that its constructor does, which takes longer than the operation
    return made


# Tracks how far the streams of a GPU are known to have got, while the CPU issues work ahead of them.
#
# The caching allocator gives a block that another stream uses (``record_stream``) back to its pool when the events
# that it recorded at the release have passed, which it looks up at the next allocation (``free_block``,
# ``insert_events`` and ``process_events`` in ``c10/cuda/CUDACachingAllocator.cpp``). Here the CPU takes no time: an
# event has passed when the CPU has waited for it, or for work behind it. Standard library only.


Reach = dict[int, int]
"""By stream, the position in the order of issue up to which its work is done."""


class StreamOrder:
    """Vector clocks of streams: what is done when a stream has done all that was issued to it."""

    def __init__(self) -> None:
        self._position = 0
        self._issued: Reach = {}
        """By stream, the position of its latest work."""
        self._implied: dict[int, Reach] = {}
        """By stream, what other streams have done once it has done all of its work."""
        self._known: Reach = {}
        """What the CPU has waited for."""

    def issue(self, stream: int) -> None:
        """Give a stream some work."""
        self._position += 1
        self._issued[stream] = self._position

    def record(self, stream: int) -> Reach:
        """Return what is done when an event that is recorded on a stream now has passed."""
        return {**self._implied.get(stream, {}), stream: self._issued.get(stream, 0)}

    def wait(self, stream: int, event: Reach) -> None:
        """Let a stream's later work wait for an event."""
        _merge(self._implied.setdefault(stream, {}), event)
        self.issue(stream)

    def synchronize(self, event: Reach) -> None:
        """Let the CPU wait for an event."""
        _merge(self._known, event)

    def has_passed(self, stream: int, event: Reach) -> bool:
        """Return True if the CPU knows that an event of this stream has passed."""
        return self._known.get(stream, 0) >= event[stream]


def _merge(reach: Reach, other: Reach) -> None:
    for stream, position in other.items():
        if reach.get(stream, 0) < position:
            reach[stream] = position


PRECEDENCE = {
    component: rank
    for rank, component in enumerate(
        (
            *("weights", "other_models", "gradients", "optimizer"),
            *("logits", "inputs", "communication", "temporary", "activations"),
        )
    )
}
"""Order in which components claim a storage; the lowest rank wins."""
_FSDP1_PART = "_fsdp_wrapped_module"
"""In a path, the module inside of one that FSDP1 has wrapped."""
CAST, SUM = torch.ops.aten._to_copy.default, torch.ops.aten.add.Tensor
DEVICE = torch.ops.prim.device.default
_COLLECTIVES = torch.ops._c10d_functional
WAIT = _COLLECTIVES.wait_tensor.default if hasattr(_COLLECTIVES, "wait_tensor") else None
"""Returns its argument (torch 2.13, ``csrc/distributed/c10d/Functional.cpp``); of fake tensors torch makes a copy."""


class StorageTracker(TorchDispatchMode):  # type: ignore[misc] # torch is not type-checked
    """Records the storages of everything that runs inside of it.

    Args:
        vocabulary_sizes: sizes of a last dimension that only logits have.
        sums_in_place: add contributions to a gradient in the first one's memory, as autograd does where no dispatch
            mode is active (``can_accumulate_inplace`` in ``torch/csrc/autograd/input_buffer.cpp``).
    """

    def __init__(self, vocabulary_sizes: Iterable[int] = (), *, sums_in_place: bool = True) -> None:
        super().__init__()
        self.history = AllocationHistory()
        self._sums_in_place = sums_in_place
        self._min_references = _references(torch.empty(1, device="meta"))
        self.order = StreamOrder()
        self.gpu = 0
        """GPU on which storages are allocated."""
        self.gpus_of_results: Callable[[Any, list[Any]], list[int]] | None = None
        """Returns the GPUs of results from the arguments; None: there is one GPU."""
        self.has_streams = False
        """Operations run on several streams."""
        self._streams: dict[Any, int] = {torch.cpu.current_stream(): 0}
        self._waiting: list[tuple[StorageRecord, list[tuple[int, dict[int, int]]]]] = []
        """Freed records whose other streams are not known to be done, with the events that tell."""
        self._vocabulary_sizes = frozenset(vocabulary_sizes)
        self._live: dict[int, StorageRecord] = {}
        self._live_numbers: set[int] = set()
        self._finalized: set[int] = set()
        self._emptied_on: dict[int, int] = {}
        """By storage that was emptied in place, its GPU."""
        self._component: str | None = None
        self._paused = False
        self._modules: list[str] = []
        self._backward_module = ""
        self._phase = ""
        self._unlabelled: list[StorageRecord] = []
        """Records of this forward pass, or of this recomputation, that may turn out to be activations."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping each call of the mode for ``torch.compile``, which is not traced."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is not FakeTensor for kind in types):
            return NotImplemented  # a DTensor's operation comes back as operations of its local tensors
        if func is DEVICE:  # two of three calls: answered here, they need not reach the fake mode
            return args[0].fake_device
        if func is WAIT:
            return args[0]
        if func is SUM and self._phase == "backward" and self._can_sum_in_place(*args, **(kwargs or {})):
            return args[0]
        if self.has_streams:
            self.order.issue(self.stream_number(torch.cpu.current_stream()))
        result = run(func, args, kwargs or {})
        if self._paused:
            return result
        component = "temporary" if func is CAST and self._is_weight(args[0]) else None
        if self.gpus_of_results is not None:
            leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            for leaf, gpu in zip(leaves, self.gpus_of_results(args, leaves)):  # noqa: B905 - not in Python 3.9
                self.gpu = gpu
                self._track(leaf, component)
            return result
        if isinstance(result, torch.Tensor):
            self._track(result, component)
        elif result is not None:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self._track(leaf, component)
        return result

    def begin_phase(self, step: int, phase: str) -> None:
        """Start a phase; the phase before it ends."""
        self._label_activations()
        self._phase = phase
        self._backward_module = ""
        self.history.phases.append(Phase(step, phase, len(self.history.events)))

    def label(self, tensors: Iterable[Any], component: str, names: Iterable[str] = ()) -> None:
        """Give tensors their component and names, whether they are tracked already or not."""
        remaining = iter(names)
        for tensor in tensors:
            name = next(remaining, "")
            local = getattr(tensor, "_local_tensor", tensor)
            if local is None:
                continue
            self._track(local, component)
            record = self._live.get(storage_of(local)._cdata)
            if record is not None:
                if record.component == component and name and record.module:  # several tensors in one storage
                    name = _common_module(record.module, name)
                _claim(record, component)
                record.module = name or record.module

    def keep_component(self, component: str, tensors: Iterable[Any], other: str) -> None:
        """Give what has a component and is none of these tensors another one."""
        kept = {storage_of(getattr(each, "_local_tensor", each))._cdata for each in tensors}
        for key, record in self._live.items():
            if record.component == component and key not in kept:
                record.component = other

    def stream_number(self, stream: Any) -> int:
        """Return the number of a stream; streams are numbered in the order of their first use."""
        return self._streams.setdefault(stream, len(self._streams))

    def record_stream(self, tensor: Any, stream: Any) -> None:
        """Record that another stream uses a tensor, as ``torch.Tensor.record_stream``."""
        record = self._live.get(storage_of(tensor)._cdata)
        number = self.stream_number(stream)
        if record is not None and number != record.stream and number not in record.used_on:
            record.used_on = (*record.used_on, number)

    def synchronize(self, event: dict[int, int]) -> None:
        """Let the CPU wait for an event; blocks of other streams that are done return to their pools."""
        self.order.synchronize(event)
        waiting = []
        for record, events in self._waiting:
            if all(self.order.has_passed(*each) for each in events):
                self._return(record)
            else:
                waiting.append((record, events))
        self._waiting = waiting

    def _return(self, record: StorageRecord) -> None:
        """Give the block of a freed storage back to its pool: other streams are done with it."""
        self.history.returns.append((len(self.history.events), record.number))

    def wait_for_stream(self) -> None:
        """Let the CPU wait for the current stream, as reading a tensor's value does."""
        self.synchronize(self.order.record(self.stream_number(torch.cpu.current_stream())))

    def wait_for_all(self) -> None:
        """Let the CPU wait for all streams."""
        for number in list(self._streams.values()):
            self.synchronize(self.order.record(number))

    def begin_streams(self, first: Any) -> None:
        """Take a stream for the compute stream, and follow the order of all."""
        self._streams = {first: 0}
        self.has_streams = True

    def labelling(self, component: str) -> contextlib.AbstractContextManager[None]:
        """Give storages that are allocated inside this component."""
        return replaced((self, "_component", component))

    def labelled(self, function: Callable[..., Any], component: str = "communication") -> Callable[..., Any]:
        """Return a function that gives what it allocates this component."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.labelling(component):
                return function(*args, **kwargs)

        return run

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Do not record storages that are allocated inside."""
        return replaced((self, "_paused", True))

    @property
    def in_module(self) -> bool:
        """True while a module's forward pass runs."""
        return bool(self._modules)

    def add_vocabulary(self, size: int) -> None:
        """Take a last dimension of this size for logits."""
        self._vocabulary_sizes |= {size}

    @contextlib.contextmanager
    def naming_modules(self, model: Any = None) -> Iterator[None]:
        """Record the module whose forward or backward pass allocates a storage.

        Args:
            model: names its modules; None: each module that is called by no other one names its own.
        """
        names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # a program may delete its modules
        leaves: weakref.WeakSet[Any] = weakref.WeakSet()

        def name_modules(root: Any) -> None:
            for name, module in root.named_modules():
                names[module] = ".".join(part for part in name.split(".") if part != _FSDP1_PART)
                if not any(True for _ in module.children()):
                    leaves.add(module)

        if model is not None:
            name_modules(model)

        def enter(module: Any, _args: Any) -> None:
            if model is None and module not in names:
                name_modules(module)
            if module in names:
                self._modules.append(names[module])

        def leave(module: Any, _args: Any, output: Any) -> None:
            if module in names and self._modules:
                self._modules.pop()
            if module in leaves and isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda _gradient: self.enter_backward(names[module]))

        hooks = (
            torch.nn.modules.module.register_module_forward_pre_hook(enter),
            torch.nn.modules.module.register_module_forward_hook(leave, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextlib.contextmanager
    def tracking_resize(self) -> Iterator[None]:
        """Record storages that are emptied and filled again in place, as FSDP does."""
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            key, before = storage._cdata, storage.nbytes()
            result = original(storage, size)
            if size != before:
                if key in self._live:
                    self._emptied_on[key] = self._live[key].gpu
                    self._free(key)
                if size:
                    with replaced((self, "gpu", self._emptied_on.get(key, self.gpu))):
                        self._allocate(storage, (size,), "uint8", None)
            return result

        with replaced((torch.UntypedStorage, "resize_", resize)):
            yield

    def _can_sum_in_place(self, first: Any, second: Any, alpha: float = 1) -> bool:
        """Return True if autograd adds these two and nothing else uses the first one's storage."""
        return bool(
            self._sums_in_place
            and alpha == 1
            and not torch.is_grad_enabled()
            and isinstance(second, torch.Tensor)
            and first.layout is torch.strided
            and first.shape == second.shape
            and first.dtype == second.dtype
            and first.untyped_storage().nbytes() == first.numel() * first.element_size()
            and _references(first) == self._min_references
        )

    def enter_backward(self, module: str) -> None:
        """Count what is made from now on as that of a module's backward pass; empty: of none."""
        self._backward_module = module

    def _is_weight(self, tensor: Any) -> bool:
        record = self._live.get(storage_of(tensor)._cdata)
        return record is not None and record.component == "weights"

    def _track(self, tensor: Any, component: str | None) -> None:
        if tensor.layout is not torch.strided:
            for part in parts_of(tensor):
                self._track(part, component)
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self._live or not storage.nbytes():
            return
        shape = tuple(tensor.shape)
        if component is None and len(shape) > 1 and shape[-1] in self._vocabulary_sizes:
            component = "logits"
        self._allocate(storage, shape, str(tensor.dtype).replace("torch.", ""), component)

    def _allocate(self, storage: Any, shape: tuple[int, ...], dtype: str, component: str | None) -> None:
        key, history, nbytes = storage._cdata, self.history, storage.nbytes()
        record = StorageRecord(
            number=len(history.records),
            size=block_bytes(nbytes),
            nbytes=nbytes,
            shape=shape,
            dtype=dtype,
            module=self._modules[-1] if self._modules else self._backward_module,
            stream=self.stream_number(torch.cpu.current_stream()),
            component=self._component if component is None else component,
            gpu=self.gpu,
        )
        history.records.append(record)
        history.events.append(record.number + 1)
        self._live[key] = record
        self._live_numbers.add(record.number)
        if key not in self._finalized:
            self._finalized.add(key)
            weakref.finalize(storage, self._finalize, key).atexit = False
        # elsewhere, gradients are enabled while a checkpointed forward pass is repeated, and before the next one
        may_stay = self._phase in ("backward", "optimizer step") and torch.is_grad_enabled()
        if may_stay or self._phase in ("forward", "evaluation"):
            self._unlabelled.append(record)
        elif self._unlabelled:
            self._label_activations()

    def _finalize(self, key: int) -> None:
        self._finalized.discard(key)
        self._emptied_on.pop(key, None)
        if key in self._live:
            self._free(key)

    def _free(self, key: int) -> None:
        record = self._live.pop(key)
        self._live_numbers.discard(record.number)
        self.history.events.append(-(record.number + 1))
        events = [(stream, self.order.record(stream)) for stream in record.used_on]
        if not all(self.order.has_passed(*each) for each in events):
            self._waiting.append((record, events))
        elif events:
            self._return(record)

    def _label_activations(self) -> None:
        """Label what a forward pass leaves allocated: it was saved for the backward pass."""
        if self._unlabelled:
            for record in self._unlabelled:
                if record.number in self._live_numbers:
                    _claim(record, "activations")
            self._unlabelled = []


def streams_of(tracker: StorageTracker) -> Iterator[tuple[Any, str, Any]]:
    """Yield what reports the waits and events of the CPU's streams, which do nothing, to the tracker."""
    streams, events = torch.cpu.Stream, torch.cpu.Event
    order, number = tracker.order, tracker.stream_number

    def current() -> int:
        return number(torch.cpu.current_stream())

    def wait_stream(self: Any, stream: Any) -> None:
        order.wait(number(self), order.record(number(stream)))

    def record_event(self: Any, event: Any = None) -> Any:
        made = events() if event is None else event
        made._reach = order.record(number(self))
        return made

    def wait_event(self: Any, event: Any) -> None:
        order.wait(number(self), getattr(event, "_reach", {}))

    def record(self: Any, stream: Any = None) -> None:
        self._reach = order.record(current() if stream is None else number(stream))

    def synchronize(self: Any) -> None:
        tracker.synchronize(getattr(self, "_reach", {}))

    def wait(self: Any, stream: Any = None) -> None:
        order.wait(current() if stream is None else number(stream), getattr(self, "_reach", {}))

    yield streams, "wait_stream", wait_stream
    yield streams, "record_event", record_event
    yield streams, "wait_event", wait_event
    yield events, "record", record
    yield events, "synchronize", synchronize
    yield events, "wait", wait


def parts_of(tensor: Any) -> tuple[Any, ...]:
    """Return the tensors that have a tensor's memory: itself, or a sparse one's indices and, the last, its values."""
    if tensor.layout is torch.strided:
        return (tensor,)
    with torch._C._DisableTorchDispatch():
        if tensor.layout is torch.sparse_coo:
            return tensor._indices(), tensor._values()
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    raise NotImplementedError(f"vramtop cannot rehearse tensors of layout {tensor.layout} yet")


def storage_of(tensor: Any) -> Any:
    """Return a tensor's storage, or that of a sparse one's values."""
    return (tensor if tensor.layout is torch.strided else parts_of(tensor)[-1]).untyped_storage()


def _references(tensor: Any) -> int:
    """Return the number of references to a tensor's storage."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _claim(record: StorageRecord, component: str) -> None:
    """Give a record this component unless it has one that takes precedence."""
    if record.component is None or PRECEDENCE[component] < PRECEDENCE[record.component]:
        record.component = component


def _common_module(one: str, other: str) -> str:
    """Return the path of the innermost module that contains both."""
    common = []
    for left, right in zip(one.split("."), other.split(".")):  # noqa: B905 - not in Python 3.9
        if left != right:
            break
        common.append(left)
    return ".".join(common)


# Summary of an allocation history: phases and their peaks by component, a timeline, the largest tensors.


if TYPE_CHECKING:
    _Level = tuple[int, int, tuple[int, ...]]
    """Index of an event, the bytes allocated after it, and those bytes by component."""

MAX_PEAK_TENSORS, MAX_PLACES = 20, 2000
MAX_TIMELINE_POINTS = 500
MEASURED_STEP = 2
"""The first step also creates the optimizer's states; from the second on, steps repeat."""


def summarize(history: AllocationHistory, step: int = MEASURED_STEP) -> dict[str, Any]:
    """Return phases, timeline and largest tensors of a step.

    Every figure is in bytes; the components of a phase sum to its ``allocated``. Loading is its end, but for a program
    whose peak is before that.
    """
    all_spans = phase_spans(history)
    spans = [span for span in all_spans if span.step == step]
    loading_end = next(span.start for span in all_spans if span.step > 0)
    present = {record.component for record in history.records}
    allocated = dict.fromkeys((*COMPONENTS, *(each for each in REHEARSED if each in present)), 0)
    total = most = most_at = 0
    for span in all_spans:
        for index in range(span.start, min(span.end, loading_end)):
            total += _apply_event(allocated, history.records, history.events[index])
            if total > most and span.name == "loading":
                most, most_at = total, index
    phases: dict[str, dict[str, Any]] = {"loading": {"allocated": total, "components": dict(allocated)}}
    for event in history.events[loading_end : spans[0].start]:
        _apply_event(allocated, history.records, event)
    points, peak_event = _measure_phases(history, spans, allocated, phases)
    if most > max(phase["allocated"] for phase in phases.values()):
        peak_event = most_at
        parts = dict.fromkeys(allocated, 0)
        for event in history.events[: most_at + 1]:
            _apply_event(parts, history.records, event)
        parts["weights"] += parts["temporary"]  # those that are gone before a step have no other name
        parts["temporary"] = 0
        phases["loading"] = {"allocated": most, "components": parts}
    return {
        "phases": phases,
        "peak_tensors": [_described(record) for record in _held_at(history, peak_event)[:MAX_PEAK_TENSORS]],
        "peak_event": peak_event,
        "timeline": [(index, total) for index, total, _ in points],
        "timeline_components": {name: [parts[i] for _, _, parts in points] for i, name in enumerate(allocated)},
        "timeline_phases": [[span.name, span.start] for span in spans],
    }


def allocator_events(history: AllocationHistory) -> Iterator[tuple[int, tuple[int, int | None, int]]]:
    """Yield the index of each event and the event for the allocator model.

    An event is ``(record, bytes, stream)`` or, for a release, ``(record, None, what)`` with one of the allocator's
    ``RELEASED``, ``USED_ELSEWHERE`` and ``RETURNED``; host memory is left out.
    """
    returns = iter([*history.returns, (len(history.events), -1)])
    at, returned = next(returns)
    for index, event in enumerate(history.events):
        while at <= index and returned >= 0:
            if not history.records[returned].host:
                yield index, (returned, None, RETURNED)
            at, returned = next(returns)
        record = history.records[abs(event) - 1]
        if not record.host:
            if event > 0:
                yield index, (record.number, record.size, record.stream)
            else:
                yield index, (record.number, None, USED_ELSEWHERE if record.used_on else RELEASED)


def _measure_phases(
    history: AllocationHistory, spans: list[PhaseSpan], allocated: dict[str, int], phases: dict[str, dict[str, Any]]
) -> tuple[list[_Level], int]:
    """Add each phase's peak to `phases`; return the timeline's levels, and the event of the highest peak.

    Of the levels after every event, the timeline has the highest of each of at most ``MAX_TIMELINE_POINTS`` stretches
    of equal length.
    """
    levels: list[_Level] = []
    stretch = max(1, -(-sum(span.end - span.start for span in spans) // MAX_TIMELINE_POINTS))
    number, total = 0, sum(allocated.values())
    peak = (-1, spans[0].start)
    for span in spans:
        highest = phases.setdefault(span.name, {"allocated": -1})
        for index in range(span.start - 1, span.end):  # the level at the start of the phase counts too
            if index >= span.start:
                total += _apply_event(allocated, history.records, history.events[index])
                if number % stretch == 0:
                    levels.append((index, total, tuple(allocated.values())))
                elif total > levels[-1][1]:
                    levels[-1] = (index, total, tuple(allocated.values()))
                number += 1
            if total > highest["allocated"]:
                highest.update(allocated=total, components=dict(allocated))
            if total > peak[0]:
                peak = (total, index)
    return levels, peak[1]


def _apply_event(allocated: dict[str, int], records: list[StorageRecord], event: int) -> int:
    """Add an event to what is allocated by component; return by how much it changes the sum."""
    record = records[abs(event) - 1]
    if record.host:
        return 0
    change = record.size if event > 0 else -record.size
    allocated[record.component or "temporary"] += change
    return change


def made_at(history: AllocationHistory, index: int) -> list[tuple[str, str, str, int]]:
    """Return component, module and line of what is allocated after an event, with its bytes, the largest first."""
    sizes: dict[tuple[str, str, str], int] = {}
    for record in _held_at(history, index):
        place = record.component or "temporary", record.module, record.line
        sizes[place] = sizes.get(place, 0) + record.size
    return [(*place, size) for place, size in sorted(sizes.items(), key=lambda item: -item[1])][:MAX_PLACES]


def _held_at(history: AllocationHistory, index: int) -> list[StorageRecord]:
    """Return what is allocated after an event, the largest first."""
    live: set[int] = set()
    for event in history.events[: index + 1]:
        if event > 0:
            live.add(event - 1)
        else:
            live.discard(-event - 1)
    records = [history.records[number] for number in live if not history.records[number].host]
    return sorted(records, key=lambda record: (-record.size, record.number))


def _described(record: StorageRecord) -> dict[str, Any]:
    return {
        "module": record.module,
        "shape": record.shape,
        "dtype": record.dtype,
        "bytes": record.size,
        "component": record.component or "temporary",
        "line": record.line,
        "own_line": record.own_line,
    }
