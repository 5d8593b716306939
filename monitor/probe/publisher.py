"""Publishes what torch's allocator and transformers' trainer know, from inside a training process, once a second.

Runs in the user's process, under its Python (3.8 or newer) and its torch: standard library only, no import of torch,
no call that would make a CUDA context, one daemon thread, nothing left behind. What is published lies in a memfd named
``vramtop-probe``, which a reader finds among the process's open files:

    8 bytes magic, u64 sequence (odd while it is written), u32 length of the figures, u32 length of the facts,
    the figures (JSON, made anew each time), the facts (JSON, made when they change)

It is written through a mapping, never through the descriptor: where a program closes descriptors that it does not
know, that number may soon be a file of its own.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"VRAMTOP1"
HEADER = struct.Struct("<8sQII")
LIMIT = 1 << 20
INTERVAL_SECONDS = 1.0
_NOEXEC_SEAL = 0x8
"""MFD_NOEXEC_SEAL: kernels before 6.3 do not know it, some later ones insist on it (vm.memfd_noexec=2)."""

_lock = threading.RLock()
"""Held while something is started or written; a signal handler may come in between."""
_state: dict[str, Any] = {"pid": 0, "file": -1, "identity": None, "memory": None, "sequence": 0, "wake": None}
_hooked: list[bool] = []
_facts: dict[str, Any] = {}
_encoded = [b"{}"]
"""The facts as JSON."""
_steps: dict[str, Any] = {"count": 0, "began": None, "ended": None, "seconds": None, "last": None}
_devices: dict[int, dict[str, Any]] = {}
"""What must be remembered of each device that was allocated on: its UUID, peaks, when memory ran out."""


def start(interval: float = INTERVAL_SECONDS) -> None:
    """Start the thread, once per process. Where no memory file or thread is to be had, nothing happens."""
    with _lock:
        if _state["pid"] == os.getpid() or not hasattr(os, "memfd_create"):
            return
        try:
            file = _memory_file()
        except OSError:  # the limit of open files, a sandbox
            return
        try:
            os.ftruncate(file, LIMIT)
            status = os.fstat(file)
            wake = threading.Event()
            _state.update(file=file, identity=(status.st_dev, status.st_ino), memory=mmap.mmap(file, LIMIT))
            _state.update(sequence=0, wake=wake, pid=os.getpid())
            threading.Thread(target=_run, args=(interval, wake), name="vramtop-probe", daemon=True).start()
        except (OSError, ValueError, RuntimeError):  # no memory, no more threads
            _let_go()
            return
        if not _hooked:
            _hooked.append(True)
            os.register_at_fork(after_in_child=_forget)
            atexit.register(_quietly, _say_last)


def tell(**facts: Any) -> None:
    """Publish more facts beside the allocator's; values that are no JSON become text, here and now."""
    _quietly(_tell, facts)


def step_began() -> None:
    """Say that a training step begins; only needed where time between steps should not count."""
    _steps["began"] = time.time()


def step_ended(step: Any = None) -> None:
    """Say that a training step ended.

    Args:
        step: what it is called; a step that is told twice in a row counts once.
    """
    if step is not None and step == _steps["last"]:
        return
    now = time.time()
    before = max((moment for moment in (_steps["began"], _steps["ended"]) if moment is not None), default=None)
    seconds = None if before is None else max(0.0, now - before)
    _steps.update(count=_steps["count"] + 1, ended=now, seconds=seconds, last=step)


def _tell(facts: dict[str, Any]) -> None:
    all_facts = {**_facts, **facts}
    _encoded[0] = json.dumps(all_facts, default=str, skipkeys=True).encode("utf-8")
    _facts.update(facts)


def _run(interval: float, wake: threading.Event) -> None:
    while _state["pid"] == os.getpid() and not wake.is_set():
        _quietly(_publish)
        wake.wait(interval)


def _quietly(function: Callable[..., None], *args: Any) -> None:
    try:
        function(*args)
    except Exception:  # nothing of ours may reach the user's program
        pass


def _publish(**more: Any) -> None:
    figures = json.dumps({**_sample(), **more}).encode("utf-8")
    with _lock:
        if _state["pid"] == os.getpid():
            _write(figures, _encoded[0])


def _write(figures: bytes, facts: bytes) -> None:
    if HEADER.size + len(figures) + len(facts) > LIMIT:
        facts = b"{}"
    memory, sequence = _state["memory"], _state["sequence"] + 2
    memory[: HEADER.size] = HEADER.pack(MAGIC, sequence - 1, len(figures), len(facts))
    memory[HEADER.size : HEADER.size + len(figures) + len(facts)] = figures + facts
    memory[: HEADER.size] = HEADER.pack(MAGIC, sequence, len(figures), len(facts))
    _state["sequence"] = sequence


def _say_last() -> None:
    """At the interpreter's end: the figures once more, and the kind of exception that ended it."""
    if _state["pid"] != os.getpid():
        return
    _state["wake"].set()
    error = getattr(sys, "last_type", None)  # set where the interpreter shows an exception that nobody caught
    _publish(ended=time.time(), error=getattr(error, "__name__", None))


def _sample() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    names = vars(torch) if torch is not None else {}  # not getattr: some of torch's names are imported when asked for
    return {
        "schema": 1,
        "pid": os.getpid(),
        "time": time.time(),
        "torch": str(names.get("__version__", "")),
        "steps": {name: _steps[name] for name in ("count", "began", "ended", "seconds")},
        "devices": _devices_of(names.get("cuda")),
    }


def _devices_of(cuda: Any) -> list[dict[str, Any]]:
    try:
        return _told_devices(cuda)
    except Exception:  # steps and facts are told all the same
        return []


def _told_devices(cuda: Any) -> list[dict[str, Any]]:
    if not hasattr(cuda, "is_initialized") or not cuda.is_initialized():
        return []
    # Only torch's own allocator keeps tables that can be read without a call to CUDA, which could end a graph capture.
    if hasattr(cuda, "get_allocator_backend") and cuda.get_allocator_backend() != "native":
        return []
    told = (_told_device(cuda, index) for index in range(cuda.device_count()))
    return [device for device in told if device is not None]


def _told_device(cuda: Any, index: int) -> dict[str, Any] | None:
    """One device's counters; None for one that the program has not allocated on."""
    stats = cuda.memory_stats_as_nested_dict(index)  # memory_stats flattens it in Python, which takes much longer
    allocated, reserved, active = (
        stats.get(f"{name}_bytes", {}).get("all", {}) for name in ("allocated", "reserved", "active")
    )
    if index not in _devices:
        if not reserved.get("peak"):
            return None
        uuid = getattr(cuda.get_device_properties(index), "uuid", None)  # torch 2.4 and newer
        _devices[index] = {"uuid": None if uuid is None else str(uuid), "out_of_memory": 0}
    known = _devices[index]
    for name, counted in (("allocated_peak_bytes", allocated), ("reserved_peak_bytes", reserved)):
        if "peak" in counted:  # programs reset it
            known[name] = max(counted["peak"], known.get(name, 0))
    out_of_memory = stats.get("num_ooms")
    if (out_of_memory or 0) > known["out_of_memory"]:
        known.update(out_of_memory=out_of_memory, out_of_memory_time=time.time())
    return {
        **known,
        "index": index,
        "allocated_bytes": allocated.get("current"),
        "reserved_bytes": reserved.get("current"),
        "active_bytes": active.get("current"),
        "retries": stats.get("num_alloc_retries"),
        "out_of_memory": out_of_memory,
    }


def _memory_file() -> int:
    try:
        return os.memfd_create("vramtop-probe", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError:
        return os.memfd_create("vramtop-probe")


def _forget() -> None:
    """In a child made by ``fork``: it is another process, and the parent's figures are not its own."""
    global _lock
    _lock = threading.RLock()  # whoever held it is not there any more
    _devices.clear()
    _steps.update(count=0, began=None, ended=None, seconds=None, last=None)
    _let_go()


def _let_go() -> None:
    file, identity, memory = _state["file"], _state["identity"], _state["memory"]
    _state.update(pid=0, file=-1, identity=None, memory=None)
    _quietly(_close, file, identity, memory)


def _close(file: int, identity: tuple[int, int] | None, memory: mmap.mmap | None) -> None:
    """Close the memory file, unless its number means another file by now."""
    if memory is not None:
        memory.close()
    status = os.fstat(file)
    if identity is None or identity == (status.st_dev, status.st_ino):
        os.close(file)
