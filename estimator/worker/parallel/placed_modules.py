"""A model's modules on several GPUs of one process, as a device map places them, on fake tensors of one device.

Sources: accelerate 1.15, ``big_modeling.py`` (``dispatch_model``) and ``hooks.py`` (``AlignDevicesHook``). A module
that the map names gets a hook that copies its inputs to its GPU where they are on another one; the model's own copies
its outputs back to the GPU of its inputs. Everything else is computed where its inputs are. A copy's gradient is
copied back (``ToCopyBackward0``). Modules in CPU RAM or on the disk run on the first GPU: the hook of each that has
parameters of its own copies them there, and drops the copies when it has run.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from ..model.build import without_adapters
from ..request.protocol import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..memory.tracker import AllocationHistory, StorageTracker

_OFFLOADED = ("cpu", "disk", "meta")


def gpu_numbers(device_map: Mapping[str, Any]) -> dict[str, int]:
    """Return the GPU that runs each module in a device map: of those that no GPU holds, the first (``main_device``).

    Raises:
        UnsupportedError: no GPU holds anything.
    """
    held = {name: _number(device) for name, device in device_map.items() if device not in _OFFLOADED}
    if not held:
        raise UnsupportedError("a device map that leaves all modules in CPU RAM or on the disk cannot be traced")
    return {name: held.get(name, min(held.values())) for name in device_map}


def _number(device: Any) -> int:
    """Return the number of a GPU: ``1``, ``"1"``, ``"cuda:1"``; ``"cuda"`` is the current one, the first."""
    number = str(device).rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def refuse_offloaded_training(device_map: Mapping[str, Any]) -> None:
    """Refuse a device map of a job that trains and leaves modules in CPU RAM or on the disk: they cannot be trained.

    Raises:
        UnsupportedError: it does.
    """
    if any(device in _OFFLOADED for device in device_map.values()):
        raise UnsupportedError("modules that a device map leaves in CPU RAM or on the disk cannot be trained")


class PlacedModules:
    """The modules of a model on their GPUs.

    Args:
        model: a transformers model, or one with adapters.
        device_map: GPU by module of the transformers model.
        tracker: of its storages.
    """

    def __init__(self, model: Any, device_map: Mapping[str, Any], tracker: StorageTracker) -> None:
        self._tracker = tracker
        self._root = without_adapters(model)
        gpus, modules = gpu_numbers(device_map), dict(self._root.named_modules())
        self._gpus: dict[Any, int] = {}
        offloaded: dict[Any, bool] = {}
        for name in sorted(set(gpus) & set(modules), key=len):  # inner modules last
            self._gpus.update(dict.fromkeys(modules[name].modules(), gpus[name]))
            offloaded.update(dict.fromkeys(modules[name].modules(), device_map[name] in _OFFLOADED))
        self._offloaded = {each for each, elsewhere in offloaded.items() if elsewhere}
        self._loaded: dict[Any, list[Any]] = {}
        """Copies of the parameters of offloaded modules that run."""
        named = {modules[name] for name in gpus if name in modules}
        self._hooked = [each for each in self._gpus if each is not self._root and (each in named or each.state_dict())]
        self._running: list[int] = [0]
        """GPU of the inputs, and of the modules that run."""
        self._given: int | None = None
        """GPU of all results; None: that of the inputs."""
        tracker.gpus_of_results = self._gpus_of_results

    def label_weights(self) -> None:
        """Label the modules' parameters and buffers as weights on their GPUs."""
        for module, gpu in self._gpus.items():
            self._tracker.gpu = gpu
            self._tracker.label((*module._parameters.values(), *module._buffers.values()), "weights")
            if module in self._offloaded:
                self._tracker.mark_on_host(each for each in module._parameters.values() if each is not None)

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Copy what modules get from other GPUs: those in the map, and all in them that have a state."""
        handles = []
        for module in self._hooked:
            handles.append(module.register_forward_pre_hook(self._enter(self._gpus[module]), with_kwargs=True))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        handles.append(self._root.register_forward_hook(self._return))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, gpu: int) -> Any:
        def enter(module: Any, args: Any, kwargs: Any) -> Any:
            if module in self._offloaded:
                own = (each for each in module._parameters.values() if each is not None)
                self._loaded[module] = [self.copy(each.detach(), gpu) for each in own]
            inputs = self._moved(args, gpu), self._moved(kwargs, gpu)
            self._running.append(gpu)
            return inputs

        return enter

    def _leave(self, module: Any, *_unused: Any) -> None:
        self._loaded.pop(module, None)
        self._running.pop()

    def _return(self, _module: Any, _args: Any, outputs: Any) -> Any:
        return self._moved(outputs, self._running[0])

    def _moved(self, tree: Any, gpu: int) -> Any:
        def move(tensor: Any) -> Any:
            source = self._tracker.gpu_of(tensor)
            return tensor if source in (gpu, None) else _Copy.apply(tensor, self, gpu, source)

        return tree_map_only(torch.Tensor, move, tree)

    def copy(self, tensor: Any, gpu: int) -> Any:
        """Return a copy of a tensor on a GPU."""
        before, self._given = self._given, gpu
        try:
            return tensor.clone()
        finally:
            self._given = before

    def _gpus_of_results(self, args: Any, results: list[Any]) -> list[int]:
        """Return the GPU of each result: that of its item in a list, else of the first input that is no number."""
        if self._given is not None:
            return [self._given] * len(results)
        items = args[0] if args and isinstance(args[0], (list, tuple)) and len(args[0]) == len(results) else ()
        if items and all(isinstance(item, torch.Tensor) for item in items):
            return [self._tracker.gpu_of(item) or 0 for item in items]
        inputs = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        gpus = [self._tracker.gpu_of(each) for each in sorted(inputs, key=lambda each: each.dim() == 0)]
        found = next((gpu for gpu in gpus if gpu is not None), self._running[-1])
        return [found] * len(results)


class _Copy(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """A copy on another GPU."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, placed: PlacedModules, gpu: int, source: int) -> Any:
        ctx.placed, ctx.source = placed, source
        return placed.copy(tensor, gpu)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return ctx.placed.copy(gradient, ctx.source), None, None, None


def keep_highest_gpu(history: AllocationHistory) -> int:
    """Leave only the storages of the GPU with the highest peak in a history, in place, and return its number."""
    level: dict[int, int] = {}
    peak: dict[int, int] = {}
    for event in history.events:
        record = history.records[abs(event) - 1]
        if not record.host:
            level[record.gpu] = level.get(record.gpu, 0) + (record.size if event > 0 else -record.size)
            peak[record.gpu] = max(peak.get(record.gpu, 0), level[record.gpu])
    highest = max(sorted(peak), key=lambda gpu: peak[gpu], default=0)
    for record in history.records:
        record.host = record.host or record.gpu != highest
    return highest
