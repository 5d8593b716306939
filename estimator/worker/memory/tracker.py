"""Tracker of all storages that torch allocates and frees, each with its component.

A dispatch mode sees each new storage, a finalizer its release, and a patched ``resize_`` the storages that FSDP empties
and fills in place. A record gets its component as soon as that is known, at the latest when its phase ends.
"""

from __future__ import annotations

import contextlib
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..replaced import replaced
from .fake_results import run
from .history import AllocationHistory, Phase, StorageRecord, block_bytes
from .record_stream import StreamOrder

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
_TORCH = torch.__path__[0]
_AUTOGRAD = f"{_TORCH}/autograd/"
_AROUND_MODES = (__file__.rpartition("/memory/")[0], f"{_TORCH}/_dynamo/", f"{_TORCH}/_compile.")
"""Beginnings of the paths of functions that torch and the worker put between autograd and a dispatch mode."""
_ENGINE = frozenset(("_engine_run_backward", "backward", "grad"))
"""Functions of ``torch.autograd`` that call autograd's engine."""
_FSDP1_PART = "_fsdp_wrapped_module"
"""In a path, the module inside of one that FSDP1 has wrapped."""
CAST, SUM = torch.ops.aten._to_copy.default, torch.ops.aten.add.Tensor
DEVICE = torch.ops.prim.device.default
_COLLECTIVES = torch.ops._c10d_functional
WAIT = _COLLECTIVES.wait_tensor.default if hasattr(_COLLECTIVES, "wait_tensor") else None
"""Returns its argument (torch 2.13, ``csrc/distributed/c10d/Functional.cpp``); of fake tensors torch makes a copy."""


class StorageTracker(TorchDispatchMode):  # type: ignore[misc] # torch is not type-checked
    """Records the storages of everything that runs inside of it, on fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.history = AllocationHistory()
        self._min_references = _references(torch.empty(1, device="meta"))
        self.order = StreamOrder()
        self.gpu = 0
        """GPU on which storages are allocated."""
        self.streams: dict[Any, int] = {torch.cpu.current_stream(): 0}
        """Numbers of the streams, of which the compute stream is the first."""
        self._waiting: list[tuple[StorageRecord, list[tuple[int, dict[int, int]]]]] = []
        """Freed records whose other streams are not known to be done, with the events that tell."""
        self.vocabulary_sizes: set[int] = set()
        """Sizes of a last dimension that only logits have."""
        self._live: dict[int, StorageRecord] = {}
        self._live_numbers: set[int] = set()
        self._storages: dict[int, Any] = {}
        """References to storages that are called when those end."""
        self._emptied_on: dict[int, int] = {}
        """By storage that was emptied in place, its GPU."""
        self._component: str | None = None
        self._modules: list[str] = []
        self._backward_module = ""
        self._phase = ""
        self._node = 0
        """Number of the autograd node that made the last tensor."""
        self._first_of_node = 0
        """Number of the first record that this node made."""
        self._unlabelled: list[StorageRecord] = []
        """Records of this forward pass, or of this recomputation, that may turn out to be activations."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping each call of the mode for ``torch.compile``, which is not traced."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is WAIT:
            return args[0]
        if func is SUM and self._phase == "backward" and self._can_sum_in_place(*args, **(kwargs or {})):
            return args[0]
        if _launches(func):  # the CPU may have to wait for the current stream
            self.order.issue(self.stream_number(torch.cpu.current_stream()))
            while self._waiting and all(self.order.has_passed(*each) for each in self._waiting[0][1]):
                self._return(self._waiting.pop(0)[0])
        result = run(func, args, kwargs or {})
        component = "temporary" if func is CAST and self._is_weight(args[0]) else None
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

    def begin_work(self, event: int) -> None:
        """Take what came after so many events as a forward pass, whose tensors are its activations."""
        self.history.phases.append(Phase(1, "forward", event))
        for each in self.history.events[event:]:
            if each > 0:
                _claim(self.history.records[each - 1], "activations")

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

    def keep_weights(self, tensors: Iterable[Any]) -> None:
        """Count weights that are none of these tensors as those of other models."""
        kept = {storage_of(getattr(each, "_local_tensor", each))._cdata for each in tensors}
        for key, record in self._live.items():
            if record.component == "weights" and key not in kept:
                record.component = "other_models"

    def stream_number(self, stream: Any) -> int:
        """Return the number of a stream; streams are numbered in the order of their first use."""
        return self.streams.setdefault(stream, len(self.streams))

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
        for number in list(self.streams.values()):
            self.synchronize(self.order.record(number))

    def labelling(self, component: str) -> contextlib.AbstractContextManager[None]:
        """Give storages that are allocated inside this component."""
        return replaced((self, "_component", component))

    def labelled(self, function: Callable[..., Any], component: str = "communication") -> Callable[..., Any]:
        """Return a function that gives what it allocates this component."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.labelling(component):
                return function(*args, **kwargs)

        return run

    @property
    def in_module(self) -> bool:
        """True while a module's forward pass runs."""
        return bool(self._modules)

    @contextlib.contextmanager
    def naming_modules(self) -> Iterator[None]:
        """Record the module whose forward or backward pass allocates a storage.

        Each module that is called by no other one names its own.
        """
        names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # a program may delete its modules
        leaves: weakref.WeakSet[Any] = weakref.WeakSet()

        def enter(root: Any, _args: Any) -> None:
            for name, module in root.named_modules() if root not in names else ():
                names[module] = ".".join(part for part in name.split(".") if part != _FSDP1_PART)
                if not any(True for _ in module.children()):
                    leaves.add(module)
            self._modules.append(names[root])

        def leave(module: Any, _args: Any, output: Any) -> None:
            if self._modules:
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
        """Return True if autograd adds these two in place, as nothing else uses the first one's storage.

        It does so where no dispatch mode is active (``can_accumulate_inplace`` in
        ``torch/csrc/autograd/input_buffer.cpp``); a node's own sums, in Python or in C++, take memory.
        """
        return bool(
            is_by_engine(sys._getframe(1))
            and not self._belongs_to_node(first)
            and alpha == 1
            and not torch.is_grad_enabled()
            and isinstance(second, torch.Tensor)
            and first.layout is torch.strided
            and first.shape == second.shape
            and first.dtype == second.dtype
            and first.untyped_storage().nbytes() == first.numel() * first.element_size()
            and _references(first) == self._min_references
        )

    def _belongs_to_node(self, tensor: Any) -> bool:
        """Return True if this tensor is an intermediate result of the running autograd node.

        A node that gives one input two gradients made both: autograd adds these, not the node.
        """
        record, node = self._live.get(storage_of(tensor)._cdata), torch._C._current_autograd_node()
        if record is None or node is None or record.number < self._first_of_node or node._sequence_nr() != self._node:
            return False
        inputs = [each for each in node.next_functions if each[0] is not None]
        return len(set(inputs)) == len(inputs)

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
        if component is None and len(shape) > 1 and shape[-1] in self.vocabulary_sizes:
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
        node = torch._C._current_autograd_node() if self._phase == "backward" else None
        if node is not None and node._sequence_nr() != self._node:
            self._node, self._first_of_node = node._sequence_nr(), record.number
        self._live[key] = record
        self._live_numbers.add(record.number)
        if key not in self._storages:
            self._storages[key] = weakref.ref(storage, lambda _: self._finalize(key))
        # elsewhere, gradients are enabled while a checkpointed forward pass is repeated, and before the next one
        may_stay = self._phase in ("backward", "optimizer step") and torch.is_grad_enabled()
        if may_stay or self._phase in ("forward", "evaluation"):
            self._unlabelled.append(record)
        elif self._unlabelled:
            self._label_activations()

    def _finalize(self, key: int) -> None:
        self._storages.pop(key, None)
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


def is_by_engine(frame: Any) -> bool:
    """Return True if autograd's C++ code, its engine or a gradient formula, called an operation."""
    while frame is not None and frame.f_code.co_filename.startswith(_AROUND_MODES):
        frame = frame.f_back
    code = getattr(frame, "f_code", None)
    return code is not None and code.co_name in _ENGINE and code.co_filename.startswith(_AUTOGRAD)


@cache
def _launches(func: Any) -> bool:
    """Return True if an operation launches work on the GPU: it is no view, and does more than allocate."""
    return not getattr(func, "is_view", False) and not re.match(r"aten::(_unsafe_view|(new_)?empty)", func.name())


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


def tensors_behind(parameter: Any) -> Iterator[Any]:
    """Yield the other tensors that hold a parameter's values.

    They are bitsandbytes' ``QuantState`` and ``SCB``, the parts of a torchao tensor, and the shard under DeepSpeed's
    ZeRO 3 (``partition_parameters.py``).
    """
    if isinstance(getattr(parameter, "ds_tensor", None), torch.Tensor):
        yield parameter.ds_tensor
    state = getattr(parameter, "quant_state", None)
    while state is not None:
        yield from (each for each in vars(state).values() if isinstance(each, torch.Tensor))
        state = getattr(state, "state2", None)
    if isinstance(getattr(parameter, "SCB", None), torch.Tensor):
        yield parameter.SCB
    if hasattr(parameter, "__tensor_flatten__") and not isinstance(parameter, FakeTensor):
        parts = [getattr(parameter, name) for name in parameter.__tensor_flatten__()[0]]
        for part in parts:
            yield from (part,) if isinstance(part, FakeTensor) else tensors_behind(part)


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
