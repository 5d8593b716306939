"""Megatron-FSDP in the worker: the buckets that it allocates, of its sizes, at its times, on its streams.

The package is not imported: these modules follow its source (megatron-fsdp 0.6.1: ``megatron_fsdp.py``,
``param_and_grad_buffer.py``, ``fully_shard.py``) and leave out what allocates nothing, such as collectives. The trace
runs as rank 0.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from dataclasses import dataclass, field
from math import lcm
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..model.build import DTYPES
from .fsdp1 import unit_classes
from .sizes import MEGATRON_CAPACITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..memory.tracker import StorageTracker
    from ..request.request import Request

# Megatron-FSDP's buckets: parameters that are communicated together, and the places that they have.
#
# Follows ``_get_parameter_groups`` and ``build_data_parallel_buffer_index`` of megatron-fsdp 0.6.1. Parameters of one
# dtype that train or do not, experts or not, are a bucket: those of each unit, and those outside of all units.


@dataclass(eq=False)
class Bucket:
    """Parameters whose weights are gathered, and whose gradients are reduced, in one tensor."""

    number: int
    """Position in the order in which buckets are gathered ahead."""
    unit: int | None
    """Number of the unit; None: outside of all units."""
    expert: bool
    trains: bool
    parameters: list[Any]
    offsets: list[int]
    """Where each parameter begins."""
    size: int
    """Elements, with gaps and padding."""
    shard: int
    """Elements that are this rank's."""
    together: list[Bucket] = field(default_factory=list)
    """Buckets that are communicated at once: those of the unit, experts apart."""

    def views(self, data: Any) -> list[Any]:
        """Return the parts of a whole bucket, one for each parameter and in its shape."""
        pairs = zip(self.parameters, self.offsets)  # noqa: B905 - not in Python 3.9
        return [data[start : start + p.numel()].view(p.shape) for p, start in pairs]

    def own_parts(self, data: Any) -> list[Any]:
        """Return this rank's parts of a bucket's shard: of rank 0, what begins before the end of the shard."""
        parts = []
        for parameter, start in zip(self.parameters, self.offsets):  # noqa: B905 - not in Python 3.9
            part = data[min(start, self.shard) : min(start + parameter.numel(), self.shard)]
            row = parameter.shape[1:].numel()
            parts.append(part.view(-1, *parameter.shape[1:]) if part.numel() % row == 0 else part)
        return parts


def make_buckets(named: Iterable[tuple[str, Any]], units: list[Any], settings: MegatronSettings) -> list[Bucket]:
    """Return the buckets of a model, in the order of their numbers.

    Args:
        named: parameters with their names, in the order of the model.
        units: modules that are units.
        settings: of the job.
    """
    unit_of = {parameter: number for number, unit in enumerate(units) for parameter in unit.parameters()}
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for name, parameter in named:
        key = (parameter.dtype, ".experts." in name, parameter.requires_grad, unit_of.get(parameter))
        groups.setdefault(key, []).append(parameter)
    buckets = []
    for number, ((_, expert, trains, unit), parameters) in enumerate(groups.items()):
        ordered = sorted(parameters, key=_row, reverse=True)
        grid = _grid(ordered)
        offsets, end = _places(ordered, grid)
        step = settings.ranks * grid if settings.stage else 1
        size = -(-end // step) * step
        shard = size // settings.ranks if settings.stage else size
        buckets.append(Bucket(number, unit, expert, trains, ordered, offsets, size, shard))
    for bucket in buckets:
        same = [each for each in buckets if (each.unit, each.expert) == (bucket.unit, bucket.expert)]
        bucket.together = [bucket] if bucket.unit is None else same
    return buckets


def _row(parameter: Any) -> int:
    """Return the elements of a parameter's row, which ranks do not share if it can be helped."""
    return int(parameter.shape[1:].numel())


def _grid(parameters: list[Any]) -> int:
    """Return the elements at whose multiples shards may end."""
    grid = _row(parameters[0])
    for parameter in parameters:
        row, size = _row(parameter), parameter.numel()
        if row != grid and size >= grid and (grid % row or size % grid):
            grid = lcm(grid, row)
    return grid


def _places(parameters: list[Any], grid: int) -> tuple[list[int], int]:
    """Return where each parameter begins, and where the last one ends: the small ones fill the gaps of the others."""
    sizes = [parameter.numel() for parameter in parameters]
    places = [0] * len(sizes)
    large = [at for at, size in enumerate(sizes) if size >= grid]
    small = [at for at, size in enumerate(sizes) if size < grid]
    end = 0
    while large:
        at = large.pop(0)
        places[at] = end
        rest = sizes[at] % grid
        if not rest:
            end += sizes[at]
            continue
        gap, end = end + sizes[at], end + (sizes[at] // grid + 1) * grid
        space = grid - rest
        other = next((each for each in large if sizes[each] % grid and rest + sizes[each] % grid <= grid), None)
        if other is not None:
            large.remove(other)
            places[other] = end - sizes[other] % grid
            space -= sizes[other] % grid
            end += sizes[other] // grid * grid
        for each in [each for each in small if sizes[each] <= space]:
            if sizes[each] <= space:
                places[each] = gap
                space, gap = space - sizes[each], gap + sizes[each]
                small.remove(each)
    for each in small:
        places[each] = end
        end += sizes[each]
    return places, end


# Megatron-FSDP's double buffers: two tensors for each bucket of a unit, which all alike units share and which stay.
#
# Follows ``FixedPoolAllocator`` of megatron-fsdp 0.6.1 (``param_and_grad_buffer.py``).


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
        most: list[int] = max(alike.values(), key=len, default=[])
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


# Megatron-FSDP's weights: shards, gathered bucket by bucket on a stream of their own, ahead of use, and freed.
#
# Follows ``AllGatherPipeline`` of megatron-fsdp 0.6.1 (``param_and_grad_buffer.py``). A bucket's memory is its
# storage, which is resized; the stream on which it is gathered allocates it.


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
        needed = sorted({self._bucket_of[each] for each in parameters}, key=attrgetter("number"))
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


def _next_number(numbers: set[int], *, forward: bool) -> int:
    """Return the first number behind the lowest, or before the highest, that is missing."""
    step = 1 if forward else -1
    following = (min(numbers) if forward else max(numbers)) + step
    while following in numbers:
        following += step
    return following


# Megatron-FSDP's gradients: copied into whole buckets, reduced, and freed when enough others wait behind them.
#
# Follows ``GradReducePipeline`` and ``main_grad_getter`` of megatron-fsdp 0.6.1 (``param_and_grad_buffer.py``). The
# stream that runs backward allocates a bucket when the first of its gradients exists; the CPU frees it once it has
# let that stream wait for the reduction, so that no block waits for the GPU.


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


# Megatron-FSDP's settings, with its defaults.


_STAGES = {"none": 0, "optim": 1, "optim_grads": 2}


@dataclass(frozen=True)
class MegatronSettings:
    """Settings of Megatron-FSDP on which memory depends."""

    stage: int
    """``zero_dp_strategy``: what is sharded of optimizer states (1), gradients (2) and weights (3)."""
    ranks: int
    """Ranks over which it is sharded."""
    unit: int | None
    """``suggested_communication_unit_size``: elements that are communicated ahead; None: from the size of the units."""
    main_weights: bool
    """The optimizer steps an fp32 copy of 16-bit weights (``main_params_dtype``)."""
    main_gradients: Any
    """dtype in which gradients are accumulated (``main_grads_dtype``); None: that of their parameters."""
    communicated: Any
    """dtype of gradients under reduction (``grad_comm_dtype``); None: that in which they are accumulated."""
    doubles: bool = False
    """Buckets of alike units have two buffers, which stay (``fsdp_double_buffer``)."""
    frees_outside: bool = False
    """What is outside of the units is freed after each pass, and gathers units ahead in every one (before 0.5)."""
    lazy_states: bool = False
    """The first step makes the optimizer's states, and a reduction a tensor of its own (before 0.4)."""
    whole_modules: bool = False
    """The gradients of a module are copied when all of them exist (before 0.3)."""


def megatron_settings(request: Request, dtype: Any) -> MegatronSettings | None:
    """Return the settings of a job that Megatron-FSDP runs; None: another strategy, or inference.

    Args:
        request: the job.
        dtype: of the weights.
    """
    parallel = request.parallel
    if not parallel.megatron_fsdp or request.training.mode == "inference":
        return None
    low = dtype != torch.float32
    reduced, stated = DTYPES.get(parallel.reduce_dtype or "", dtype), DTYPES.get(parallel.gradient_dtype or "")
    accumulated = torch.float32 if stated is None and low and reduced == torch.float32 else stated
    accumulated = None if accumulated == dtype else accumulated
    return MegatronSettings(
        stage=_STAGES.get(parallel.sharding, 3),
        ranks=parallel.data_shard,
        unit=parallel.communication_unit,
        main_weights=bool(parallel.main_weights) and low,
        main_gradients=accumulated,
        communicated=None if accumulated is None and reduced == dtype else reduced,
        doubles=parallel.double_buffer,
        frees_outside=request.older.frees_outside_units,
        lazy_states=request.older.lazy_states,
        whole_modules=request.older.reduces_whole_modules,
    )


# Megatron-FSDP around a model: when its modules gather and free weights, and how its optimizer steps.
#
# Follows ``MegatronFSDP`` (``megatron_fsdp.py``) and ``fully_shard_optimizer`` (``fully_shard.py``) of megatron-fsdp
# 0.6.1, and of 0.2.3 and 0.4 where the job states an older version. They synchronize after every micro-batch unless
# told otherwise (``sync_model_each_microbatch``).


class MegatronModel:
    """A model as Megatron-FSDP shards it.

    Args:
        model: whose parameters are sharded, in place.
        request: the job.
        settings: of the job.
    """

    clips = True
    """Gradients are clipped by the optimizer, not by the engine."""

    def __init__(self, model: Any, request: Request, settings: MegatronSettings) -> None:
        self.model = model
        self.settings = settings
        kinds = () if request.parallel.fsdp_units == "model" else tuple(unit_classes(model, request.parallel))
        self.units = _outermost(model, kinds)
        self._buckets = make_buckets(model.named_parameters(), self.units, settings)
        self._capacity = settings.unit or _capacity(self.units, settings)
        self.weights = GatheredWeights(self._buckets, settings, self._capacity // 2)

    def parameters(self) -> list[Any]:
        """Return the weights that exist once the model is sharded."""
        return list(self.weights.stored.values()) or list(self.model.parameters())

    def make_engine(
        self, trained: list[tuple[str, Any]], make_step: Callable[[list[tuple[str, Any]]], Any], tracker: StorageTracker
    ) -> MegatronEngine:
        """Return the engine that takes the place of the optimizer.

        Args:
            trained: parameters and their names.
            make_step: returns the optimizer of tensors, given with their names.
            tracker: learns what is allocated for what.
        """
        main = self._main_weights(tracker)
        gradients = ReducedGradients(self._buckets, self.settings, self._capacity, tracker)
        parts = {
            parameter: (bucket, at, part)
            for bucket in self._buckets
            if bucket.trains
            for at, (parameter, part) in enumerate(zip(bucket.parameters, self._own_parts(bucket, main)))  # noqa: B905
        }
        found = ((*parts[parameter], name) for name, parameter in trained)
        stepped = [(at, n, name, torch.nn.Parameter(part.detach())) for at, n, part, name in found if part.numel()]
        self.weights.start(tracker)
        tracker.label(self.weights.buffers.data.values(), "communication")
        engine = MegatronEngine(self, gradients, stepped, tracker)
        engine.initialize(make_step([(name, tensor) for _, _, name, tensor in stepped]))
        return engine

    def running(self) -> Any:
        """Return a context in which the model runs."""
        return contextlib.nullcontext()

    def _main_weights(self, tracker: StorageTracker) -> dict[Bucket, Any]:
        """Return the fp32 copy of this rank's weights; empty: there is none."""
        if not self.settings.main_weights:
            return {}
        with tracker.labelling("optimizer"):
            return {each: torch.empty(each.shard, dtype=torch.float32) for each in self._buckets if each.trains}

    def _own_parts(self, bucket: Bucket, main: dict[Bucket, Any]) -> list[Any]:
        if not self.settings.stage:
            return bucket.views(main[bucket]) if main else [each.data for each in bucket.parameters]
        return bucket.own_parts(main[bucket] if main else self.weights.stored[bucket])


class MegatronEngine:
    """What Megatron-FSDP does before and after modules run (``_register_fsdp_hooks``), and in place of an optimizer.

    Args:
        sharded: the model.
        gradients: of this rank.
        stepped: tensors that are stepped, each with its bucket, its number in it, and its name.
        tracker: learns what is allocated for what.
    """

    def __init__(
        self,
        sharded: MegatronModel,
        gradients: ReducedGradients,
        stepped: list[tuple[Bucket, int, str, Any]],
        tracker: StorageTracker,
    ) -> None:
        model, units, settings = sharded.model, sharded.units, sharded.settings
        self._weights, self._gradients, self._settings = sharded.weights, gradients, settings
        self._stepped = stepped
        self._tracker = tracker
        self._step: Any = None
        self._running_backward: set[Any] = set()
        """Modules that do not gather ahead: outside of the units all, once a backward pass has begun."""
        inside = {module for unit in units for module in unit.modules()}
        self._modules = [module for module in model.modules() if module not in inside] + units
        self._waiting: set[Any] = set()
        """Parameters of which a backward pass has no gradient yet."""
        names = _names(model)
        self._trained = {parameter: name[0] for parameter, name in names.items() if parameter.requires_grad}
        self._shared = {parameter for parameter, name in names.items() if len(name) > 1}
        self._units = set(units)
        for module in self._modules:
            if settings.stage:
                module.register_forward_pre_hook(self._before_forward, prepend=True)
            if settings.whole_modules or (settings.stage == 3 and module in self._units):
                module.register_forward_pre_hook(self._watch_inputs, with_kwargs=True)
        for unit in units:
            unit.register_forward_hook(self._after_forward)
            unit.register_forward_hook(self._watch_outputs)
        for parameter in () if settings.whole_modules else self._trained:
            parameter.register_post_accumulate_grad_hook(self._take_gradient)

    def initialize(self, step: Any) -> None:
        """Make the optimizer's states by a step on zeros, before training (``fully_shard_optimizer``)."""
        self._step = step
        if self._settings.lazy_states:
            return
        with self._tracker.labelling("gradients"):
            for _, _, _, tensor in self._stepped:
                tensor.grad = torch.zeros_like(tensor)
        self.step()

    def scale(self, loss: Any) -> Any:
        """Return the loss, whose backward pass is followed from its beginning to its end."""
        loss.register_hook(self._begin_backward)
        return loss

    def begin_micro_batch(self, *, last: bool) -> None:
        """Start a forward pass; every one is synchronized."""

    def end_backward(self) -> None:
        """End a backward pass, which autograd has told before."""

    def step(self) -> None:
        """Step, and let go of gradients that are not this rank's own buffer."""
        self._step.step()
        for _, _, _, tensor in self._stepped:
            tensor.grad = None

    def _begin_backward(self, _gradient: Any) -> None:
        """Begin a backward pass (``_root_pre_backward``)."""
        torch.autograd.Variable._execution_engine.queue_callback(self._finish_backward)
        self._waiting = set(self._trained)
        if self._settings.stage == 3:
            self._running_backward = set(self._units) if self._settings.frees_outside else set(self._modules)
            self._weights.mark_units_unused()

    def _finish_backward(self) -> None:
        """Reduce what is left, and give the optimizer this rank's gradients (``finish_grad_sync``).

        Left are the gradients of shared parameters, and those that do not exist (``_root_post_backward``).
        """
        left = sorted(self._waiting, key=self._trained.__getitem__)
        with torch.no_grad():
            for parameter in left:
                self._gradients.take(parameter)
            self._gradients.reduce(left)
            self._gradients.finish()
        for bucket, at, _, tensor in self._stepped:
            kept = self._gradients.stored[bucket]
            part = bucket.own_parts(kept)[at] if self._settings.stage else bucket.views(kept)[at]
            with self._tracker.labelling("gradients"):
                casts = self._settings.main_weights or self._settings.lazy_states
                tensor.grad = part.to(tensor.dtype) if casts else part
        self._weights.release_units()

    def _before_forward(self, module: Any, *_inputs: Any) -> None:
        parameters = list(module.parameters(recurse=module in self._units))
        self._weights.gather(parameters, prefetch=module not in self._running_backward, forward=True)

    def _after_forward(self, unit: Any, _inputs: Any, output: Any) -> Any:
        if self._settings.stage == 3:
            self._weights.release(unit.parameters(), later=unit in self._running_backward)
        return output

    def _watch_outputs(self, unit: Any, _inputs: Any, output: Any) -> Any:
        """Gather the unit when the gradient of an output exists."""
        output = tree_map(lambda each: each.view_as(each) if torch.is_tensor(each) else each, output)
        tensors = [output] if torch.is_tensor(output) else [each for each in output if torch.is_tensor(each)]

        def gather(_gradient: Any) -> None:
            if self._settings.stage == 3:
                self._running_backward.add(unit)
            self._weights.gather(list(unit.parameters()), prefetch=True, forward=False)

        watched = [each for each in tensors if each.requires_grad]
        if watched:
            torch.autograd.graph.register_multi_grad_hook(watched, gather, mode="any")
        return output

    def _watch_inputs(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Free a unit when the gradients of its inputs exist."""
        if not torch.is_grad_enabled():
            return args, kwargs
        leaves, spec = tree_flatten((args, kwargs))
        at = [place for place, leaf in enumerate(leaves) if torch.is_tensor(leaf) and leaf.requires_grad]
        if not at:
            return args, kwargs
        watched = _AfterBackward.apply(
            functools.partial(self._after_backward, module), *[leaves[place] for place in at]
        )
        for place, leaf in zip(at, watched):  # noqa: B905 - not in Python 3.9
            leaves[place] = leaf
        return tree_unflatten(leaves, spec)

    @torch.no_grad()  # type: ignore[untyped-decorator] # torch is not type-checked
    def _after_backward(self, module: Any) -> None:
        is_unit = module in self._units
        if is_unit and self._settings.stage == 3:
            self._weights.release(module.parameters())
            self._running_backward.discard(module)
        if self._settings.whole_modules:
            own = [each for each in module.parameters(recurse=is_unit) if each in self._trained]
            own = [each for each in own if each not in self._shared]
            for parameter in own:
                self._gradients.take(parameter)
            self._gradients.reduce(own)
            self._waiting.difference_update(own)

    @torch.no_grad()  # type: ignore[untyped-decorator] # torch is not type-checked
    def _take_gradient(self, parameter: Any) -> None:
        if parameter not in self._shared:
            self._gradients.take(parameter)
            self._gradients.reduce([parameter])
            self._waiting.discard(parameter)


class _AfterBackward(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """The identity, which calls a function when the gradients of its inputs exist."""

    @staticmethod
    def forward(ctx: Any, done: Callable[[], None], *inputs: Any) -> Any:
        ctx.done = done
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.done()
        return (None, *gradients)


def megatron_model(model: Any, request: Request, dtype: Any) -> MegatronModel | None:
    """Shard a model as Megatron-FSDP does, in place; None: it does not run the job."""
    settings = megatron_settings(request, dtype)
    return None if settings is None else MegatronModel(model, request, settings)


def _outermost(model: Any, kinds: tuple[type, ...]) -> list[Any]:
    """Return the modules of these classes that are in no other one."""
    found: list[Any] = []
    inside: set[Any] = set()
    for module in model.modules():
        if type(module) in kinds and module not in inside:
            found.append(module)
            inside.update(module.modules())
    return found


def _names(model: Any) -> dict[Any, list[str]]:
    names: dict[Any, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def _capacity(units: list[Any], settings: MegatronSettings) -> int:
    """Return twice the elements of a unit, but no fewer than 1e9 (``suggested_communication_unit_size``)."""
    if settings.stage < 3 or not units:
        return MEGATRON_CAPACITY
    elements = sum(int(parameter.numel()) for unit in units for parameter in unit.parameters())
    return max(MEGATRON_CAPACITY, elements // len(units) * 2)
