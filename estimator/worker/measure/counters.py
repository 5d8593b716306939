"""Counters of the memory of real steps by phase: CUDA's caching allocator, or the storages of CPU tensors."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..memory.history import block_bytes
from ..replaced import replaced

OutOfMemoryError: Any = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
"""Out-of-memory errors of torch: ``torch.OutOfMemoryError`` since 2.5, ``torch.cuda.OutOfMemoryError`` before."""
_BYTES = ("requested", "allocated", "active", "inactive_split", "reserved")
_COUNTERS = (
    *(f"{name}_bytes.all.current" for name in _BYTES),
    *("segment.all.current", "num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"),
)
"""Entries of ``torch.cuda.memory_stats``; older versions of torch lack some."""


class PhaseCounter:
    """Peaks of the phases of each step, as CUDA's caching allocator counts them."""

    def __init__(self) -> None:
        self.peaks: dict[tuple[int, str], tuple[int, int | None]] = {}
        """Allocated and reserved peaks by step and phase; None: the device has no such figure."""
        self.now: tuple[int, str] = (0, "")
        """Step and phase that is running."""

    def begin_phase(self, step: int, phase: str) -> None:
        """Start a phase; the phase before it ends."""
        if self.now[1]:
            allocated, reserved = self.take_peaks()
            known = self.peaks.get(self.now, (0, None))
            self.peaks[self.now] = max(known[0], allocated), None if reserved is None else max(known[1] or 0, reserved)
        self.now = step, phase

    def take_peaks(self) -> tuple[int, int | None]:
        """Return the allocated and reserved peaks since the last call, and start again."""
        found = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        return found

    def levels(self) -> tuple[int, int | None]:
        """Return the bytes that are allocated and reserved now."""
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def retries(self) -> int | None:
        """Return how often the allocator freed its cache because memory was full; None: it has no cache."""
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def allocator(self) -> dict[str, Any] | None:
        """Return the allocator's name, settings and counters of now; None: it has none."""
        counters = torch.cuda.memory_stats()
        return {
            "backend": torch.cuda.get_allocator_backend(),
            "settings": torch.cuda.memory._snapshot().get("allocator_settings", {}),
            "counters": {name: counters[name] for name in _COUNTERS if name in counters},
        }

    def counting(self) -> Any:
        """Return the context in which memory is counted: the allocator always counts."""
        return contextlib.nullcontext()

    def wait_for_device(self) -> None:
        """Wait until the device is done, as reading the loss does."""
        torch.cuda.synchronize()


class CpuCounter(PhaseCounter, TorchDispatchMode):  # type: ignore[misc] # torch is not type-checked
    """Counts the storages of CPU tensors in blocks of the allocator's size; there is no cache to count.

    Those count that appear while the mode is active, until they are released.

    Args:
        capacity: bytes beyond which an allocation fails; None: those of the machine.
    """

    def __init__(self, capacity: int | None) -> None:
        PhaseCounter.__init__(self)
        TorchDispatchMode.__init__(self)
        self._live = self._peak = 0
        self._capacity = capacity
        self._sizes: dict[int, int] = {}

    def take_peaks(self) -> tuple[int, int | None]:
        """Return the peak of the counted bytes."""
        peak, self._peak = self._peak, self._live
        return peak, None

    def levels(self) -> tuple[int, int | None]:
        """Return the counted bytes."""
        return self._live, None

    def retries(self) -> int | None:
        """Return None: there is no cache."""
        return None

    def allocator(self) -> dict[str, Any] | None:
        """Return None: there is none."""
        return None

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the storages that are made inside, and follow those that FSDP empties and fills again in place."""
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            result = original(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage._cdata, block_bytes(size))
            return result

        with self, replaced((torch.UntypedStorage, "resize_", resize)):
            yield

    def wait_for_device(self) -> None:
        """Do nothing: a CPU is done when a call ends."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(kind is FakeTensor or kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # a DTensor's operation, not one of bitsandbytes' weights, comes back as those inside
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                storage = leaf.untyped_storage()
                if storage._cdata not in self._sizes:
                    weakref.finalize(storage, self._release, storage._cdata).atexit = False
                    self._set(storage._cdata, block_bytes(storage.nbytes()))
        return result

    def _release(self, key: int) -> None:
        self._live -= self._sizes.pop(key)

    def _set(self, key: int, size: int) -> None:
        live = self._live + size - self._sizes.get(key, 0)
        if self._capacity is not None and live > self._capacity:
            raise OutOfMemoryError(
                f"Tried to allocate {size} bytes on the CPU; the limit is {self._capacity}, and {self._live} are in use"
            )
        self._live, self._sizes[key] = live, size
        self._peak = max(self._peak, live)
