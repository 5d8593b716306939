"""A counter of live storages that is independent of the product's: the measure for estimates and traces.

``from storage_counter import StorageCounter``; pytest's ``pythonpath`` setting makes this folder importable.
"""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageCounter(TorchDispatchMode):
    """Bytes of live storages, in the allocator's blocks of 512, and their peak since ``reset_peak``.

    The dispatch mode sees each new storage, a finalizer its release; real tensors and fake ones count alike.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.count(leaf)
        return result

    def reset_peak(self) -> None:
        self.peak = self.live

    def count(self, tensor: torch.Tensor) -> None:
        """Count a tensor that existed before."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // 512) * 512
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size
