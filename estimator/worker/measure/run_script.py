"""Runs a training script for real, as one of its ranks, and counts the memory that it takes by phase."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..memory.history import block_bytes
from ..memory.tracker import tensors_behind
from ..replaced import replaced
from ..request.protocol import RefusedError, loaded_versions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .stages import Stages


SCRIPT = "train.py"
"""Its name in the caller's folder."""
_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""In errors of CUDA's libraries and NCCL, which allocate outside of torch."""


def run_script(plan: dict[str, Any], stages: Stages) -> dict[str, Any]:
    """Run the script in the caller's folder until it has taken its steps, and return the memory that they take.

    The process ends in it, once they are reported.

    Args:
        plan: ``folder``, ``device``, ``steps``, whether it ``trains``, and by rank ``limits``, the bytes that it may
            allocate, and ``keeps``, the bytes of its GPU that it must leave free; None: none.
        stages: where they are reported.

    Raises:
        RefusedError: there is no CUDA.
    """
    rank = int(os.environ.get("RANK", "0"))
    stages.wait("ready", {})
    counter = _start_counting(plan, rank, stages)
    steps = _Steps(plan, counter, stages)
    folder = Path(plan["folder"]) / "run"
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    try:
        with steps.following(), counter.counting():
            counter.begin_phase(0, "loading")
            sys.argv = [SCRIPT]
            runpy.run_path(str(folder.parent / SCRIPT), run_name="__main__")
    except RuntimeError as error:
        if not (isinstance(error, _OutOfMemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)):
            raise
        allocated, reserved = counter.levels()
        step, phase = counter.now
        failed = {"step": step, "phase": phase, "message": " ".join(str(error).split())[:600]}
        counter.begin_phase(step, "end")
        levels = {"allocated_bytes": allocated, "reserved_bytes": reserved}
        return {"out_of_memory": {**failed, **levels}, **steps.figures()}
    if plan["trains"] and not steps.taken:
        raise RefusedError("the job's program ended before an optimizer had stepped")
    if not plan["trains"]:  # its forward passes are one step
        stages.wait("first step", {})
    return steps.end()


class _Steps:
    """Phases of a script's steps.

    Args:
        plan: with the number of ``steps``.
        counter: of the memory.
        stages: where they are reported.
    """

    def __init__(self, plan: dict[str, Any], counter: _PhaseCounter, stages: Stages) -> None:
        self.taken = 0
        self._wanted = plan["steps"]
        self._trains = plan["trains"]
        self._device = plan["device"]
        self._counter = counter
        self._stages = stages
        self._runs_forward = False
        self._parts: dict[str, int | None] = {"weights": None, "gradients": None, "optimizer": None}

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Follow modules, backward passes and optimizers."""
        backward = torch.autograd.backward

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            self._counter.begin_phase(self.taken + 1, "backward")
            self._runs_forward = True  # checkpoints run modules again
            try:
                return backward(*args, **kwargs)
            finally:
                self._runs_forward = False

        hooks = (
            torch.nn.modules.module.register_module_forward_pre_hook(self._before_forward),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        )
        try:
            with replaced((torch.autograd, "backward", run_backward)):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _before_forward(self, module: Any, _args: Any) -> None:
        if self._runs_forward or torch.is_grad_enabled() is not self._trains:
            return
        self._runs_forward = True
        if self._parts["weights"] is None:
            tensors = [
                *module.parameters(),
                *module.buffers(),
                *(each for parameter in module.parameters() for each in tensors_behind(parameter)),
            ]
            self._parts["weights"] = _bytes_of(tensors, self._device)
        self._counter.begin_phase(self.taken + 1, "forward")

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        gradients = (each.grad for group in optimizer.param_groups for each in group["params"])
        self._parts["gradients"] = _bytes_of(gradients, self._device)
        self._counter.begin_phase(self.taken + 1, "optimizer step")

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._counter.wait_for_device()
        states = (each for each in tree_leaves(list(optimizer.state.values())) if isinstance(each, torch.Tensor))
        self._parts["optimizer"] = _bytes_of(states, self._device)
        self._runs_forward = False
        self.taken += 1
        if self.taken == 1:
            self._stages.wait("first step", {})
        if self.taken == self._wanted:
            self._stages.report("done", self.end())
            os._exit(0)

    def end(self) -> dict[str, Any]:
        """Return the figures, once memory was read from outside."""
        self._counter.begin_phase(self.taken, "end")
        figures = self.figures()
        cuda = getattr(torch.version, "cuda", None)
        versions = {**loaded_versions(), **({"cuda": str(cuda)} if cuda else {})}
        self._stages.wait("steady", figures)
        return {**figures, "versions": versions}

    def figures(self) -> dict[str, Any]:
        """Return what was counted."""
        return {
            "peaks": [
                {"step": step, "phase": phase, "allocated": allocated, "reserved": reserved}
                for (step, phase), (allocated, reserved) in self._counter.peaks.items()
                if phase != "end"
            ],
            "components": dict(self._parts),
            "retries": self._counter.retries(),
            "allocator": self._counter.allocator(),
        }


def _start_counting(plan: dict[str, Any], rank: int, stages: Stages) -> _PhaseCounter:
    """Take this rank's device, as far as it may be used, and return its counter."""
    if plan["device"] == "cpu":
        stages.wait("context", {})
        return _CpuCounter(plan["limits"][rank])
    if not torch.cuda.is_available():
        raise RefusedError(f"torch {torch.__version__} sees no CUDA GPU; --cpu runs a tiny model on the CPU instead")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
    except RuntimeError as error:  # the GPU is full, prohibited, or another program's alone
        text = " ".join(str(error).split())[:200]
        raise RefusedError(f"CUDA cannot be started on GPU {torch.cuda.current_device()}: {text}") from None
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    keep, limit = plan["keeps"][rank], plan["limits"][rank]
    allowed = [] if limit is None else [limit]
    if keep is not None:  # others hold memory there: the allocator must fail before they do
        allowed.append(free - keep + torch.cuda.memory_reserved())
        if allowed[-1] <= 0:
            raise RefusedError("another program has taken the rest of the GPU's memory; try again")
    if allowed:
        torch.cuda.set_per_process_memory_fraction(min(1.0, min(allowed) / total))
    stages.wait("context", {})
    return _PhaseCounter()


def _bytes_of(tensors: Iterable[Any], device: str) -> int:
    """Return the bytes of the storages of tensors that are on this kind of device, each storage once."""
    sizes = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local is not None and local.device.type == device:
            storage = local.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


_OutOfMemoryError: Any = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
"""Out-of-memory errors of torch: ``torch.OutOfMemoryError`` since 2.5, ``torch.cuda.OutOfMemoryError`` before."""
_BYTES = ("requested", "allocated", "active", "inactive_split", "reserved")
_COUNTERS = (
    *(f"{name}_bytes.all.current" for name in _BYTES),
    *("segment.all.current", "num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"),
)
"""Entries of ``torch.cuda.memory_stats``; older versions of torch lack some."""


class _PhaseCounter:
    """Peaks of the phases of each step, as CUDA's caching allocator counts them."""

    def __init__(self) -> None:
        self.peaks: dict[tuple[int, str], tuple[int, int | None]] = {}
        """Allocated and reserved peaks by step and phase; None: the device has no such figure."""
        self.now: tuple[int, str] = (0, "")
        """Step and phase that is running."""

    def begin_phase(self, step: int, phase: str) -> None:
        """Start a phase; the phase before it ends."""
        if self.now[1]:
            allocated, reserved = self.take_peaks()
            known = self.peaks.get(self.now, (0, None))
            self.peaks[self.now] = max(known[0], allocated), None if reserved is None else max(known[1] or 0, reserved)
        self.now = step, phase

    def take_peaks(self) -> tuple[int, int | None]:
        """Return the allocated and reserved peaks since the last call, and start again."""
        found = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        return found

    def levels(self) -> tuple[int, int | None]:
        """Return the bytes that are allocated and reserved now."""
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def retries(self) -> int | None:
        """Return how often the allocator freed its cache because memory was full; None: it has no cache."""
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def allocator(self) -> dict[str, Any] | None:
        """Return the allocator's name, settings and counters of now; None: it has none."""
        counters = torch.cuda.memory_stats()
        return {
            "backend": torch.cuda.get_allocator_backend(),
            "settings": torch.cuda.memory._snapshot().get("allocator_settings", {}),
            "counters": {name: counters[name] for name in _COUNTERS if name in counters},
        }

    def counting(self) -> Any:
        """Return the context in which memory is counted: the allocator always counts."""
        return contextlib.nullcontext()

    def wait_for_device(self) -> None:
        """Wait until the device is done, as reading the loss does."""
        torch.cuda.synchronize()


class _CpuCounter(_PhaseCounter, TorchDispatchMode):  # type: ignore[misc] # torch is not type-checked
    """Counts the storages of CPU tensors in blocks of the allocator's size; there is no cache to count.

    Those count that appear while the mode is active, until they are released.

    Args:
        capacity: bytes beyond which an allocation fails; None: those of the machine.
    """

    def __init__(self, capacity: int | None) -> None:
        _PhaseCounter.__init__(self)
        TorchDispatchMode.__init__(self)
        self._live = self._peak = 0
        self._capacity = capacity
        self._sizes: dict[int, int] = {}

    def take_peaks(self) -> tuple[int, int | None]:
        """Return the peak of the counted bytes."""
        peak, self._peak = self._peak, self._live
        return peak, None

    def levels(self) -> tuple[int, int | None]:
        """Return the counted bytes."""
        return self._live, None

    def retries(self) -> int | None:
        """Return None: the CPU has no caching allocator that could retry."""
        return None

    def allocator(self) -> dict[str, Any] | None:
        """Return None: there is none."""
        return None

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the storages that are made inside, and follow those that FSDP empties and fills again in place."""
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            result = original(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage._cdata, block_bytes(size))
            return result

        with self, replaced((torch.UntypedStorage, "resize_", resize)):
            yield

    def wait_for_device(self) -> None:
        """Do nothing: a CPU is done when a call ends."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(kind is FakeTensor or kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # a DTensor's operation, not one of bitsandbytes' weights, comes back as those inside
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                storage = leaf.untyped_storage()
                if storage._cdata not in self._sizes:
                    weakref.finalize(storage, self._release, storage._cdata).atexit = False
                    self._set(storage._cdata, block_bytes(storage.nbytes()))
        return result

    def _release(self, key: int) -> None:
        self._live -= self._sizes.pop(key)

    def _set(self, key: int, size: int) -> None:
        live = self._live + size - self._sizes.get(key, 0)
        if self._capacity is not None and live > self._capacity:
            raise _OutOfMemoryError(
                f"Tried to allocate {size} bytes on the CPU; the limit is {self._capacity}, and {self._live} are in use"
            )
        self._live, self._sizes[key] = live, size
        self._peak = max(self._peak, live)
