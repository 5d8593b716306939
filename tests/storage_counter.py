"""A counter of live tensor storages, independent of the product's, to check estimates and traces against.

``from storage_counter import StorageCounter``; pytest's ``pythonpath`` setting makes this folder importable.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageCounter(TorchDispatchMode):
    """Counts the bytes of live storages, rounded up to the allocator's 512-byte blocks, and their peak.

    The dispatch mode sees every new storage, a finalizer its release. Works with real and fake tensors.
    """

    def __init__(self, block: int = 512) -> None:
        super().__init__()
        self._block = block
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.count(leaf)
        return result

    def reset_peak(self) -> None:
        """Set the peak to the current bytes."""
        self.peak = self.live

    def ignore(self, tensor: torch.Tensor) -> None:
        """Do not count the storage of a tensor."""
        self._seen.add(tensor.untyped_storage()._cdata)

    def count(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor, once; call it for tensors that existed before this mode was entered."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // self._block) * self._block
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


def allocated_by(function: Callable[[], Any]) -> tuple[int, int]:
    """Return the most bytes that a function holds at once, and those that its result holds, as torch counts them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = function()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    del result
    return peak, held
