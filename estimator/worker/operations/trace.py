"""Operation ``trace``: runs two training steps of a job on fake tensors and returns what torch allocates.

    {"op": "trace", "config": {...}, "task": "causal-lm", "attention": "sdpa",
     "training": {...}, "lora": {...} or null, "parallel": {...},  with the fields of job files
     "older": {...},  what versions that the job states do otherwise than the installed ones
     "optimizer": {"path": "torch.optim:AdamW", "options": {...}} or null,
     "placing": as the operation ``inventory`` takes it as ``device_map``, where the job's is a rule}
        -> {"parameters": ..., "trainable": ..., "phases": {"forward": {"allocated": ..., "components": {...}},
            ...}, "peak_tensors": [...], "timeline": [[event, bytes], ...],
            "timeline_components": {"weights": [bytes, ...], ...}, "timeline_phases": [[phase, event], ...],
            "reserved": {...}, "allocations": "...", "versions": {...}, "seconds": ...,
            "gpu": number of the GPU with the highest peak, under a device map, or null}
        -> {"unsupported": "why this job cannot be traced"}

Needs torch (2.6 or newer for sharding, else 2.4), transformers (4.53 or newer), and peft for adapters. The tensors are
fake CPU tensors: they take no memory and no GPU is touched. Where CUDA allocates otherwise than a CPU, its behaviour
is imitated (``cuda_kernels``, ``cuda_autocast``; in-place sums of gradients) unless the request has
``"cpu_kernels": true``. Fake tensors on "cuda" would need no imitation in a forward pass, but their backward pass asks
for a real device (``hasPrimaryContext`` in autograd's engine; without CUDA in the build, for the device guard).
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

from ..memory.allocator import pack_allocations, replay_reserved
from ..memory.tracker import allocator_events, summarize
from ..request.protocol import UnsupportedError, library_versions
from ..request.request import read_request
from ..step.supported_jobs import check_supported
from .device_map import with_placement

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..request.request import Request
    from ..step.training_steps import TracedSteps


def trace(message: dict[str, Any]) -> dict[str, Any]:
    """Return the memory of the second of two training steps."""
    start = time.monotonic()
    request = read_request(message)
    try:
        check_supported(request)
        trace_layers = _import_libraries(request)
        request = with_placement(request, message.get("placing"))
        traced = trace_layers(request)
    except UnsupportedError as reason:
        return {"unsupported": str(reason)}
    from ..loops.training_loop import kernel_versions

    gc.disable()  # what is left to do makes 100,000 tuples and no garbage; the collection after the answer enables it
    summary = summarize(traced.history)
    allocations = list(allocator_events(traced.history))
    timeline_events = [event for event, _ in summary["timeline"]]
    return {
        "parameters": traced.parameters,
        "trainable": traced.trainable,
        "gpu": traced.gpu,
        **summary,
        "reserved": replay_reserved(allocations, timeline_events, request.allocator),
        "allocations": pack_allocations(allocations),
        "versions": {**library_versions(), **kernel_versions()},
        "seconds": round(time.monotonic() - start, 3),
    }


def _import_libraries(request: Request) -> Callable[[Request], TracedSteps]:
    """Import what the trace needs, and return its function.

    Every trace starts with the same state of the collector: what an earlier one left was freed after its answer.
    """
    gc.disable()  # nothing that is imported becomes garbage
    from ..model.build import import_model_code
    from ..repetition import trace_layers

    import_model_code(request.config, request.task)
    gc.freeze()  # collections during the trace need not scan the libraries' objects
    gc.enable()
    return trace_layers
