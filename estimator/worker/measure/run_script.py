"""Runs a training script for real, as one of its ranks, and reports the memory that it takes by phase."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from ..memory.tracker import tensors_behind
from ..replaced import replaced
from ..request.protocol import RefusedError, loaded_versions
from .counters import CpuCounter, OutOfMemoryError, PhaseCounter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        if not (isinstance(error, OutOfMemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)):
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

    def __init__(self, plan: dict[str, Any], counter: PhaseCounter, stages: Stages) -> None:
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
    return PhaseCounter()


def _bytes_of(tensors: Iterable[Any], device: str) -> int:
    """Return the bytes of the storages of tensors that are on this kind of device, each storage once."""
    sizes = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local is not None and local.device.type == device:
            storage = local.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())
