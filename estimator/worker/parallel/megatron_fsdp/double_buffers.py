"""Megatron-FSDP's double buffers: two tensors for each bucket of a unit, which all alike units share and which stay.

Follows ``FixedPoolAllocator`` of megatron-fsdp 0.6.1 (``param_and_grad_buffer.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .buckets import Bucket

_COPIES = 2


class DoubleBuffers:
    """Buffers of the units of which most are alike.

    Args:
        buckets: of the model.
        dtypes: of the buffers, by bucket.
    """

    def __init__(self, buckets: list[Bucket], dtypes: dict[Bucket, Any]) -> None:
        by_unit: dict[int, list[Bucket]] = {}
        for bucket in buckets:
            if bucket.unit is not None:
                by_unit.setdefault(bucket.unit, []).append(bucket)
        alike: dict[tuple[Any, ...], list[int]] = {}
        for unit, own in by_unit.items():
            kind = tuple((dtypes.get(each), sum(p.numel() for p in each.parameters)) for each in own)
            alike.setdefault(kind, []).append(unit)
        most: list[int] = max(alike.values(), key=_count, default=[])
        self.units: set[int | None] = set(most)
        self._dtypes = dtypes
        self._places = {bucket: at for unit in most for at, bucket in enumerate(by_unit[unit])}
        self._idle = [(copy, at) for copy in range(_COPIES) for at in range(max(self._places.values(), default=-1) + 1)]
        self._used: dict[Bucket, tuple[int, int]] = {}
        self._usual: dict[Bucket, tuple[int, int]] = {}
        self.data: dict[tuple[int, int], Any] = {}

    def __contains__(self, bucket: Bucket) -> bool:
        """Return True if the bucket's unit is one of those that share buffers."""
        return bucket in self._places

    def take(self, bucket: Bucket, *, remember: bool = True) -> Any:
        """Return a buffer for a bucket: the one that it had before, if that is not in use."""
        if bucket not in self._used:
            wanted = self._usual.get(bucket)
            if wanted not in self._idle:
                wanted = next(each for each in sorted(self._idle) if each[1] == self._places[bucket])
            if remember:
                self._usual.setdefault(bucket, wanted)
            self._idle.remove(wanted)
            self._used[bucket] = wanted
        place = self._used[bucket]
        if place not in self.data:
            self.data[place] = torch.empty(bucket.size, dtype=self._dtypes[bucket])
        return self.data[place]

    def give_back(self, bucket: Bucket) -> None:
        """Let another bucket have the buffer."""
        if bucket in self._used:
            self._idle.append(self._used.pop(bucket))


def _count(units: list[int]) -> int:
    return len(units)
