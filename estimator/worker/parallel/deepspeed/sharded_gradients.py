"""ZeRO stage 3's gradients: reduced by buckets into this rank's shards, which are stepped in groups.

Follows ``runtime/zero/stage3.py`` of DeepSpeed 0.19.6; docstrings name its methods.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from .gathered_weights import GatheredWeights, ZeroLinear
from .partitions import flatten, norm_of, on_stream, parameter_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...memory.tracker import StorageTracker
    from .gathered_weights import Shard
    from .partitions import Named
    from .settings import ZeroSettings

NORM_CHUNK = 250_000_000
"""Elements of which a norm is taken at once under offload (``_constant_buffered_norm2``)."""


class ShardedGradients:
    """DeepSpeed's ``DeepSpeedZeroOptimizer_Stage3``.

    Args:
        weights: the model's shards.
        trained: parameters and their names.
        settings: of the engine.
        make_step: returns the optimizer of partitions, given with their names.
        tracker: learns what is allocated for what.
    """

    def __init__(
        self,
        weights: GatheredWeights,
        trained: list[Named],
        settings: ZeroSettings,
        make_step: Callable[[list[Named]], Any],
        tracker: StorageTracker,
    ) -> None:
        self._weights = weights
        self._settings = settings
        self._tracker = tracker
        self._stream = torch.cpu.Stream() if settings.overlap_comm else None
        shards = [(name, weights.shards[parameter]) for name, parameter in trained]
        self._groups = [group for named in parameter_groups(shards) for group in self._sub_groups(named)]
        self._dtype = shards[0][1].data.dtype
        flat = self._put_together()
        self._masters = [self._make_master(part) for part in flat]
        self._steps = [make_step([("fp32 partition", master)]) for master in self._masters]
        self._bucket = self._make_bucket()
        self._waiting: list[tuple[Any, Any]] = []
        """Parameters of the bucket and their gradients."""
        self._elements = 0
        self._gradients = self._make_gradients()
        self._last = False
        for _, parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._process_gradient)

    def scale(self, loss: Any) -> Any:
        """Return the loss in fp32, as the loss scaler does."""
        return loss.float()

    def begin_micro_batch(self, *, last: bool) -> None:
        """Start a forward pass; the last one of a step ends the accumulation."""
        self._last = last

    def end_backward(self) -> None:
        """Reduce what is left in the bucket, and free weights that are still gathered."""
        self._reduce_bucket()
        self._weights.end_backward()

    def step(self) -> None:
        """Step one group of shards after the other, each from an fp32 copy of its gradients."""
        self._weights.release_all()
        offloads = self._settings.offloads_optimizer
        if self._settings.scales_loss:
            torch.isinf(self._gradients).any()
            torch.isnan(self._gradients).any()
        parts = self._gradients.split([shard.size for group in self._groups for shard in group])
        if not offloads:
            norm_of(parts)
        slices = iter(parts)
        for group, master, step in zip(self._groups, self._masters, self._steps):  # noqa: B905 - 3.9
            of_group = [next(slices) for _ in group]
            if not offloads:
                with self._tracker.labelling("gradients"):
                    flat = flatten(of_group)
                    master.grad = flat.to(torch.float32)
                    del flat
            step.step()
            if not offloads:
                master.grad = None
        self._weights.gather_persistent()

    def _sub_groups(self, named: list[tuple[str, Shard]]) -> Iterator[list[Shard]]:
        """Yield groups of shards with at least that many elements (``_create_fp16_sub_groups``)."""
        group: list[Shard] = []
        size = 0
        for _, shard in named:
            group.append(shard)
            size += shard.size
            if size >= self._settings.sub_group:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _put_together(self) -> list[Any]:
        """Move all shards into one tensor, and return the parts of it that belong to each group."""
        shards = [shard for group in self._groups for shard in group]
        whole = torch.cat([shard.data for shard in shards])
        self._tracker.label((whole,), "weights", ("shards",))
        if self._settings.offloads_weights:
            self._tracker.mark_on_host((whole,))
        for shard, part in zip(shards, whole.split([shard.size for shard in shards])):  # noqa: B905 - 3.9
            shard.data = part
        return list(whole.split([sum(shard.size for shard in group) for group in self._groups]))

    def _make_master(self, part: Any) -> Any:
        """Return the fp32 copy of a group; fp32 weights have one too, as their device is compared with a string."""
        with self._tracker.labelling("optimizer"):
            converted = part.to(torch.float32)
            master = torch.nn.Parameter(converted.clone())
            if self._settings.offloads_optimizer:
                master.grad = torch.zeros_like(master)
                self._tracker.mark_on_host((converted, master, master.grad))
        return master

    def _make_bucket(self) -> Any:
        if not self._settings.contiguous_gradients:
            return None
        with self._tracker.labelling("communication"):
            return torch.empty(self._settings.reduce_bucket, dtype=self._dtype)

    def _make_gradients(self) -> Any:
        dtype = self._settings.accumulates_in or self._dtype
        with self._tracker.labelling("gradients"):
            found = torch.zeros(sum(shard.size for group in self._groups for shard in group), dtype=dtype)
        if self._settings.offloads_optimizer:
            self._tracker.mark_on_host((found,))
        return found

    @torch.no_grad()  # type: ignore[untyped-decorator] # torch is not type-checked
    def _process_gradient(self, parameter: Any) -> None:
        """Put a gradient into the bucket (``reduce_independent_p_g_buckets_and_remove_grads``)."""
        size, most = parameter.grad.numel(), self._settings.reduce_bucket
        if self._elements + size > most and self._elements:
            self._reduce_bucket()
        if self._bucket is not None and self._elements + size <= most:
            with on_stream(self._stream):
                copy = self._bucket.narrow(0, self._elements, size).view(parameter.grad.shape)
                copy.copy_(parameter.grad)
            self._waiting.append((parameter, copy))
        else:
            self._waiting.append((parameter, parameter.grad))
        parameter.grad = None
        self._elements += size

    @torch.no_grad()  # type: ignore[untyped-decorator] # torch is not type-checked
    def _reduce_bucket(self) -> None:
        """Reduce the bucket into this rank's shards (``reduce_scatter_coalesced``, ``partition_grads``)."""
        if not self._waiting:
            return
        with on_stream(self._stream), self._tracker.labelling("communication"):
            ranks = self._settings.ranks
            sizes = [-(-gradient.numel() // ranks) * ranks for _, gradient in self._waiting]
            alone = len(sizes) == 1 and sizes[0] == self._waiting[0][1].numel()
            _reduced = None if alone else torch.empty(sum(sizes), dtype=self._dtype)
            for size in sizes:
                self._add_to_shard(size // ranks)
        self._waiting, self._elements = [], 0

    def _add_to_shard(self, size: int) -> None:
        """Allocate what adding a reduced gradient to this rank's takes."""
        if not self._settings.offloads_optimizer:
            if self._gradients.dtype != self._dtype:
                torch.empty(size, dtype=self._gradients.dtype)
            return
        on_gpu = torch.empty(size, dtype=self._gradients.dtype)
        if self._last:
            norm_of((on_gpu,), chunk=NORM_CHUNK)
            on_gpu.to(torch.float32)


@contextlib.contextmanager
def zero_linear() -> Iterator[None]:
    """Replace torch's linear layers by DeepSpeed's."""
    before = torch.nn.functional.linear
    torch.nn.functional.linear = ZeroLinear.apply
    try:
        yield
    finally:
        torch.nn.functional.linear = before
