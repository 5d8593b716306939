"""ZeRO stages 1 and 2: whole 16-bit weights, gradients reduced by buckets, an fp32 partition that is stepped.

Follows ``runtime/zero/stage_1_and_2.py`` of DeepSpeed 0.19.6; comments name its methods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .partitions import flatten, norm_of, on_stream, parameter_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...memory.tracker import StorageTracker
    from .partitions import Named
    from .settings import ZeroSettings

ALIGNMENT = 2
"""Elements to which each partition is aligned (``nccl_start_alignment_factor``)."""


@dataclass
class _Group:
    """One parameter group of the optimizer."""

    flat: Any
    """All its weights."""
    partition: int
    """Elements of a rank's part."""
    own: list[tuple[Any, int, int]]
    """Parameters of this rank's part, each with the bounds of what lies in it."""
    ranks_of: dict[Any, tuple[int, int]]
    """The first and the last rank that has a part of a parameter."""
    step: Any = None
    master: Any = None


@dataclass
class _Bucket:
    """Gradients that wait for their reduction (``IPGBucket``)."""

    buffers: list[Any] = field(default_factory=list)
    index: int = 0
    elements: int = 0
    parameters: list[Any] = field(default_factory=list)
    copies: list[Any] = field(default_factory=list)
    """Their gradients, as parts of the buffer."""


class ReducedGradients:
    """DeepSpeed's ``DeepSpeedZeroOptimizer``.

    Args:
        trained: parameters and their names.
        settings: of the engine.
        make_step: returns the optimizer of partitions, given with their names.
        tracker: learns what is allocated for what.
    """

    def __init__(
        self,
        trained: list[Named],
        settings: ZeroSettings,
        make_step: Callable[[list[Named]], Any],
        tracker: StorageTracker,
    ) -> None:
        self._settings = settings
        self._tracker = tracker
        self._names = {parameter: name for name, parameter in trained}
        self._dtype = trained[0][1].dtype
        self._stream = torch.cpu.Stream() if settings.overlap_comm else None
        self._bucket = _Bucket()
        self._ready = self._last = False
        self._own_gradients: Any = None
        """``grads_in_partition``: gradients of this rank's parameters, one after another."""
        self._own_offset = 0
        self._own: dict[Any, Any] = {}
        self._accumulated: list[Any] | None = None
        """``all_grad_tensors``: the gradients of this rank's parameters, in the order of the groups."""
        self._wide: dict[Any, Any] = {}
        """``grad_accum``: gradients accumulated in a dtype of their own, stage 1."""
        self._groups = [self._make_group(group) for group in parameter_groups(trained)]
        self._group_of = {parameter: group for group in self._groups for parameter in group.ranks_of}
        self._copy_on_gpu = self._make_offload_buffer() if settings.offloads_optimizer else None
        """Lives as long as the engine; nothing reads it, as gradients have no values here."""
        self._make_masters(make_step)
        for parameter in self._names:
            parameter.register_post_accumulate_grad_hook(self._process_gradient)

    def scale(self, loss: Any) -> Any:
        """Return the loss in fp32, as the loss scaler does."""
        return loss.float()

    def begin_micro_batch(self, *, last: bool) -> None:
        """Start a forward pass; the last one of a step ends the accumulation."""
        self._last = last
        self._wide = {} if self._accumulated is not None else self._wide

    def end_backward(self) -> None:
        """Reduce what is left, and hold this rank's gradients (``allreduce_gradients`` of the engine)."""
        if self._settings.stage == 1 and not self._last:
            return
        if self._settings.stage == 1 and not self._settings.overlap_comm:
            for parameter in self._names:
                if self._gradient_of(parameter) is not None:
                    self._add_to_bucket(parameter)
        self._reduce_bucket()
        new = [self._own.pop(parameter, None) for group in self._groups for parameter, _, _ in group.own]
        if self._accumulated is None:
            self._accumulated = new  # else added to, in place
        self._own = {}
        self._bucket, self._ready = _Bucket(), False
        self._own_gradients, self._own_offset = None, 0
        for parameter in self._names:
            parameter.grad = None

    def step(self) -> None:
        """Flatten this rank's gradients, cast them to fp32, step, and copy the result into the weights."""
        settings, slices = self._settings, self._take_slices()
        if settings.scales_loss and not settings.offloads_optimizer:
            for gradient in (each for group in slices for each in group if each is not None):
                _find_infinities(gradient)
        if not settings.offloads_optimizer:
            norm_of(each for group in slices for each in group if each is not None)
        for at, group in enumerate(self._groups):
            if not settings.offloads_optimizer:
                with self._tracker.labelling("gradients"):
                    flat = self._flat_partition(slices[at], group)
                    group.master.grad = flat.to(group.master.dtype)
                    del flat
            slices[at] = []
            group.step.step()
            if not settings.offloads_optimizer:
                group.master.grad = None

    def _make_group(self, named: list[Named]) -> _Group:
        ranks = self._settings.ranks
        total = sum(parameter.numel() for _, parameter in named)
        aligned = -(-total // (ALIGNMENT * ranks)) * ALIGNMENT * ranks
        padding = [torch.zeros(aligned - total, dtype=self._dtype)] if aligned > total else []
        flat = torch.cat([*(parameter.data.view(-1) for _, parameter in named), *padding])
        self._tracker.label((flat,), "weights", ("flat weights",))
        partition, offset = aligned // ranks, 0
        own, ranks_of = [], {}
        for _, parameter in named:
            size = parameter.numel()
            parameter.data = flat[offset : offset + size].view(parameter.shape)
            ranks_of[parameter] = offset // partition, (offset + size - 1) // partition
            if offset < partition:
                own.append((parameter, 0, min(size, partition - offset)))
            offset += size
        return _Group(flat=flat, partition=partition, own=own, ranks_of=ranks_of)

    def _make_masters(self, make_step: Callable[[list[Named]], Any]) -> None:
        """Clone this rank's part of the weights in fp32, and make the optimizer of these."""
        for group in self._groups:
            with self._tracker.labelling("optimizer"):
                copied = group.flat[: group.partition].detach().clone()
                group.master = torch.nn.Parameter(copied.to(torch.float32))
                if self._settings.offloads_optimizer:
                    self._tracker.mark_on_host((copied, group.master))
                    group.master.grad = torch.zeros_like(group.master)
                    self._tracker.mark_on_host((group.master.grad,))
                else:
                    torch.zeros(group.partition)  # initialize_optimizer_states
                del copied
            group.step = make_step([("fp32 partition", group.master)])

    def _make_offload_buffer(self) -> Any:
        with self._tracker.labelling("communication"):
            return torch.zeros(max(parameter.numel() for parameter in self._names), dtype=self._dtype)

    def _process_gradient(self, parameter: Any) -> None:
        """Take a gradient as soon as it exists (``process_gradients``)."""
        settings = self._settings
        if not self._ready:
            self._set_up_buffers()
        if settings.stage == 1 and self._accumulates_wide:
            before = self._wide.get(parameter)
            with self._tracker.labelling("gradients"):
                wide = parameter.grad.to(settings.accumulates_in)
            self._wide[parameter] = wide if before is None else before.add_(wide)
            parameter.grad = None
        if settings.stage == 2 or (settings.overlap_comm and self._last):
            self._add_to_bucket(parameter)

    def _set_up_buffers(self) -> None:
        if self._settings.contiguous_gradients or self._settings.offloads_optimizer:
            with self._tracker.labelling("communication"):
                count = 2 if self._settings.overlap_comm else 1
                size = self._settings.reduce_bucket
                self._bucket.buffers = [torch.empty(size, dtype=self._dtype) for _ in range(count)]
        self._ready = True

    @property
    def _accumulates_wide(self) -> bool:
        return self._settings.accumulates_in not in (None, self._dtype)

    def _gradient_of(self, parameter: Any) -> Any:
        """Return a gradient to be reduced, in the dtype of the weights (``get_gradient_for_reduction``)."""
        wide = self._wide.get(parameter)
        return parameter.grad if wide is None else wide.to(self._dtype)

    def _add_to_bucket(self, parameter: Any) -> None:
        """Copy a gradient into the bucket, of which parts then take its place."""
        bucket, size = self._bucket, parameter.numel()
        gradient = self._gradient_of(parameter)
        if bucket.elements + size > self._settings.reduce_bucket:
            self._reduce_bucket()
            bucket.index = 1 - bucket.index if self._settings.overlap_comm else 0
        if bucket.buffers and size <= self._settings.reduce_bucket:
            copy = bucket.buffers[bucket.index].narrow(0, bucket.elements, size)
            copy.copy_(gradient.view(-1))
            gradient = copy.view(parameter.shape)
            if parameter.grad is not None:
                parameter.grad = None
        bucket.elements += size
        bucket.parameters.append(parameter)
        bucket.copies.append(gradient)

    def _reduce_bucket(self) -> None:
        """Reduce the bucket: in place if all of it belongs to one rank, else as a copy (``average_tensor``)."""
        bucket = self._bucket
        if not bucket.parameters:
            return
        with on_stream(self._stream), self._tracker.labelling("communication"):
            if self._slices_in(bucket.parameters) > 1 or (not bucket.buffers and len(bucket.parameters) > 1):
                torch.empty(bucket.elements, dtype=self._dtype)
            for parameter, gradient in zip(bucket.parameters, bucket.copies):  # noqa: B905 - 3.9
                self._keep_own(parameter, gradient)
        bucket.parameters, bucket.copies, bucket.elements = [], [], 0

    def _slices_in(self, parameters: list[Any]) -> int:
        """Return how many parts a bucket has of which the next belongs to another rank."""
        slices, before = 0, None
        for parameter in parameters:
            first, last = self._group_of[parameter].ranks_of[parameter]
            slices += last - first + (first != before)
            before = last
        return slices

    def _keep_own(self, parameter: Any, gradient: Any) -> None:
        """Copy a reduced gradient of this rank; those of others are freed (``copy_grads_in_partition``)."""
        settings = self._settings
        own = self._group_of[parameter].ranks_of[parameter][0] == 0
        if own and settings.offloads_optimizer:
            torch.linalg.vector_norm(gradient.double())
            if self._last:
                gradient.to(torch.float32)
        elif own and (settings.contiguous_gradients or settings.stage == 1):
            if settings.contiguous_gradients:
                gradient = self._in_partition(parameter, gradient)
            self._own[parameter] = self._wide.get(parameter, gradient)
        elif own:
            self._own[parameter] = gradient
        if settings.stage == 2:
            parameter.grad = None

    def _in_partition(self, parameter: Any, gradient: Any) -> Any:
        if self._own_gradients is None:
            with self._tracker.labelling("gradients"):
                size = sum(each.numel() for group in self._groups for each, _, _ in group.own)
                self._own_gradients = torch.empty(size, dtype=self._dtype)
        kept = self._own_gradients.narrow(0, self._own_offset, parameter.numel())
        kept.copy_(gradient.view(-1))
        self._own_offset += parameter.numel()
        return kept.view(parameter.shape)

    def _take_slices(self) -> list[list[Any]]:
        """Return this rank's gradients by group (``averaged_gradients``), and let go of the rest."""
        gradients, self._accumulated, self._wide = iter(self._accumulated or ()), None, {}
        found: list[list[Any]] = []
        for group in self._groups:
            found.append([])
            for (_, first, end), gradient in zip(group.own, gradients):  # noqa: B905 - 3.9
                found[-1].append(None if gradient is None else gradient.contiguous().view(-1)[first:end])
        return found

    def _flat_partition(self, slices: list[Any], group: _Group) -> Any:
        """Return this rank's gradients of a group as one tensor, with zeros where it has no parameters."""
        parts = [
            torch.zeros(end - first, dtype=self._dtype) if part is None else part
            for part, (_, first, end) in zip(slices, group.own)  # noqa: B905 - 3.9
        ]
        missing = group.partition - sum(part.numel() for part in parts)
        return flatten([*parts, torch.zeros(missing, dtype=self._dtype)] if missing else parts)


def _find_infinities(gradient: Any) -> None:
    """Allocate what ``_has_inf_or_nan`` does."""
    wide = gradient.float()
    found = wide.isnan().logical_or(wide.isinf())
    found.float().max()
