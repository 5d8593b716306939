"""Megatron-FSDP's weights: shards, gathered bucket by bucket on a stream of their own, ahead of use, and freed.

Follows ``AllGatherPipeline`` of megatron-fsdp 0.6.1 (``param_and_grad_buffer.py``). A bucket's memory is its storage,
which is resized; the stream on which it is gathered allocates it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from .double_buffers import DoubleBuffers

if TYPE_CHECKING:
    from ...memory.tracker import StorageTracker
    from .buckets import Bucket
    from .settings import MegatronSettings

_UNITS = 2
"""Units that have buffers at once."""


class GatheredWeights:
    """The weights of all buckets; the parameters of the model become views of them.

    Args:
        buckets: of the model.
        settings: of the job.
        ahead: elements that are gathered ahead.
    """

    def __init__(self, buckets: list[Bucket], settings: MegatronSettings, ahead: int) -> None:
        self._buckets = buckets
        self._ahead = ahead
        self._shards = settings.stage == 3 and settings.ranks > 1
        self._frees_outside = settings.frees_outside
        self._tracker: StorageTracker | None = None
        self._stream: Any = None
        self._bucket_of = {parameter: bucket for bucket in buckets for parameter in bucket.parameters}
        self._gathered: set[Bucket] = set()
        self._unused: dict[Bucket, bool] = dict.fromkeys(buckets, False)
        """Whether a bucket is freed before the next one is gathered."""
        self._whole: dict[Bucket, Any] = {}
        doubled = buckets if settings.doubles and self._shards else []
        self.buffers = DoubleBuffers(doubled, {bucket: bucket.parameters[0].dtype for bucket in doubled})
        self._doubles = settings.doubles
        self.stored: dict[Bucket, Any] = {}
        """What this rank has of each bucket: its shard, or all of it."""
        for bucket in buckets if settings.stage else ():
            dtype = bucket.parameters[0].dtype
            self.stored[bucket] = torch.empty(bucket.shard if self._shards else bucket.size, dtype=dtype)
            if bucket in self.buffers:
                self._show(bucket, self.buffers.take(bucket, remember=False))
                self.buffers.give_back(bucket)
                continue
            data = torch.empty(bucket.size, dtype=dtype) if self._shards else self.stored[bucket]
            self._show(bucket, data)
            if self._shards:
                self._whole[bucket] = data
                data.untyped_storage().resize_(0)

    def start(self, tracker: StorageTracker) -> None:
        """Gather on a stream of its own from now on."""
        self._tracker = tracker
        self._stream = torch.cpu.Stream()

    def gather(self, parameters: list[Any], *, prefetch: bool, forward: bool) -> None:
        """Gather the buckets of parameters, and those behind or before them (``all_gather_params``)."""
        if not self._shards or not parameters:
            return
        needed = sorted({self._bucket_of[each] for each in parameters}, key=_number)
        for bucket in needed:
            self._unused[bucket] = False
        if prefetch and not (self._doubles and all(bucket.unit is None for bucket in needed)):
            needed = self._with_next(needed, forward=forward)
        missing = [bucket for bucket in needed if bucket not in self._gathered]
        grouped: dict[int, list[Bucket]] = {}
        for bucket in missing:
            grouped.setdefault(bucket.together[0].number, []).append(bucket)
        for group in grouped.values():
            for bucket in group:
                self._gather(bucket)

    def release(self, parameters: Any, *, later: bool = False) -> None:
        """Free the buckets of parameters, now or before the next one is gathered (``release_bucket``)."""
        for bucket in {self._bucket_of[each]: None for each in parameters}:
            if bucket not in self._gathered:
                continue
            if later:
                self._unused[bucket] = True
            else:
                self._free(bucket)

    def mark_units_unused(self) -> None:
        """Let the units be freed that the backward pass does not ask for (``_root_pre_backward``)."""
        if self._shards:
            self._unused.update((bucket, True) for bucket in self._buckets if bucket.unit is not None)

    def release_units(self) -> None:
        """Free all units at the end of a step; what is outside of them keeps its memory (``reset``)."""
        self.mark_units_unused()
        if self._shards and self._frees_outside:
            self._unused = dict.fromkeys(self._buckets, True)
        self._free_unused()

    def _with_next(self, needed: list[Bucket], *, forward: bool) -> list[Bucket]:
        numbers = {bucket.number for bucket in needed}
        base = sum(bucket.size for bucket in needed)
        units = {bucket.unit for bucket in needed if bucket.unit in self.buffers.units}
        while True:
            following = _next_number(numbers, forward=forward)
            size = sum(self._buckets[number].size for number in numbers) - base
            over = not 0 <= following < len(self._buckets) or size >= self._ahead
            if not over and self.buffers.units:  # no more than two units at once
                units.add(self._buckets[following].unit)
                over = len(units) > _UNITS
            if over:
                return [self._buckets[number] for number in sorted(numbers)]
            numbers |= {bucket.number for bucket in self._buckets[following].together}

    @torch.no_grad()  # type: ignore[untyped-decorator] # torch is not type-checked
    def _gather(self, bucket: Bucket) -> None:
        self._unused[bucket] = False
        self._gathered.add(bucket)
        self._free_unused()
        labelled = contextlib.nullcontext() if self._tracker is None else self._tracker.labelling("communication")
        with torch.cpu.stream(self._stream), labelled:
            if bucket in self.buffers:
                self._show(bucket, self.buffers.take(bucket))
                return
            data = self._whole[bucket]
            size = bucket.size * data.element_size()
            if data.untyped_storage().nbytes() != size:  # outside of the units it has been kept
                data.untyped_storage().resize_(size)
        self._show(bucket, data)

    def _free_unused(self) -> None:
        for bucket in [bucket for bucket, unused in self._unused.items() if unused]:
            self._free(bucket)
            self._unused[bucket] = False

    @torch.no_grad()  # type: ignore[untyped-decorator] # torch is not type-checked
    def _free(self, bucket: Bucket) -> None:
        if bucket in self._gathered:
            self._gathered.discard(bucket)
            if bucket in self.buffers:
                self.buffers.give_back(bucket)
            else:
                self._whole[bucket].untyped_storage().resize_(0)

    @staticmethod
    def _show(bucket: Bucket, data: Any) -> None:
        for parameter, view in zip(bucket.parameters, bucket.views(data)):  # noqa: B905 - not in Python 3.9
            parameter.data = view


def _number(bucket: Bucket) -> int:
    return bucket.number


def _next_number(numbers: set[int], *, forward: bool) -> int:
    """Return the first number behind the lowest, or before the highest, that is missing."""
    step = 1 if forward else -1
    following = (min(numbers) if forward else max(numbers)) + step
    while following in numbers:
        following += step
    return following
