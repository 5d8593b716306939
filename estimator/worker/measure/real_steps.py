"""The steps of a measurement: the traced step's own code on real tensors, and the memory that it takes by phase."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..request.errors import RefusedError, UnsupportedError
from ..request.protocol import library_versions
from ..step.forward_pass import run_inference
from ..step.optimizer_step import OptimizerStep, tensors_in
from ..step.training_steps import accumulate_gradients
from .counters import CpuCounter, CudaCounter, OutOfMemoryError
from .own_kernels import with_own_kernels
from .placed_model import placed_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..request.request import Request
    from .counters import PhaseCounter
    from .stages import Stages

_CPU = torch.device("cpu")
_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""In errors of CUDA's libraries and NCCL, which allocate outside of torch."""
_LIBRARIES = ("peft", "bitsandbytes", "flash_attn", "liger_kernel")


def run_steps(request: Request, plan: dict[str, Any], stages: Stages) -> dict[str, Any]:
    """Run the job's steps as one of its ranks, and return the memory that they take.

    Args:
        request: the job.
        plan: ``steps``; ``varying``, whether batches differ in length; and by rank ``limits``, the bytes that it may
            allocate, and ``keeps``, the bytes of its GPU that it must leave free; None: none.
        stages: where they are reported.

    Raises:
        RefusedError: the installed libraries cannot run it, or there is no CUDA.
        UnsupportedError: the model returns no loss, for example.
    """
    rank = int(os.environ.get("RANK", "0"))
    stages.wait("ready", {})
    counter = _start_counting(request, plan, rank, stages)
    device = torch.device(request.device, torch.cuda.current_device()) if request.device == "cuda" else _CPU
    parts: dict[str, int | None] = {"weights": None, "gradients": None, "optimizer": None}
    try:
        with warnings.catch_warnings(), _process_group(request), counter.counting():
            warnings.simplefilter("ignore")
            counter.begin_phase(0, "loading")
            model = placed_model(request, device)
            request = with_own_kernels(request, model)
            if request.training.mode == "train":
                _train(model, request, counter, plan, parts, stages=stages)
            else:
                parts["weights"] = _bytes_of([*model.parameters(), *model.buffers()], request.device)
                cache = run_inference(model, request, counter)  # type: ignore[arg-type] # it has the tracker's methods
                stages.wait("first step", {})
                _decode(model, cache, request, counter, plan["steps"])
            figures = _figures(counter, parts)
            stages.wait("steady", figures)
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        allocated, reserved = counter.levels()
        step, phase = counter.now
        failed = {"step": step, "phase": phase, "message": " ".join(str(error).split())[:600]}
        counter.begin_phase(step, "end")
        levels = {"allocated_bytes": allocated, "reserved_bytes": reserved}
        return {"out_of_memory": {**failed, **levels}, **_figures(counter, parts)}
    return figures


def versions() -> dict[str, str]:
    """Return the versions of what has taken part."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    found["cuda"] = getattr(getattr(torch, "version", None), "cuda", None)
    return {**library_versions(), **{name: str(version) for name, version in found.items() if version}}


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, OutOfMemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)


def _start_counting(request: Request, plan: dict[str, Any], rank: int, stages: Stages) -> PhaseCounter:
    """Take this rank's device, as far as it may be used, and return its counter."""
    if request.device == "cpu":
        stages.wait("context", {})
        return CpuCounter(plan["limits"][rank])
    if not torch.cuda.is_available():
        raise RefusedError(
            f"torch {torch.__version__} sees no GPU through CUDA here; --cpu runs a tiny model on the CPU instead"
        )
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
            raise RefusedError("another program has taken the rest of the GPU's memory meanwhile; try again")
    if allowed:
        torch.cuda.set_per_process_memory_fraction(min(1.0, min(allowed) / total))
    stages.wait("context", {})
    return CudaCounter()


@contextlib.contextmanager
def _process_group(request: Request) -> Iterator[None]:
    """Join the job's other ranks, which torchrun has started.

    A rank that fails does not leave the group: since torch 2.6 that waits until NCCL has finished everywhere
    (``ProcessGroupNCCL::shutdown``), and the others wait for this rank. It reports, and ends (``__main__``).
    """
    if request.parallel.world_size == 1:
        yield
        return
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo,cuda:nccl" if request.device == "cuda" else "gloo")
    yield
    dist.destroy_process_group()


class _RealStep(OptimizerStep):
    """The optimizer's step with a gradient scaler that looks at the gradients."""

    def __init__(self, request: Request, trained: list[tuple[str, Any]], counter: Any) -> None:
        super().__init__(request, trained, counter)
        if self._scaler is not None:
            self._scaler = torch.amp.GradScaler(request.device)

    def state_tensors(self) -> Iterator[Any]:
        """Yield the tensors of the states."""
        for state in self._optimizer.state.values() if self._optimizer is not None else ():
            yield from tensors_in(state)


def _train(
    model: Any,
    request: Request,
    counter: PhaseCounter,
    plan: dict[str, Any],
    parts: dict[str, int | None],
    *,
    stages: Stages,
) -> None:
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if not trained:
        raise UnsupportedError("no parameter trains, so that there is no backward pass")
    parts["weights"] = _bytes_of([*model.parameters(), *model.buffers(), *_quantization_states(model)], request.device)
    counter.begin_phase(0, "wrapping")
    optimizer, variables = _RealStep(request, trained, counter), [None]
    tracker: Any = counter
    for step in range(1, plan["steps"] + 1):
        batch = _of_length(request, step, plan["steps"]) if plan.get("varying") else request
        accumulate_gradients(model, batch, tracker, optimizer, step, variables=variables, buckets=None)
        parts["gradients"] = _bytes_of((each.grad for _, each in trained), request.device)
        counter.begin_phase(step, "optimizer step")
        optimizer.step()
        counter.wait_for_stream()
        if not request.training.optimizer_in_backward:
            parts["optimizer"] = _bytes_of(optimizer.state_tensors(), request.device)
        model.zero_grad(set_to_none=True)
        if step == 1:
            stages.wait("first step", {})
    counter.begin_phase(plan["steps"], "end")


def _of_length(request: Request, step: int, steps: int) -> Request:
    """Return the job with the length of one step's batch: any from an eighth on; the step in the middle has all."""
    longest = request.training.sequence_length
    drawn = random.Random(step).randint(-(-longest // 8), longest)  # noqa: S311 - the same ones in every run
    length = longest if step == (steps + 1) // 2 else drawn
    return replace(request, training=replace(request.training, sequence_length=length))


def _decode(model: Any, cache: Any, request: Request, counter: PhaseCounter, steps: int) -> None:
    """Generate a token at a time behind the prompt, as far as the model keeps a cache."""
    if cache is None or request.task != "causal-lm":
        return
    with torch.no_grad(), torch.device(request.device):
        tokens = torch.zeros((request.training.sequences, 1), dtype=torch.long)
        for step in range(3, steps + 3):  # the prompt is step 2
            counter.begin_phase(step, "decoding")
            outputs = model(input_ids=tokens, past_key_values=cache, use_cache=True)
            tokens = outputs.logits[:, -1:].argmax(-1)
            del outputs
    counter.wait_for_stream()
    counter.begin_phase(steps + 3, "end")


def _figures(counter: PhaseCounter, parts: dict[str, int | None]) -> dict[str, Any]:
    return {
        "peaks": [
            {"step": step, "phase": phase, "allocated": allocated, "reserved": reserved}
            for (step, phase), (allocated, reserved) in counter.peaks.items()
            if phase not in ("wrapping", "end")
        ],
        "components": dict(parts),
        "retries": counter.retries(),
        "allocator": counter.allocator(),
    }


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
        yield from tensors_in(getattr(state, "__dict__", {}))
        for name in ("CB", "SCB"):
            if isinstance(getattr(parameter, name, None), torch.Tensor):
                yield getattr(parameter, name)
