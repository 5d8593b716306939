"""Counter of the bytes that live storages take, real or fake, with their peak."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def _is_plain(kind: Any) -> bool:
    """Return True if tensors of a class have a storage of their own: bitsandbytes' weights too, not a DTensor."""
    return kind is FakeTensor or kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__


class LiveBytes(TorchDispatchMode):  # type: ignore[misc] # torch is not type-checked
    """Counts the storages that appear while the mode is active, until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(map(_is_plain, types)):
            return NotImplemented  # a subclass's operation comes back as operations of its inner tensors
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return result

    def ignore(self, tensor: Any) -> None:
        """Do not count the storage of a tensor."""
        self._seen.add(tensor.untyped_storage()._cdata)

    def _count(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size
