"""Megatron-FSDP around a model: when its modules gather and free weights, and how its optimizer steps.

Follows ``MegatronFSDP`` (``megatron_fsdp.py``) and ``fully_shard_optimizer`` (``fully_shard.py``) of megatron-fsdp
0.6.1, and of 0.2.3 and 0.4 where the job states an older version. They synchronize after every micro-batch unless told
otherwise (``sync_model_each_microbatch``).
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..fsdp1.units import unit_classes
from .buckets import make_buckets
from .gathered_weights import GatheredWeights
from .reduced_gradients import ReducedGradients
from .settings import megatron_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...memory.tracker import StorageTracker
    from ...request.request import Request
    from .buckets import Bucket
    from .settings import MegatronSettings

_LEAST_CAPACITY = 1_000_000_000
"""Elements, the least ``suggested_communication_unit_size`` that is chosen."""


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
        self._model = model
        self._settings = settings
        kinds = () if request.parallel.fsdp_units == "model" else tuple(unit_classes(model, request.parallel))
        self._units = _outermost(model, kinds)
        self._buckets = make_buckets(model.named_parameters(), self._units, settings)
        self._capacity = settings.unit or _capacity(self._units, settings)
        self._weights = GatheredWeights(self._buckets, settings, self._capacity // 2)

    def parameters(self) -> list[Any]:
        """Return the weights that exist once the model is sharded."""
        return list(self._weights.stored.values()) or list(self._model.parameters())

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
        gradients = ReducedGradients(self._buckets, self._settings, self._capacity, tracker)
        parts = {
            parameter: (bucket, at, part)
            for bucket in self._buckets
            if bucket.trains
            for at, (parameter, part) in enumerate(zip(bucket.parameters, self._own_parts(bucket, main)))  # noqa: B905
        }
        found = ((*parts[parameter], name) for name, parameter in trained)
        stepped = [(at, n, name, torch.nn.Parameter(part.detach())) for at, n, part, name in found if part.numel()]
        self._weights.start(tracker)
        tracker.label(self._weights.buffers.data.values(), "communication")
        hooks = _Hooks(self._model, self._units, self._weights, gradients, self._settings)
        engine = MegatronEngine(hooks, gradients, self._settings, stepped, tracker)
        engine.initialize(make_step([(name, tensor) for _, _, name, tensor in stepped]))
        return engine

    def running(self) -> Any:
        """Return a context in which the model runs."""
        return contextlib.nullcontext()

    def _main_weights(self, tracker: StorageTracker) -> dict[Bucket, Any]:
        """Return the fp32 copy of this rank's weights; empty: there is none."""
        if not self._settings.main_weights:
            return {}
        with tracker.labelling("optimizer"):
            return {each: torch.empty(each.shard, dtype=torch.float32) for each in self._buckets if each.trains}

    def _own_parts(self, bucket: Bucket, main: dict[Bucket, Any]) -> list[Any]:
        if not self._settings.stage:
            return bucket.views(main[bucket]) if main else [each.data for each in bucket.parameters]
        return bucket.own_parts(main[bucket] if main else self._weights.stored[bucket])


class MegatronEngine:
    """Reduction, optimizer step and what follows, in place of an optimizer.

    Args:
        hooks: of the model.
        gradients: of this rank.
        settings: of the job.
        stepped: tensors that are stepped, each with its bucket, its number in it, and its name.
        tracker: learns what is allocated for what.
    """

    def __init__(
        self,
        hooks: _Hooks,
        gradients: ReducedGradients,
        settings: MegatronSettings,
        stepped: list[tuple[Bucket, int, str, Any]],
        tracker: StorageTracker,
    ) -> None:
        self._hooks = hooks
        self._gradients = gradients
        self._settings = settings
        self._stepped = stepped
        self._tracker = tracker
        self._step: Any = None

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
        self._hooks.begin_backward()
        torch.autograd.Variable._execution_engine.queue_callback(self._finish_backward)

    def _finish_backward(self) -> None:
        """Reduce what is left, and give the optimizer this rank's gradients (``finish_grad_sync``)."""
        self._hooks.end_backward()
        for bucket, at, _, tensor in self._stepped:
            kept = self._gradients.stored[bucket]
            part = bucket.own_parts(kept)[at] if self._settings.stage else bucket.views(kept)[at]
            with self._tracker.labelling("gradients"):
                casts = self._settings.main_weights or self._settings.lazy_states
                tensor.grad = part.to(tensor.dtype) if casts else part
        self._hooks.release_units()


class _Hooks:
    """What Megatron-FSDP does before and after modules run (``_register_fsdp_hooks``)."""

    def __init__(
        self,
        model: Any,
        units: list[Any],
        weights: GatheredWeights,
        gradients: ReducedGradients,
        settings: MegatronSettings,
    ) -> None:
        self._weights = weights
        self._gradients = gradients
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
        self._stage = settings.stage
        self._whole_modules, self._all_wait = settings.whole_modules, not settings.frees_outside
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

    def begin_backward(self) -> None:
        """Begin a backward pass (``_root_pre_backward``)."""
        self._waiting = set(self._trained)
        if self._stage == 3:
            self._running_backward = set(self._modules) if self._all_wait else set(self._units)
            self._weights.mark_units_unused()

    @torch.no_grad()  # type: ignore[untyped-decorator] # torch is not type-checked
    def end_backward(self) -> None:
        """Reduce the gradients of shared parameters, and those that do not exist (``_root_post_backward``)."""
        left = sorted(self._waiting, key=self._trained.__getitem__)
        for parameter in left:
            self._gradients.take(parameter)
        self._gradients.reduce(left)
        self._gradients.finish()

    def release_units(self) -> None:
        """Free all units."""
        self._weights.release_units()

    def _before_forward(self, module: Any, *_inputs: Any) -> None:
        parameters = list(module.parameters(recurse=module in self._units))
        self._weights.gather(parameters, prefetch=module not in self._running_backward, forward=True)

    def _after_forward(self, unit: Any, _inputs: Any, output: Any) -> Any:
        if self._stage == 3:
            self._weights.release(unit.parameters(), later=unit in self._running_backward)
        return output

    def _watch_outputs(self, unit: Any, _inputs: Any, output: Any) -> Any:
        """Gather the unit when the gradient of an output exists."""
        output = tree_map(lambda each: each.view_as(each) if torch.is_tensor(each) else each, output)
        tensors = [output] if torch.is_tensor(output) else [each for each in output if torch.is_tensor(each)]

        def gather(_gradient: Any) -> None:
            if self._stage == 3:
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
        if is_unit and self._stage == 3:
            self._weights.release(module.parameters())
            self._running_backward.discard(module)
        if self._whole_modules:
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
        return _LEAST_CAPACITY
    elements = sum(int(parameter.numel()) for unit in units for parameter in unit.parameters())
    return max(_LEAST_CAPACITY, elements // len(units) * 2)
