"""Worker program: runs a job's training steps on fake tensors and tells what torch allocates, as JSON lines over pipes.

Run by its file's path under any Python (3.9 or newer) that has torch (2.6 or newer for sharding, else 2.4) and
transformers (4.53 or newer), and peft for adapters. Requests and answers as in ``protocol``:

    {"id": 1, "op": "ping"} -> {"id": 1, "versions": {...}}
    {"id": 2, "op": "trace", "config": {...}, "task": "causal-lm", "attention": "sdpa",
     "training": {...}, "lora": {...} or null, "parallel": {...}}  with the fields of job files
        -> {"id": 2, "parameters": ..., "trainable": ..., "phases": {"forward": {"allocated": ..., "components": {...}},
            ...}, "peak_tensors": [...], "timeline": [[event, bytes], ...],
            "timeline_components": {"weights": [bytes, ...], ...}, "timeline_phases": [[phase, event], ...],
            "reserved": {...}, "allocations": "...", "versions": {...}, "seconds": ...}

or ``{"id": 2, "unsupported": "one sentence"}`` for what tracing cannot run. Tensors are fake CPU tensors: no memory is
used and no card touched; where a card allocates otherwise than a CPU, that stands in (``cuda_kernels``,
``cuda_autocast``; sums of gradients in place), unless the request says ``"as_is": true``. Fake tensors on "cuda" would
do without in a forward pass, but a backward pass of theirs asks for a real device (``hasPrimaryContext`` in autograd's
engine; without CUDA in the build, for the device guard).
"""

from __future__ import annotations

import gc
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: the folder becomes a package, so that its names hide no library's
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parent), *(entry for entry in sys.path if not entry or Path(entry).resolve() != here)]
    import_module(here.name)
    del sys.path[0]
    __package__ = here.name

from .request.protocol import ping, serve, versions


def trace(message: dict[str, Any]) -> dict[str, Any]:
    """The memory of two training steps; figures of the second."""
    begun = time.monotonic()
    from .memory.replay_reserved import pack, reserved
    from .memory.summary import allocator_events, summarize
    from .request.limits import UnsupportedError
    from .request.request import read_request
    from .step.training_steps import trace_steps

    gc.freeze()  # the libraries' own objects need not be looked through again and again
    request = read_request(message)
    try:
        traced = trace_steps(request)
    except UnsupportedError as reason:
        return {"unsupported": str(reason)}
    summary = summarize(traced.history)
    allocations = list(allocator_events(traced.history))
    return {
        "parameters": traced.parameters,
        "trainable": traced.trainable,
        **summary,
        "reserved": reserved(allocations, [event for event, _ in summary["timeline"]], request.allocator),
        "allocations": pack(allocations),
        "versions": versions(),
        "seconds": round(time.monotonic() - begun, 3),
    }


OPERATIONS = {"ping": ping, "trace": trace}


if __name__ == "__main__":
    serve(OPERATIONS)
