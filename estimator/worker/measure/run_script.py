"""Runs a training script for real, as one of its ranks, and reports the memory that it takes by phase."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from ..memory.tracker import block_bytes
from ..optimizer_states import LiveBytes
from ..replaced import replaced
from ..request.protocol import RefusedError, library_versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Counters of the memory of real steps by phase: CUDA's caching allocator, or the storages of CPU tensors.


OutOfMemoryError: Any = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
"""Out-of-memory errors of torch: ``torch.OutOfMemoryError`` since 2.5, ``torch.cuda.OutOfMemoryError`` before."""
_BYTES = ("requested", "allocated", "active", "inactive_split", "reserved")
_COUNTERS = (
    *(f"{name}_bytes.all.current" for name in _BYTES),
    *("segment.all.current", "num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"),
)
"""Entries of ``torch.cuda.memory_stats``; older versions of torch lack some."""


class PhaseCounter:
    """Peaks of the phases of each step. Subclasses read the memory."""

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
        raise NotImplementedError

    def levels(self) -> tuple[int, int | None]:
        """Return the bytes that are allocated and reserved now."""
        raise NotImplementedError

    def retries(self) -> int | None:
        """Return how often the allocator freed its cache because memory was full; None: it has no cache."""
        return None

    def allocator(self) -> dict[str, Any] | None:
        """Return the allocator's name, settings and counters of now; None: it has none."""
        return None

    def counting(self) -> Any:
        """Return the context in which memory is counted."""
        raise NotImplementedError

    def wait_for_stream(self) -> None:
        """Wait until the device is done, as reading the loss does."""


class CudaCounter(PhaseCounter):
    """Counters of CUDA's caching allocator."""

    def take_peaks(self) -> tuple[int, int | None]:
        """Return the peaks, and reset torch's counters."""
        found = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        return found

    def levels(self) -> tuple[int, int | None]:
        """Return torch's counters."""
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def retries(self) -> int | None:
        """Return torch's ``num_alloc_retries``."""
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def allocator(self) -> dict[str, Any]:
        """Return what torch says of its allocator."""
        counters = torch.cuda.memory_stats()
        return {
            "backend": torch.cuda.get_allocator_backend(),
            "settings": torch.cuda.memory._snapshot().get("allocator_settings", {}),
            "counters": {name: counters[name] for name in _COUNTERS if name in counters},
        }

    def counting(self) -> Any:
        """Return an empty context: the allocator always counts."""
        return contextlib.nullcontext()

    def wait_for_stream(self) -> None:
        """Synchronize."""
        torch.cuda.synchronize()


class CpuCounter(PhaseCounter):
    """Counts the storages of CPU tensors in blocks of the allocator's size; there is no cache to count.

    Args:
        capacity: bytes beyond which an allocation fails; None: those of the machine.
    """

    def __init__(self, capacity: int | None) -> None:
        super().__init__()
        self._live = _CpuStorages(capacity)

    def take_peaks(self) -> tuple[int, int | None]:
        """Return the peak of the counted bytes."""
        peak, self._live.peak = self._live.peak, self._live.live
        return peak, None

    def levels(self) -> tuple[int, int | None]:
        """Return the counted bytes."""
        return self._live.live, None

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the storages that are made inside."""
        with self._live, self._live.counting_resize():
            yield


class _CpuStorages(LiveBytes):
    def __init__(self, capacity: int | None) -> None:
        super().__init__()
        self._capacity = capacity
        self._sizes: dict[int, int] = {}

    def _count(self, tensor: Any) -> None:
        if tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._seen:
            self._seen.add(key)
            weakref.finalize(storage, self._release, key, 0).atexit = False
            self._set(key, block_bytes(storage.nbytes()))

    def _release(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= self._sizes.pop(key, size)

    def _set(self, key: int, size: int) -> None:
        live = self.live + size - self._sizes.get(key, 0)
        if self._capacity is not None and live > self._capacity:
            raise OutOfMemoryError(
                f"Tried to allocate {size} bytes on the CPU; the limit is {self._capacity}, and {self.live} are in use"
            )
        self.live, self._sizes[key] = live, size
        self.peak = max(self.peak, live)

    @contextlib.contextmanager
    def counting_resize(self) -> Iterator[None]:
        """Follow storages that FSDP empties and fills again in place."""
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            result = original(storage, size)
            if storage._cdata in self._seen:
                self._set(storage._cdata, block_bytes(size))
            return result

        with replaced((torch.UntypedStorage, "resize_", resize)):
            yield


# The script's steps, followed by the hooks of its modules and optimizers.


SCRIPT = "train.py"
"""Its name in the caller's folder."""
_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""In errors of CUDA's libraries and NCCL, which allocate outside of torch."""
_LIBRARIES = ("transformers", "accelerate", "peft", "trl", "bitsandbytes", "deepspeed", "flash_attn", "liger_kernel")


def run_script(plan: dict[str, Any], stages: Stages) -> dict[str, Any]:
    """Run the script in the caller's folder until it has taken its steps, and return the memory that they take.

    The process ends in it, once they are reported.

    Args:
        plan: ``folder``, ``device``, ``steps``, and by rank ``limits``, the bytes that it may allocate, and ``keeps``,
            the bytes of its GPU that it must leave free; None: none.
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
        if not _is_out_of_memory(error):
            raise
        allocated, reserved = counter.levels()
        step, phase = counter.now
        failed = {"step": step, "phase": phase, "message": " ".join(str(error).split())[:600]}
        counter.begin_phase(step, "end")
        levels = {"allocated_bytes": allocated, "reserved_bytes": reserved}
        return {"out_of_memory": {**failed, **levels}, **steps.figures()}
    if not steps.taken:
        raise RefusedError("the job's program ended before an optimizer had stepped")
    return steps.end()


class _Steps:
    """Phases of a script's steps.

    Args:
        plan: with the number of ``steps``.
        counter: of the memory.
        stages: where they are reported.
    """

    def __init__(self, plan: dict[str, Any], counter: PhaseCounter, stages: Stages) -> None:
        self.taken = 0
        self._wanted = plan["steps"]
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
        if self._runs_forward or not torch.is_grad_enabled():
            return
        self._runs_forward = True
        if self._parts["weights"] is None:
            tensors = [*module.parameters(), *module.buffers(), *_quantization_states(module)]
            self._parts["weights"] = _bytes_of(tensors, self._device)
        self._counter.begin_phase(self.taken + 1, "forward")

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        gradients = (each.grad for group in optimizer.param_groups for each in group["params"])
        self._parts["gradients"] = _bytes_of(gradients, self._device)
        self._counter.begin_phase(self.taken + 1, "optimizer step")

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._counter.wait_for_stream()
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
        self._stages.wait("steady", figures)
        return {**figures, "versions": versions()}

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


def versions() -> dict[str, str]:
    """Return the versions of what has taken part."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    found["cuda"] = getattr(getattr(torch, "version", None), "cuda", None)
    return {**library_versions(), **{name: str(version) for name, version in found.items() if version}}


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, OutOfMemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)


def _start_counting(plan: dict[str, Any], rank: int, stages: Stages) -> PhaseCounter:
    """Take this rank's device, as far as it may be used, and return its counter."""
    if plan["device"] == "cpu":
        stages.wait("context", {})
        return CpuCounter(plan["limits"][rank])
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
    return CudaCounter()


def _bytes_of(tensors: Iterable[Any], device: str) -> int:
    """Return the bytes of the storages of tensors that are on this kind of device, each storage once."""
    sizes = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local is not None and local.device.type == device:
            storage = local.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


def _quantization_states(model: Any) -> Iterator[Any]:
    """Yield the constants with which bitsandbytes' weights are scaled back."""
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        while state is not None:
            yield from (each for each in vars(state).values() if isinstance(each, torch.Tensor))
            state = getattr(state, "state2", None)
        for name in ("CB", "SCB"):
            if isinstance(getattr(parameter, name, None), torch.Tensor):
                yield getattr(parameter, name)


# Stages of a measurement, through files in a folder that the caller made: each rank writes, the caller answers.
#
# ``RANK.STAGE.json`` is written when a rank reaches a stage; at those at which memory is read from outside, it waits
# for the caller's ``STAGE.go``.


WAIT_SECONDS = 3600.0
"""Time after which a rank goes on without an answer; it waits for its turn while another job has the GPU."""
_POLL_SECONDS = 0.01


class Stages:
    """What a rank reports.

    Args:
        folder: of the caller.
        rank: its number.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank

    def report(self, stage: str, figures: dict[str, Any]) -> None:
        """Write a stage and its figures."""
        path = self._folder / f"{self._rank}.{stage}.json"
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"pid": os.getpid(), **figures}), encoding="utf-8")
        unfinished.rename(path)

    def wait(self, stage: str, figures: dict[str, Any]) -> None:
        """Write a stage, and wait until the caller has read the memory."""
        self.report(stage, figures)
        until = time.monotonic() + WAIT_SECONDS
        while not (self._folder / f"{stage}.go").exists() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
