"""Worker program: runs a job's training steps on fake tensors and tells what torch allocates, as JSON lines over pipes.

Run by its file's path under any Python (3.9 or newer) that has torch (2.6 or newer for sharding, else 2.4) and
transformers (4.53 or newer), and peft for adapters. Requests and answers as in ``protocol``:

    {"id": 1, "op": "ping"} -> {"id": 1, "versions": {...}}
    {"id": 2, "op": "trace", "config": {...}, "task": "causal-lm", "attention": "sdpa",
     "training": {...}, "lora": {...} or null, "parallel": {...}}  with the fields of job files
        -> {"id": 2, "parameters": ..., "trainable": ..., "phases": {"forward": {"allocated": ..., "components": {...}},
            ...}, "peak_tensors": [...], "timeline": [[event, bytes], ...],
            "timeline_components": {"weights": [bytes, ...], ...}, "timeline_phases": [[phase, event], ...],
            "reserved": {...} or null, "versions": {...}, "seconds": ...}

or ``{"id": 2, "unsupported": "one sentence"}`` for what tracing cannot run. Tensors are fake CPU tensors: no memory is
used and no card touched; where a card allocates otherwise than a CPU, that stands in (``cuda_kernels``,
``cuda_autocast``; sums of gradients in place), unless the request says ``"as_is": true``. Fake tensors on "cuda" would
do without in a forward pass, but a backward pass of theirs asks for a real device (``hasPrimaryContext`` in autograd's
engine; without CUDA in the build, for the device guard).
"""

from __future__ import annotations

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

from .protocol import ping, serve, versions


def trace(message: dict[str, Any]) -> dict[str, Any]:
    """The memory of two training steps; figures of the second."""
    begun = time.monotonic()
    from .limits import UnsupportedError
    from .request import read_request
    from .step import trace_steps
    from .summary import summarize

    request = read_request(message)
    try:
        traced = trace_steps(request)
    except UnsupportedError as reason:
        return {"unsupported": str(reason)}
    return {
        "parameters": traced.parameters,
        "trainable": traced.trainable,
        **summarize(traced.history),
        "reserved": _reserved(traced.history, request.allocator or {}),
        "versions": versions(),
        "seconds": round(time.monotonic() - begun, 3),
    }


def _reserved(history: Any, options: dict[str, Any]) -> dict[str, Any] | None:
    """What the allocator would hold, by the model of it: over both steps, since it keeps what the first left free."""
    try:
        from .allocator import CachingAllocator
        from .allocator_settings import Settings
        from .timeline import replay
    except ImportError:
        return None
    from .summary import TIMELINE_POINTS, allocator_events

    settings = Settings.from_conf(options.get("conf"))
    capacity = options.get("capacity_bytes")
    allocator = CachingAllocator(settings, **({} if capacity is None else {"capacity_bytes": capacity}))
    indexed = list(allocator_events(history))
    line = replay((event for _, event in indexed), allocator, TIMELINE_POINTS)
    return {
        "peak": line.peak_reserved.reserved_bytes if line.peak_reserved else 0,
        "retries": line.retries,
        "out_of_memory": line.out_of_memory,
        "timeline": [[indexed[point.event][0], point.reserved_bytes] for point in line.points],
    }


OPERATIONS = {"ping": ping, "trace": trace}


if __name__ == "__main__":
    serve(OPERATIONS)
