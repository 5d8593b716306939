"""DeepSpeed's ZeRO engines on fake tensors: when the model is loaded, and when training is set up."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from ..model.build import DTYPES
from ..replaced import replaced
from .sizes import ZERO_ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from ..memory.tracker import StorageTracker
    from ..request.request import Request


class ZeroSettings(SimpleNamespace):
    """Settings of DeepSpeed's engine on which memory depends: those of a job file's table ``zero``, and others.

    These are its ``stage``, the ``ranks`` over which it shards, the dtype in which it ``accumulates_in`` (None: that of
    the weights), whether it ``offloads_optimizer`` and ``offloads_weights``, and ``scales_loss``, which makes it search
    gradients for infinities (fp16).
    """


def zero_settings(request: Request) -> ZeroSettings | None:
    """Return the settings of a job that DeepSpeed runs; None: another strategy, or inference."""
    parallel = request.parallel
    if not parallel.zero_stage or request.training.mode == "inference":
        return None
    given = {name: value for name, value in (request.zero or {}).items() if value is not None}
    given.pop("allgather_bucket", None)  # without effect since torch gathers into one tensor
    stage = parallel.zero_stage
    return ZeroSettings(
        stage=stage,
        ranks=parallel.data_shard * parallel.data_replicate,
        accumulates_in=DTYPES.get(parallel.gradient_dtype or ""),
        offloads_optimizer=parallel.cpu_offload != "none",
        offloads_weights=parallel.cpu_offload == "all",
        scales_loss=request.training.precision.startswith("fp16"),
        **{"overlap_comm": stage == 3, "contiguous_gradients": True, **ZERO_ELEMENTS, **given},
    )


# Parts that all stages share: parameter groups, flat tensors, the fp32 partition's optimizer, norms of gradients.


Named = tuple[str, Any]


def parameter_groups(trained: Iterable[Named]) -> list[list[Named]]:
    """Return matrices and vectors apart: the Trainer decays no norm and no bias, which makes a second group."""
    trained = list(trained)
    groups = [[each for each in trained if each[1].dim() > 1], [each for each in trained if each[1].dim() < 2]]
    return [group for group in groups if group]


def cast_in_place(model: Any, dtype: Any) -> None:
    """Give parameters of another dtype this one, adapters included, as the engine does (``module.bfloat16()``)."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype and parameter.dtype.itemsize > 1:
            parameter.data = parameter.data.to(dtype)


def flatten(tensors: list[Any]) -> Any:
    """Return the tensors one after another: a copy, except of a single one (``_flatten_dense_tensors``)."""
    views = [tensor.reshape(-1) for tensor in tensors]
    return views[0] if len(views) == 1 else torch.cat(views)


def norm_of(gradients: Iterable[Any], *, chunk: int | None = None) -> None:
    """Take the norms of gradients one by one, in fp64 (``get_grad_norm_direct``)."""
    for gradient in gradients:
        parts = gradient.view(-1).split(chunk) if chunk else (gradient,)
        for part in parts:
            torch.linalg.vector_norm(part.double())


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Allocate on a stream; None: on the current one."""
    with contextlib.nullcontext() if stream is None else torch.cpu.stream(stream):
        yield


# ZeRO stage 3's weights: shards, gathered for each module that uses them, some ahead of use, and freed again.
#
# Follows ``runtime/zero/partitioned_param_coordinator.py``, ``parameter_offload.py`` and ``partition_parameters.py``
# of DeepSpeed 0.19.6. Which module follows which is known after one forward and backward pass; from then on weights
# are prefetched, and stay gathered if they are needed again soon.


@dataclass(eq=False)
class Shard:
    """One parameter's shard, and what is gathered of it."""

    parameter: Any
    shape: tuple[int, ...]
    elements: int
    size: int
    """Elements of the shard, with padding."""
    data: Any
    """The shard."""
    persists: bool
    """It is small, and stays gathered."""
    gathered: bool = False
    active: set[int] = field(default_factory=set)
    """Modules that are using it."""

    def dim(self) -> int:
        """Return the parameter's number of dimensions."""
        return len(self.shape)


class GatheredWeights:
    """DeepSpeed's parameters, sharded, and its ``PartitionedParameterCoordinator``.

    Args:
        model: whose parameters are sharded, in place.
        settings: of the engine.
    """

    def __init__(self, model: Any, settings: ZeroSettings) -> None:
        self._settings = settings
        self._tracker: StorageTracker | None = None
        self._stream: Any = None
        self._modules = {module: at for at, module in enumerate(model.modules())}
        self.shards = {parameter: self._shard(parameter) for parameter in model.parameters()}
        self._in_flight: dict[Shard, Any] = {}
        """Gathered flat tensors that are not yet in use, by the shards that they hold."""
        self._available = 0
        self._recording: list[Any] = []
        self._order: list[Any] = []
        """Modules in the order in which they ran forward and backward; empty: not known yet."""
        self._queue: deque[tuple[Shard, int]] = deque()
        self._fetched_for: dict[Shard, int] = {}
        self._at = 0
        self._running_backward: dict[Any, None] = {}
        self._recomputed: dict[Any, set[Shard]] = {}
        """Frozen shards that a module's recomputation gathered, by the module that runs backward."""
        self._waiting: dict[Any, int] = {}
        """Inputs of a module whose gradients do not exist yet."""

    def loaded(self) -> list[Any]:
        """Return the shards, in the order of the model's parameters."""
        return [shard.data for shard in self.shards.values()]

    def start(self, model: Any, tracker: StorageTracker) -> None:
        """Gather and free weights whenever a module runs forward or backward, from now on."""
        self._tracker = tracker
        self._stream = torch.cpu.Stream() if self._settings.overlap_comm else None
        model.register_forward_pre_hook(lambda *_: self._begin_pass())
        for module in self._modules:
            module.register_forward_pre_hook(self._before_forward)
            module.register_forward_pre_hook(self._watch_inputs)
            module.register_forward_hook(self._after_forward)
            module.register_forward_hook(self._watch_outputs)

    def end_backward(self) -> None:
        """Free the weights of modules whose inputs have no gradient (``release_backward_leftovers``)."""
        while self._running_backward:
            module, _ = self._running_backward.popitem()
            for shard in {*self._shards_of(module), *self._recomputed.pop(module, ())}:
                shard.active.discard(self._modules[module])
                if not shard.persists:
                    self._release(shard)

    def release_all(self) -> None:
        """Free all gathered weights, before the optimizer's step."""
        for shard in self.shards.values():
            if shard in self._in_flight:
                self._wait(shard)
            shard.active.clear()
            self._release(shard)

    def gather_persistent(self) -> None:
        """Gather the weights that are never freed during a pass, after the step."""
        self._gather([shard for shard in self.shards.values() if shard.persists])
        self._available = 0
        for shard in self.shards.values():
            if shard in self._in_flight:
                self._wait(shard)

    def _shard(self, parameter: Any) -> Shard:
        size = -(-parameter.numel() // self._settings.ranks)
        data = torch.empty(size, dtype=parameter.dtype)
        persists = parameter.numel() <= self._settings.persistence_threshold
        shard = Shard(parameter, tuple(parameter.shape), parameter.numel(), size, data, persists)
        parameter.data = torch.empty(0, dtype=parameter.dtype)
        return shard

    def _shards_of(self, module: Any) -> list[Shard]:
        found = {self.shards[each]: None for each in module._parameters.values() if each is not None}
        return list(found)

    def _begin_pass(self) -> None:
        """Start a forward and backward pass (``reset_step``)."""
        for shard in list(self._in_flight):
            self._wait(shard)
            self._release(shard)
        if not self._order and self._recording:
            self._order = self._recording
        self._queue = deque((shard, at) for at, module in enumerate(self._order) for shard in self._shards_of(module))
        self._fetched_for, self._at, self._available = {}, 0, 0
        self._recording = []

    def _before_forward(self, module: Any, _inputs: Any) -> None:
        self._fetch(module, forward=True)

    def _after_forward(self, module: Any, _inputs: Any, _output: Any) -> None:
        with torch.no_grad():
            self._release_module(module, forward=True)

    def _watch_outputs(self, module: Any, _inputs: Any, output: Any) -> Any:
        """Gather the module's weights when the gradient of its output arrives."""
        pending = [0]

        def fetch() -> None:
            if pending[0]:
                pending[0] -= 1
                self._fetch(module, forward=False)

        def watch(tensor: Any) -> Any:
            pending[0] += 1
            return _BeforeBackward.apply(tensor, fetch)

        return _map_tensors(watch, output)

    def _watch_inputs(self, module: Any, inputs: Any) -> Any:
        """Free the module's weights when the gradients of its inputs exist."""
        self._waiting[module] = 0

        def done() -> None:
            self._waiting[module] -= 1
            if self._waiting[module] == 0:
                with torch.no_grad():
                    self._release_module(module, forward=False)

        def watch(tensor: Any) -> Any:
            self._waiting[module] += tensor.requires_grad
            return _BeforeBackward.apply(tensor, done)

        return _map_tensors(watch, inputs)

    @torch.no_grad()  # type: ignore[untyped-decorator] # torch is not type-checked
    def _fetch(self, module: Any, *, forward: bool) -> None:
        """Gather what a module needs, and what comes after it (``fetch_sub_module``)."""
        if self._order and (self._at >= len(self._order) or self._order[self._at] is not module):
            self._order, self._recording, self._queue = [], [], deque()  # another order than before
        self._recording.append(module)
        if not forward:
            self._running_backward[module] = None
        needed = self._shards_of(module)
        self._gather([shard for shard in needed if not shard.gathered and shard not in self._in_flight])
        recomputes = forward and torch._C._current_graph_task_id() != -1
        for shard in needed:
            shard.active.add(self._modules[module])
            if recomputes and self._running_backward and not shard.parameter.requires_grad:
                owner = next(reversed(self._running_backward))
                self._recomputed.setdefault(owner, set()).add(shard)
                shard.active.add(self._modules[owner])
            if shard in self._in_flight:
                self._wait(shard)
        if self._order:
            self._prefetch(needed)
        self._at += 1

    def _prefetch(self, needed: list[Shard]) -> None:
        waiting = {shard for shard in needed if self._fetched_for.get(shard, -1) < self._at}
        while self._queue and waiting:
            shard, at = self._queue.popleft()
            self._fetched_for[shard] = at
            waiting.discard(shard)
        settings, ahead = self._settings, 0
        found: dict[Shard, None] = {}
        most = min(settings.max_live_parameters - self._available, settings.prefetch_bucket)
        while self._queue and ahead < most:
            shard, at = self._queue.popleft()
            self._fetched_for[shard] = max(at, self._fetched_for.get(shard, -1))
            if not shard.gathered and shard not in self._in_flight and shard not in found:
                found[shard] = None
                ahead += shard.elements
        self._gather(list(found))

    def _release_module(self, module: Any, *, forward: bool) -> None:
        """Free what a module used, except what is needed again soon (``release_sub_module``)."""
        shards = self._shards_of(module)
        kept = self._needed_soon(shards) if self._order else set()
        free = {shard for shard in shards if shard not in kept}
        if not forward:
            recomputed = self._recomputed.pop(module, set())
            free |= {shard for shard in recomputed if not shard.persists}
            shards = [*shards, *(recomputed - set(shards))]
            self._running_backward.pop(module, None)
        for shard in shards:
            shard.active.discard(self._modules[module])
            if shard in free:
                self._release(shard)

    def _needed_soon(self, shards: list[Shard]) -> set[Shard]:
        kept = {shard for shard in shards if shard.persists or self._fetched_for.get(shard, -1) > self._at}
        left, passed = set(shards) - kept, 0
        for module in self._order[self._at :]:
            if passed >= self._settings.max_reuse_distance or not left:
                break
            for shard in self._shards_of(module):
                if shard in left:
                    left.discard(shard)
                    kept.add(shard)
                passed += shard.elements
        return kept

    def _gather(self, shards: list[Shard]) -> None:
        """Gather shards into one flat tensor, from which each is copied when it is used; a single one in place."""
        if not shards or self._tracker is None:
            return
        self._available += sum(shard.elements for shard in shards)
        with on_stream(self._stream), self._tracker.labelling("communication"):
            ranks, dtype = self._settings.ranks, shards[0].data.dtype
            if self._settings.offloads_weights:
                _copies = [torch.empty_like(shard.data) for shard in shards if not shard.persists]
            flat = torch.empty(sum(shard.size for shard in shards) * ranks, dtype=dtype)
        held = _Gathered(flat, shards, alone=len(shards) == 1)
        if held.alone:
            shards[0].parameter.data = flat[: shards[0].elements].view(shards[0].shape)
        for shard in shards:
            self._in_flight[shard] = held

    def _wait(self, shard: Shard) -> None:
        """Make all weights of the shard's flat tensor, which lives until each of them was waited for."""
        held = self._in_flight.pop(shard)
        if held.done or self._tracker is None:
            return
        held.done = True
        with on_stream(self._stream), self._tracker.labelling("communication"):
            for each in held.shards:
                if not held.alone:
                    each.parameter.data = torch.empty(each.shape, dtype=each.data.dtype)
                each.gathered = True

    def _release(self, shard: Shard) -> None:
        if shard.gathered and not shard.active:
            shard.parameter.data = torch.empty(0, dtype=shard.data.dtype)
            shard.gathered = False
            self._available -= shard.elements


@dataclass(eq=False)
class _Gathered:
    """A gathered flat tensor with the shards that are in it."""

    flat: Any
    shards: list[Shard]
    alone: bool
    done: bool = False


class _BeforeBackward(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Returns its input, and calls a function when the gradient passes."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, call: Any) -> Any:
        """Return the tensor."""
        ctx.call = call
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Call the function."""
        ctx.call()
        return (*gradients, None)


def _map_tensors(function: Any, value: Any) -> Any:
    """Apply a function to the tensors in a value (``apply_to_tensors_only``)."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        changed = [_map_tensors(function, each) for each in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    if isinstance(value, dict):
        for name, each in value.items():
            value[name] = _map_tensors(function, each)
    return value


class _Engine:
    """What the engines of all stages do alike.

    Args:
        settings: of the engine.
        tracker: learns what is allocated for what.
    """

    def __init__(self, settings: ZeroSettings, tracker: StorageTracker) -> None:
        self._settings = settings
        self._tracker = tracker
        self._stream = torch.cpu.Stream() if settings.overlap_comm else None
        self._last = False

    def scale(self, loss: Any) -> Any:
        """Return the loss in fp32, as the loss scaler does."""
        return loss.float()

    def begin_micro_batch(self, *, last: bool) -> None:
        """Start a forward pass; the last one of a step ends the accumulation."""
        self._last = last


# ZeRO stages 1 and 2: whole 16-bit weights, gradients reduced by buckets, an fp32 partition that is stepped.
#
# Follows ``runtime/zero/stage_1_and_2.py`` of DeepSpeed 0.19.6; comments name its methods.


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


class ReducedGradients(_Engine):
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
        super().__init__(settings, tracker)
        self._names = {parameter: name for name, parameter in trained}
        self._dtype = trained[0][1].dtype
        self._bucket = _Bucket()
        self._ready = False
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

    def begin_micro_batch(self, *, last: bool) -> None:
        """Start a forward pass; the last one of a step ends the accumulation."""
        super().begin_micro_batch(last=last)
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


# ZeRO stage 3's gradients: reduced by buckets into this rank's shards, which are stepped in groups.
#
# Follows ``runtime/zero/stage3.py`` of DeepSpeed 0.19.6; docstrings name its methods.


NORM_CHUNK = 250_000_000
"""Elements of which a norm is taken at once under offload (``_constant_buffered_norm2``)."""


class ShardedGradients(_Engine):
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
        super().__init__(settings, tracker)
        self._weights = weights
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
        for _, parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._process_gradient)

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


# DeepSpeed's linear layer under ZeRO stage 3, in place of torch's.
#
# Follows ``LinearFunctionForZeroStage3`` (``runtime/zero/linear.py``) of DeepSpeed 0.19.6.


def linear_layers_of_zero() -> AbstractContextManager[None]:
    """Replace torch's linear layers by DeepSpeed's."""
    return replaced((torch.nn.functional, "linear", _ZeroLinear.apply))


class _ZeroLinear(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Saves the parameter and not its weights, and its input whatever trains."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, weight: Any, bias: Any = None) -> Any:
        """Multiply."""
        ctx.save_for_backward(tensor, weight, bias)
        if tensor.dim() == 2 and bias is not None:
            return torch.addmm(bias, tensor, weight.t())
        output = tensor.matmul(weight.t())
        if bias is not None:
            output += bias
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradients of input, weight and bias."""
        tensor, weight, bias = ctx.saved_tensors
        for_tensor = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
        for_weight = for_bias = None
        rows = gradient.reshape(-1, gradient.shape[-1])
        if ctx.needs_input_grad[1]:
            for_weight = rows.t().matmul(tensor.reshape(-1, tensor.shape[-1]))
        if bias is not None and ctx.needs_input_grad[2]:
            for_bias = rows.sum(0)
        return for_tensor, for_weight, for_bias


class ZeroModel:
    """A model as ZeRO loads it: in the engine's dtype, and under stage 3 as this rank's shards."""

    clips = False
    """The engine clips gradients."""

    def __init__(self, model: Any, settings: ZeroSettings, dtype: Any) -> None:
        self._model = model
        self._settings = settings
        cast_in_place(model, dtype)
        self._weights = GatheredWeights(model, settings) if settings.stage == 3 else None

    def parameters(self) -> list[Any]:
        """Return the weights that exist once the model is loaded, in the order of the model's parameters."""
        return list(self._model.parameters()) if self._weights is None else self._weights.loaded()

    def make_engine(
        self, trained: list[Named], make_step: Callable[[list[Named]], Any], tracker: StorageTracker
    ) -> ReducedGradients | ShardedGradients:
        """Return the engine that takes the place of the optimizer.

        Args:
            trained: parameters and their names.
            make_step: returns the optimizer of partitions, given with their names.
            tracker: learns what is allocated for what.
        """
        if self._weights is None:
            return ReducedGradients(trained, self._settings, make_step, tracker)
        engine = ShardedGradients(self._weights, trained, self._settings, make_step, tracker)
        self._weights.start(self._model, tracker)
        return engine

    def running(self) -> Any:
        """Return a context in which the model runs as under the engine."""
        return contextlib.nullcontext() if self._weights is None else linear_layers_of_zero()


def zero_model(model: Any, request: Request, dtype: Any) -> ZeroModel | None:
    """Prepare a model for the job's ZeRO, in place; None: DeepSpeed does not run the job."""
    settings = zero_settings(request)
    return None if settings is None else ZeroModel(model, settings, dtype)
