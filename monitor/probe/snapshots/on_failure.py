"""Records the allocator's history, and writes a snapshot when an allocation fails. Runs in the user's process.

Once the program initializes CUDA by itself, ``torch.cuda.memory._record_memory_history`` begins with a bounded history
(2 microseconds per allocation, by its documentation), and an observer is attached that torch calls before it raises
OutOfMemoryError (``_cuda_attach_out_of_memory_observer`` of ``torch/csrc/cuda/Module.cpp``, torch 2.0 to 2.13). Both
would initialize CUDA, so they wait in torch's own queue of calls (``torch.cuda._lazy_call``). The program sees the same
exception at the same place; nothing is kept of its tensors.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from .. import publisher
from .dump import CannotDumpError, dump, settings

MAX_ENTRIES = 100_000
"""Entries of the history: several steps of a large model, and some 50 MB in the file."""
MAX_SNAPSHOTS = 3
"""A program that catches the failure and tries again may run out of memory for hours."""
MIN_SECONDS = 30.0
"""Between two snapshots; torch may call twice for one failure."""
_state: dict[str, Any] = {"queued": False, "count": 0, "last": 0.0}


def arm(folder: str | None = None) -> None:
    """Have a snapshot written when the program runs out of GPU memory; never raises and does not initialize CUDA.

    Args:
        folder: where snapshots go; None: the folder that is current at the failure.
    """
    settings["folder"] = os.path.abspath(folder) if folder else settings["folder"]
    if not _queue() and _queue not in publisher.every_tick:
        publisher.every_tick.append(_queue)  # torch is imported later


def _queue() -> bool:
    """Queue the start for the moment when the program initializes CUDA; return True if that is done."""
    if _state["queued"]:
        return True
    torch = sys.modules.get("torch")
    cuda = vars(torch).get("cuda") if torch is not None else None
    later = getattr(cuda, "_lazy_call", None)
    if later is None or not hasattr(cuda, "memory"):  # also while torch is being imported
        return False
    _state["queued"] = True
    later(_start)
    return True


def _start() -> None:
    """Record and observe; an exception here would reach the program."""
    try:
        torch: Any = sys.modules["torch"]
        is_recording = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if is_recording is None or not is_recording():  # a history that the program records stays as it is
            _record(torch.cuda.memory._record_memory_history)
        torch._C._cuda_attach_out_of_memory_observer(_observe)
    except Exception:  # another torch: the program goes on without
        pass


def _record(record: Any) -> None:
    try:
        record("all", context="alloc", stacks="python", max_entries=MAX_ENTRIES)
    except TypeError:  # torch 2.0
        record(True, trace_alloc_max_entries=MAX_ENTRIES, trace_alloc_record_context=True)


def _observe(device: int, tried: int, total: int, free: int) -> None:
    """Write a snapshot; torch calls this before it raises, without its locks.

    ``total`` is the limit of ``set_per_process_memory_fraction`` where one is set (CUDACachingAllocator.cpp).
    """
    try:
        now = time.monotonic()
        if _state["count"] >= MAX_SNAPSHOTS or (_state["count"] and now - _state["last"] < MIN_SECONDS):
            return
        _state["count"] += 1
        failure = {"device": device, "tried_bytes": tried, "total_bytes": total, "free_bytes": free}
        try:
            path, size = dump("oom", failure=failure)
        except CannotDumpError as error:
            _say(f"out of GPU memory; no snapshot was written: {error}")
        else:
            _say(f"out of GPU memory; a snapshot is in {path} ({size >> 20} MiB): vramtop explain {path}")
        _state["last"] = time.monotonic()
    except Exception:  # no exception of the probe may take the place of the program's own
        pass


def _say(sentence: str) -> None:
    stream = sys.stderr
    if stream is not None:
        stream.write(f"vramtop: {sentence}\n")
        stream.flush()
