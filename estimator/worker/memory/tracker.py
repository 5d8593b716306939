"""Tracker of all storages that torch allocates and frees, each with its component.

A dispatch mode sees each new storage, a finalizer its release, and a patched ``resize_`` the storages that FSDP empties
and fills in place. A record gets its component as soon as that is known, at the latest when its phase ends.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..replaced import replaced
from . import fake_results
from .allocation_history import AllocationHistory, Phase, StorageRecord, block_bytes
from .stream_order import StreamOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PRECEDENCE = {
    component: rank
    for rank, component in enumerate(
        ("weights", "gradients", "optimizer", "logits", "communication", "temporary", "activations")
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
        self._finalized: set[int] = set()
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
            return args[0].add_(args[1])
        if self.has_streams:
            self.order.issue(self.stream_number(torch.cpu.current_stream()))
        result = fake_results.run(func, args, kwargs or {})
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
            record = self._live.get(local.untyped_storage()._cdata)
            if record is not None:
                if record.component == component and name and record.module:  # several tensors in one storage
                    name = _common_module(record.module, name)
                _claim(record, component)
                record.module = name or record.module

    def mark_on_host(self, tensors: Iterable[Any]) -> None:
        """Record that these tensors are in host memory in a real run."""
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            record = self._live.get(local.untyped_storage()._cdata)
            if record is not None:
                record.host = True

    def gpu_of(self, tensor: Any) -> int | None:
        """Return the number of a tensor's GPU; None: it has no storage."""
        record = self._live.get(tensor.untyped_storage()._cdata)
        return None if record is None else record.gpu

    def stream_number(self, stream: Any) -> int:
        """Return the number of a stream; streams are numbered in the order of their first use."""
        return self._streams.setdefault(stream, len(self._streams))

    def record_stream(self, tensor: Any, stream: Any) -> None:
        """Record that another stream uses a tensor, as ``torch.Tensor.record_stream``."""
        record = self._live.get(tensor.untyped_storage()._cdata)
        number = self.stream_number(stream)
        if record is not None and number != record.stream and number not in record.used_on:
            record.used_on = (*record.used_on, number)

    def synchronize(self, event: dict[int, int]) -> None:
        """Let the CPU wait for an event; blocks of other streams that are done return to their pools."""
        self.order.synchronize(event)
        waiting = []
        for record, events in self._waiting:
            if all(self.order.has_passed(*each) for each in events):
                self.history.returns.append((len(self.history.events), record.number))
            else:
                waiting.append((record, events))
        self._waiting = waiting

    def wait_for_stream(self) -> None:
        """Let the CPU wait for the current stream, as reading a tensor's value does."""
        self.synchronize(self.order.record(self.stream_number(torch.cpu.current_stream())))

    @contextlib.contextmanager
    def labelling(self, component: str) -> Iterator[None]:
        """Give storages that are allocated inside this component."""
        before, self._component = self._component, component
        try:
            yield
        finally:
            self._component = before

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not record storages that are allocated inside."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @contextlib.contextmanager
    def naming_modules(self, model: Any) -> Iterator[None]:
        """Record the module whose forward or backward pass allocates a storage."""
        names = {
            module: ".".join(part for part in name.split(".") if part != _FSDP1_PART)
            for name, module in model.named_modules()
        }
        leaves = {module for module in names if not any(True for _ in module.children())}

        def enter(module: Any, _args: Any) -> None:
            if module in names:
                self._modules.append(names[module])

        def leave(module: Any, _args: Any, output: Any) -> None:
            if module in names and self._modules:
                self._modules.pop()
            if module in leaves and isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda _gradient: self._enter_backward(names[module]))

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
                    self._free(key)
                if size:
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
            and first.shape == second.shape
            and first.dtype == second.dtype
            and first.untyped_storage().nbytes() == first.numel() * first.element_size()
            and _references(first) == self._min_references
        )

    def _enter_backward(self, module: str) -> None:
        self._backward_module = module

    def _is_weight(self, tensor: Any) -> bool:
        record = self._live.get(tensor.untyped_storage()._cdata)
        return record is not None and record.component == "weights"

    def _track(self, tensor: Any, component: str | None) -> None:
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
        if key not in self._finalized:
            self._finalized.add(key)
            weakref.finalize(storage, self._finalize, key).atexit = False
        # in a backward pass, gradients are enabled only while a checkpointed forward pass is repeated
        if self._phase == "forward" or (self._phase == "backward" and torch.is_grad_enabled()):
            self._unlabelled.append(record)
        elif self._unlabelled:
            self._label_activations()

    def _finalize(self, key: int) -> None:
        self._finalized.discard(key)
        if key in self._live:
            self._free(key)

    def _free(self, key: int) -> None:
        record = self._live.pop(key)
        self.history.events.append(-(record.number + 1))
        events = [(stream, self.order.record(stream)) for stream in record.used_on]
        if not all(self.order.has_passed(*each) for each in events):
            self._waiting.append((record, events))
        elif events:
            self.history.returns.append((len(self.history.events), record.number))

    def _label_activations(self) -> None:
        """Label what a forward pass leaves allocated: it was saved for the backward pass."""
        if self._unlabelled:
            live = {record.number for record in self._live.values()}
            for record in self._unlabelled:
                if record.number in live:
                    _claim(record, "activations")
            self._unlabelled = []


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
