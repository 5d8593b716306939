"""Megatron-FSDP's gradients: copied into whole buckets, reduced, and freed when enough others wait behind them.

Follows ``GradReducePipeline`` and ``main_grad_getter`` of megatron-fsdp 0.6.1 (``param_and_grad_buffer.py``). The
stream that runs backward allocates a bucket when the first of its gradients exists; the CPU frees it once it has let
that stream wait for the reduction, so that no block waits for the GPU.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from .double_buffers import DoubleBuffers

if TYPE_CHECKING:
    from ...memory.tracker import StorageTracker
    from .buckets import Bucket
    from .settings import MegatronSettings

_UNITS = 2
"""Units that have buffers at once."""


class ReducedGradients:
    """This rank's gradients, and the buckets in which those of all ranks are added up.

    Args:
        buckets: of the model.
        settings: of the job.
        capacity: elements of buckets under reduction beyond which the oldest is waited for.
        tracker: learns what is allocated for what.
    """

    def __init__(
        self, buckets: list[Bucket], settings: MegatronSettings, capacity: int, tracker: StorageTracker
    ) -> None:
        self._settings = settings
        self._capacity = capacity
        self._tracker = tracker
        self._shards = settings.stage >= 2 and settings.ranks > 1
        self._stream = torch.cpu.Stream()
        trained = [bucket for bucket in buckets if bucket.trains]
        self._place = {p: (bucket, at) for bucket in trained for at, p in enumerate(bucket.parameters)}
        self._dtypes = {bucket: settings.main_gradients or bucket.parameters[0].dtype for bucket in trained}
        self.stored: dict[Bucket, Any] = {}
        """What this rank keeps of each bucket: its shard, or all of it."""
        for dtype in dict.fromkeys(self._dtypes.values()):
            alike = [bucket for bucket in trained if self._dtypes[bucket] == dtype]
            sizes = [bucket.shard if self._shards else bucket.size for bucket in alike]
            with tracker.labelling("gradients"):
                whole = torch.empty(sum(sizes), dtype=dtype).zero_()
            self.stored.update(zip(alike, whole.split(sizes)))  # noqa: B905 - not in Python 3.9
        doubled = trained if settings.doubles else []
        self._buffers = DoubleBuffers(doubled, {bucket: self._communicated(bucket) for bucket in doubled})
        self._buckets = len(buckets)
        self._ready: dict[Bucket, set[Any]] = {bucket: set() for bucket in trained}
        self._data: dict[Bucket, Any] = {}
        """Buckets whose gradients are being computed or reduced."""
        self._queue: deque[Bucket] = deque()

    def take(self, parameter: Any) -> None:
        """Copy a parameter's gradient into its bucket, or add it to this rank's (``_grad_acc``)."""
        bucket, at = self._place[parameter]
        self._keep_two_units([bucket])
        data = self._allocate(bucket) if self._shards else self.stored[bucket]
        if parameter.grad is None:
            return
        view = bucket.views(data)[at]
        if self._shards:
            view.copy_(parameter.grad)
        else:
            view.add_(parameter.grad)
        parameter.grad = None

    def reduce(self, parameters: list[Any]) -> None:
        """Reduce the buckets of which these were the last parameters (``reduce_gradients``)."""
        for parameter in sorted(parameters, key=lambda each: self._place[each][0].number):
            bucket = self._place[parameter][0]
            self._ready[bucket].add(parameter)
            together = [each for each in bucket.together if each.trains]
            if all(len(self._ready[each]) == len(each.parameters) for each in together):
                self._wait(self._capacity)
                self._keep_two_units(together)
                for each in together:
                    self._reduce(each)
                self._queue.extend(together)

    def finish(self) -> None:
        """Wait for all reductions."""
        self._wait(-1)

    def _allocate(self, bucket: Bucket) -> Any:
        if bucket not in self._data:
            with self._tracker.labelling("communication"):
                if bucket in self._buffers:
                    self._data[bucket] = self._buffers.take(bucket)
                else:
                    self._data[bucket] = torch.empty(bucket.size, dtype=self._communicated(bucket))
        return self._data[bucket]

    def _reduce(self, bucket: Bucket) -> None:
        with torch.cpu.stream(self._stream):
            if self._shards:
                reduced = self._allocate(bucket)[: bucket.shard]
                self.stored[bucket].add_(torch.empty_like(reduced) if self._settings.lazy_states else reduced)
            elif self._communicated(bucket) != self._dtypes[bucket]:
                self._allocate(bucket).copy_(self.stored[bucket])

    def _communicated(self, bucket: Bucket) -> Any:
        return self._settings.communicated or self._dtypes[bucket]

    def _wait(self, capacity: int) -> None:
        waiting = sum(bucket.size for bucket in self._queue)
        while self._queue and waiting > capacity:
            waiting -= self._queue[0].size
            self._release(self._queue.popleft())

    def _keep_two_units(self, buckets: list[Bucket]) -> None:
        """Wait for reductions of more than two units that share buffers (``_enforce_double_buffer_limit``)."""
        if not self._buffers.units:
            return
        units = {bucket.unit for bucket in buckets if bucket in self._buffers}
        keep = len(self._queue)
        for bucket in reversed(self._queue):
            units.add(bucket.unit)
            keep -= len(units) > _UNITS
        while len(self._queue) > max(0, min(keep, self._buckets - 1)):
            self._release(self._queue.popleft())

    def _release(self, bucket: Bucket) -> None:
        self._ready[bucket] = set()
        self._data.pop(bucket, None)
        self._buffers.give_back(bucket)
