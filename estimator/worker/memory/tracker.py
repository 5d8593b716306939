"""Every storage that torch makes and drops, in order, each with what it belongs to.

A dispatch mode sees each new storage, a finalizer sees it go, and a patched ``resize_`` sees what FSDP frees and
takes again. A record gets its component when that becomes known, at the latest at the end of its phase.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMPONENTS = ("weights", "gradients", "optimizer", "activations", "logits", "temporary", "communication")
PRECEDENCE = {
    name: rank
    for rank, name in enumerate(
        ("weights", "gradients", "optimizer", "logits", "communication", "temporary", "activations")
    )
}
"""What a storage is that could be several things; the first wins."""
BLOCK = 512
"""CUDA's allocator hands out whole blocks of so many bytes."""
CAST, SUM = torch.ops.aten._to_copy.default, torch.ops.aten.add.Tensor


@dataclass(eq=False)
class Record:
    """One stay of a storage in memory."""

    number: int
    size: int
    """Bytes, in whole blocks."""
    shape: tuple[int, ...]
    dtype: str
    module: str
    """The path of the module in whose forward or backward pass it came to be; empty outside of any."""
    stream: int
    """0 is the one that computes; others in the order in which they were first used."""
    component: str | None = None
    host: bool = False
    """On a card's machine it would lie in host memory."""


@dataclass
class Span:
    """One phase of one step."""

    step: int
    phase: str
    start: int
    """Index of its first event."""


@dataclass
class History:
    """What was seen, in order."""

    records: list[Record] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    """``n + 1``: record n comes; ``-(n + 1)``: it goes."""
    spans: list[Span] = field(default_factory=list)


class Tracker(TorchDispatchMode):  # type: ignore[misc] # torch is not type-checked
    """Sees the storages of everything that runs inside of it.

    Args:
        vocab: sizes that a last dimension has in logits only.
        sums_in_place: autograd adds a gradient's contributions up in the first one's memory, as it does where no mode
            looks on (``can_accumulate_inplace`` in ``torch/csrc/autograd/input_buffer.cpp``).
    """

    def __init__(self, vocab: Iterable[int] = (), *, sums_in_place: bool = True) -> None:
        super().__init__()
        self.history = History()
        self._sums_in_place = sums_in_place
        self._own_uses = _uses(torch.empty(1, device="meta"))
        self._streams = {torch.cpu.current_stream(): 0}
        self._vocab = frozenset(vocab)
        self._live: dict[int, Record] = {}
        self._watched: set[int] = set()
        self._scope: str | None = None
        self._blind = False
        self._modules: list[str] = []
        self._backward_module = ""
        self._phase = ""
        self._born: list[Record] = []
        """In this forward pass, or this recomputation, and not yet told what they are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is not FakeTensor for kind in types):
            return NotImplemented  # a DTensor's operation comes back as those of its local tensors
        if func is SUM and self._phase == "backward" and self._adds_up(*args, **(kwargs or {})):
            return args[0].add_(args[1])
        result = func(*args, **(kwargs or {}))
        if self._blind:
            return result
        component = "temporary" if func is CAST and self._is_weight(args[0]) else None
        if isinstance(result, torch.Tensor):
            self._see(result, component)
        elif result is not None:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self._see(leaf, component)
        return result

    def begin(self, step: int, phase: str) -> None:
        """Start a phase; the one before ends."""
        self._settle()
        self._phase = phase
        self._backward_module = ""
        self.history.spans.append(Span(step, phase, len(self.history.events)))

    def own(self, tensors: Iterable[Any], component: str, names: Iterable[str] = ()) -> None:
        """Say what these tensors are, whether they were seen before or not."""
        given = iter(names)
        for tensor in tensors:
            name = next(given, "")
            local = getattr(tensor, "_local_tensor", tensor)
            if local is None:
                continue
            self._see(local, component)
            record = self._live.get(local.untyped_storage()._cdata)
            if record is not None:
                if record.component == component and name and record.module:  # several tensors in one storage
                    name = _common(record.module, name)
                _label(record, component)
                record.module = name or record.module

    def at_home(self, tensors: Iterable[Any]) -> None:
        """These tensors lie in host memory."""
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            record = self._live.get(local.untyped_storage()._cdata)
            if record is not None:
                record.host = True

    @contextlib.contextmanager
    def inside(self, component: str) -> Iterator[None]:
        """What comes to be in here belongs to that component."""
        before, self._scope = self._scope, component
        try:
            yield
        finally:
            self._scope = before

    @contextlib.contextmanager
    def blind(self) -> Iterator[None]:
        """What comes to be in here exists nowhere."""
        before, self._blind = self._blind, True
        try:
            yield
        finally:
            self._blind = before

    @contextlib.contextmanager
    def naming(self, model: Any) -> Iterator[None]:
        """Know the path of the module that runs, forward or backward."""
        names = {module: name for name, module in model.named_modules()}
        leaves = {module for module in names if not any(True for _ in module.children())}

        def enter(module: Any, _args: Any) -> None:
            if module in names:
                self._modules.append(names[module])

        def leave(module: Any, _args: Any, output: Any) -> None:
            if module in names and self._modules:
                self._modules.pop()
            if module in leaves and isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda _gradient: self._run_backward_of(names[module]))

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
    def watching_resize(self) -> Iterator[None]:
        """See storages that are emptied and filled again in place, as FSDP does."""
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            key, before = storage._cdata, storage.nbytes()
            result = original(storage, size)
            if size != before:
                if key in self._live:
                    self._close(key)
                if size:
                    self._open(storage, (size,), "uint8", None)
            return result

        torch.UntypedStorage.resize_ = resize
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original

    def _adds_up(self, first: Any, second: Any, alpha: float = 1) -> bool:
        """Autograd adds these two, and nothing else uses the first."""
        return bool(
            self._sums_in_place
            and alpha == 1
            and not torch.is_grad_enabled()
            and isinstance(second, torch.Tensor)
            and first.shape == second.shape
            and first.dtype == second.dtype
            and first.untyped_storage().nbytes() == first.numel() * first.element_size()
            and _uses(first) == self._own_uses
        )

    def _run_backward_of(self, name: str) -> None:
        self._backward_module = name

    def _is_weight(self, tensor: Any) -> bool:
        record = self._live.get(tensor.untyped_storage()._cdata)
        return record is not None and record.component == "weights"

    def _see(self, tensor: Any, component: str | None) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._live or not storage.nbytes():
            return
        shape = tuple(tensor.shape)
        if component is None and len(shape) > 1 and shape[-1] in self._vocab:
            component = "logits"
        self._open(storage, shape, str(tensor.dtype).replace("torch.", ""), component)

    def _open(self, storage: Any, shape: tuple[int, ...], dtype: str, component: str | None) -> None:
        key, history = storage._cdata, self.history
        record = Record(
            number=len(history.records),
            size=-(-storage.nbytes() // BLOCK) * BLOCK,
            shape=shape,
            dtype=dtype,
            module=self._modules[-1] if self._modules else self._backward_module,
            stream=self._streams.setdefault(torch.cpu.current_stream(), len(self._streams)),
            component=self._scope if component is None else component,
        )
        history.records.append(record)
        history.events.append(record.number + 1)
        self._live[key] = record
        if key not in self._watched:
            self._watched.add(key)
            weakref.finalize(storage, self._gone, key).atexit = False
        # in a backward pass, gradients are enabled only while a checkpointed forward pass is repeated
        if self._phase == "forward" or (self._phase == "backward" and torch.is_grad_enabled()):
            self._born.append(record)
        elif self._born:
            self._settle()

    def _gone(self, key: int) -> None:
        self._watched.discard(key)
        if key in self._live:
            self._close(key)

    def _close(self, key: int) -> None:
        record = self._live.pop(key)
        self.history.events.append(-(record.number + 1))

    def _settle(self) -> None:
        """What a forward pass leaves behind was saved for the backward pass."""
        if self._born:
            alive = {record.number for record in self._live.values()}
            for record in self._born:
                if record.number in alive:
                    _label(record, "activations")
            self._born = []


def _uses(tensor: Any) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def spans(history: History) -> list[tuple[Span, int]]:
    """Each phase of each step, and the index of the event after its last."""
    ends = [span.start for span in history.spans[1:]] + [len(history.events)]
    return list(zip(history.spans, ends))  # noqa: B905 - not in Python 3.9


def _label(record: Record, component: str) -> None:
    if record.component is None or PRECEDENCE[component] < PRECEDENCE[record.component]:
        record.component = component


def _common(one: str, other: str) -> str:
    """The module that both names lie in."""
    shared = []
    for left, right in zip(one.split("."), other.split(".")):  # noqa: B905 - not in Python 3.9
        if left != right:
            break
        shared.append(left)
    return ".".join(shared)
