"""ZeRO stage 3's weights: shards, gathered for each module that uses them, some ahead of use, and freed again.

Follows ``runtime/zero/partitioned_param_coordinator.py``, ``parameter_offload.py`` and ``partition_parameters.py`` of
DeepSpeed 0.19.6. Which module follows which is known after one forward and backward pass; from then on weights are
prefetched, and stay gathered if they are needed again soon.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .partitions import on_stream

if TYPE_CHECKING:
    from ...memory.tracker import StorageTracker
    from .settings import ZeroSettings


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
