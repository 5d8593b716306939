"""Publishes the figures of torch's allocator and transformers' trainer from inside a training process, once a second.

Runs in the user's process, under its Python (3.8 or later) and its torch: standard library only, no import of torch,
no call that would create a CUDA context, one daemon thread, no files left behind. Of the standard library it imports
what every torch imports or what is part of Python's binary: instead of others, a ``json.py`` beside the user's script
would be taken. It writes to a memfd named ``vramtop-probe``, which a reader finds among the process's open files:

    8 bytes magic, u64 sequence (odd during a write), u32 length of the figures, u32 length of the facts,
    the figures (JSON, written every time), the facts (JSON, when they change); its last 64 bytes: a reader's request

It writes through a mapping, never through the descriptor: a program that closes descriptors it does not know may soon
use that number for a file of its own. (Python's own mmap keeps a second descriptor, and closes that too.)
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .snapshots import answer, every_tick, serve

MAGIC = b"VRAMTOP1"
HEADER_BYTES = 24
MAX_BYTES = 1 << 20
REQUEST_BYTES = 64
INTERVAL_SECONDS = 1.0
MAX_OPTIMIZERS = 8
"""Kinds of optimizers that are published."""
_NOEXEC_SEAL = 0x8
"""MFD_NOEXEC_SEAL: unknown to kernels before 6.3, required by some later ones (vm.memfd_noexec=2)."""
_READ_AND_WRITE, _SHARED = 3, 1
"""PROT_READ | PROT_WRITE and MAP_SHARED, which have the same values on all of Linux."""

_lock = threading.RLock()
"""Held during start and writes; reentrant because a signal handler may interrupt them."""
_state: dict[str, Any] = {
    "pid": 0,
    "file": -1,
    "identity": None,
    "address": None,
    "sequence": 0,
    "wake": None,
    "begun": 0,
    "published": 0,
}
_hooked: list[bool] = []
_facts: dict[str, Any] = {}
_encoded = [b"{}"]
"""The facts as JSON, the only element."""
_steps: dict[str, Any] = {"count": 0, "began": None, "ended": None, "seconds": None, "last": None}
_devices: dict[int, dict[str, Any]] = {}
"""Uuid, peaks and failures of each device that was allocated on, kept because programs reset torch's counters."""
optimizers: dict[int, dict[str, Any]] = {}
"""What is known of each optimizer that has stepped, by its id; see ``optimizers.py``."""
_failures: dict[int, int] = {}
"""Torch's own count of failed allocations by device, as of the last sample."""


def start(interval: float = INTERVAL_SECONDS) -> None:
    """Start the thread, once per process; does nothing if no memory file or thread can be created."""
    with _lock:
        if _state["pid"] == os.getpid() or not hasattr(os, "memfd_create"):
            return
        try:
            _state["file"] = file = _create_memory_file()
            status = os.fstat(file)
            _state["identity"] = status.st_dev, status.st_ino
            # all of it now: a page that cannot be allocated later would kill the program
            os.posix_fallocate(file, 0, MAX_BYTES)
            _state.update(address=_map(file), sequence=0, wake=threading.Event(), pid=os.getpid())
            _start_thread(interval)
        except (ImportError, OSError, RuntimeError):  # a sandbox, the limit of open files, of memory, of threads
            _release()
            return
        if not _hooked:
            _hooked.append(True)
            os.register_at_fork(after_in_child=_reset_after_fork)
            atexit.register(_quietly, _publish_final)


def _start_thread(interval: float) -> None:
    """Start the thread with all signals blocked: they are for the program's threads, which may wait for them."""
    thread = threading.Thread(target=_run, args=(interval, _state["wake"]), name="vramtop-probe", daemon=True)
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        thread.start()
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def stop() -> None:
    """End the thread and release the memory file; the facts are kept for another ``start``."""
    with _lock:
        if _state["pid"] == os.getpid():
            _state["wake"].set()
            _release()


def publish_facts(**facts: Any) -> None:
    """Publish further facts; values that JSON cannot express become text at once."""
    try:
        _encoded[0] = encode_json({**_facts, **facts}).encode("ascii")
        _facts.update(facts)
    except Exception:  # no exception of the probe may reach the user's program
        pass


def step_began() -> None:
    """Record that a training step begins; only needed if the time between steps should not count."""
    _steps["last"] = None
    _steps["began"] = time.time()


def step_ended(step: Any = None) -> None:
    """Record that a training step ended.

    Args:
        step: identifies the step; one reported twice in a row (by two callbacks) counts once.
    """
    if step is not None and step == _steps["last"]:
        return
    now = time.time()
    before = _steps["began"] or _steps["ended"]
    _steps["seconds"] = None if before is None else max(0.0, now - before)
    _steps["count"] += 1
    _steps["began"] = None
    _steps["ended"] = now
    _steps["last"] = step


def _run(interval: float, wake: threading.Event) -> None:
    while _state["pid"] == os.getpid() and not wake.is_set():
        _quietly(_publish)
        for each in (*every_tick, _answer):
            _quietly(each)
        wake.wait(interval)


def _answer() -> None:
    """Answer a request for a snapshot."""
    from ctypes import string_at

    with _lock:
        mine = _state["pid"] == os.getpid()
        request = string_at(_state["address"] + MAX_BYTES - REQUEST_BYTES, REQUEST_BYTES) if mine else b""
    serve(request)


def _quietly(function: Callable[..., object], *args: Any) -> None:
    try:
        function(*args)
    except Exception:  # no exception of the probe may reach the user's program
        pass


def _publish(**more: Any) -> None:
    with _lock:
        _state["begun"] += 1
        number = _state["begun"]
    figures = encode_json({**_sample(), **more}).encode("ascii")
    with _lock:
        # Sampling is outside the lock, so that a thread that hangs in it holds up nobody: a sample may be overtaken.
        if _state["pid"] == os.getpid() and number > _state["published"]:
            _write(figures, _encoded[0])
            _state["published"] = number


def _write(figures: bytes, facts: bytes) -> None:
    if HEADER_BYTES + len(figures) + len(facts) > MAX_BYTES - REQUEST_BYTES:
        facts = b"{}"
    from ctypes import memmove

    address, sequence = _state["address"], _state["sequence"] + 2
    sizes = len(figures).to_bytes(4, "little") + len(facts).to_bytes(4, "little")
    memmove(address, MAGIC + (sequence - 1).to_bytes(8, "little") + sizes, HEADER_BYTES)
    memmove(address + HEADER_BYTES, figures + facts, len(figures) + len(facts))
    memmove(address, MAGIC + sequence.to_bytes(8, "little") + sizes, HEADER_BYTES)
    _state["sequence"] = sequence


def _publish_final() -> None:
    """Publish the figures once more at the interpreter's exit, with the class of the exception that ended it."""
    if _state["pid"] != os.getpid():
        return
    _state["wake"].set()
    error = getattr(sys, "last_type", None)  # set when the interpreter prints an uncaught exception
    _publish(ended=time.time(), error=getattr(error, "__name__", None))


def _sample() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    names = vars(torch) if torch is not None else {}  # not getattr: torch imports some of its names lazily
    return {
        "schema": 1,
        "pid": os.getpid(),
        "time": time.time(),
        "steps": {name: _steps[name] for name in ("count", "began", "ended", "seconds")},
        "devices": device_counters(names.get("cuda")),
        "optimizers": _summed_optimizers(),
        "snapshot": answer,
    }


def _summed_optimizers() -> list[dict[str, Any]]:
    """Return the optimizers, those of one class with the same options as one."""
    found: dict[str, dict[str, Any]] = {}
    for each in list(optimizers.values()):
        key = each["class"] + repr(sorted(each["options"].items(), key=repr))
        known = found.get(key)
        if known is None:
            if len(found) < MAX_OPTIMIZERS:
                found[key] = {name: dict(value) if isinstance(value, dict) else value for name, value in each.items()}
            continue
        known["sharded"] = known["sharded"] or each["sharded"]
        for dtype, count in each["trained"].items():
            known["trained"][dtype] = known["trained"].get(dtype, 0) + count
    return list(found.values())


def device_counters(cuda: Any) -> list[dict[str, Any]]:
    """Return torch's counters of each device that the program has allocated on, with the peaks since its start."""
    try:
        return _initialized_devices(cuda)
    except Exception:  # steps and facts are published all the same
        return []


def _initialized_devices(cuda: Any) -> list[dict[str, Any]]:
    if not hasattr(cuda, "is_initialized") or not cuda.is_initialized():
        return []
    # Only torch's own allocator keeps counters that can be read without a CUDA call, which could end a graph capture.
    if hasattr(cuda, "get_allocator_backend") and cuda.get_allocator_backend() != "native":
        return []
    return [each for index in range(cuda.device_count()) if (each := _device_figures(cuda, index)) is not None]


def _device_figures(cuda: Any, index: int) -> dict[str, Any] | None:
    """Return one device's counters; None if the program has not allocated on it."""
    stats = cuda.memory_stats_as_nested_dict(index)  # memory_stats flattens it in Python, which takes much longer
    allocated, reserved, active = (
        stats.get(f"{name}_bytes", {}).get("all", {}) for name in ("allocated", "reserved", "active")
    )
    if index not in _devices:
        if not reserved.get("peak"):
            return None
        uuid = getattr(cuda.get_device_properties(index), "uuid", None)  # torch before 2.5 does not have it
        _devices[index] = {"uuid": None if uuid is None else str(uuid)}
    known = _devices[index]
    for name, counted in (("allocated_peak_bytes", allocated), ("reserved_peak_bytes", reserved)):
        if "peak" in counted:
            known[name] = max(counted["peak"], known.get(name, 0))
    _count_failures(index, known, stats.get("num_ooms"))
    return {
        **known,
        "index": index,
        "allocated_bytes": allocated.get("current"),
        "reserved_bytes": reserved.get("current"),
        "active_bytes": active.get("current"),
        "retries": stats.get("num_alloc_retries"),
    }


def _count_failures(index: int, known: dict[str, Any], failures: int | None) -> None:
    """Count failed allocations, even if the program resets torch's count, with the time of the last one."""
    if failures is None:
        return
    before = _failures.get(index, 0)
    new = failures - before if failures >= before else failures
    _failures[index] = failures
    known["out_of_memory"] = known.get("out_of_memory", 0) + new
    if new:
        known["out_of_memory_time"] = time.time()


def _create_memory_file() -> int:
    try:
        file = os.memfd_create("vramtop-probe", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError:
        file = os.memfd_create("vramtop-probe")
    if file > 2:
        return file
    from fcntl import F_DUPFD_CLOEXEC, fcntl

    try:  # standard input, output or error was closed; writes to it must not end up in this file
        return fcntl(file, F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


def _map(file: int) -> int:
    """Map the file and return its address."""
    import ctypes

    mmap = ctypes.CDLL(None, use_errno=True).mmap
    mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    mmap.restype = ctypes.c_void_p
    address = mmap(None, MAX_BYTES, _READ_AND_WRITE, _SHARED, file, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return int(address)


def _reset_after_fork() -> None:
    """Reset everything in a child made by ``fork``: the parent's figures are not its own."""
    global _lock
    _lock = threading.RLock()  # the thread that held it does not exist in the child
    _devices.clear()
    optimizers.clear()
    _failures.clear()
    _steps.update(count=0, began=None, ended=None, seconds=None, last=None)
    answer.update(request=0)
    _release()


def _release() -> None:
    file, identity, address = _state["file"], _state["identity"], _state["address"]
    _state.update(pid=0, file=-1, identity=None, address=None)
    _quietly(_close, file, identity)
    if address is not None:
        _quietly(_unmap, address)


def _close(file: int, identity: tuple[int, int] | None) -> None:
    """Close the memory file, unless its descriptor refers to another file by now."""
    status = os.fstat(file)
    if identity == (status.st_dev, status.st_ino):
        os.close(file)


def _unmap(address: int) -> None:
    import ctypes

    ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(MAX_BYTES))


_MAX_DEPTH = 50


def encode_json(value: Any, depth: int = 0) -> str:
    """Return a value as JSON in ASCII; what JSON cannot express becomes text.

    Raises:
        ValueError: it is nested too deeply, or holds itself.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if abs(value) < float("inf") else "null"
    if isinstance(value, dict):
        named = ((k, v) for k, v in value.items() if k is None or isinstance(k, (str, int, float)))
        items = (f"{_text(_key(k))}: {encode_json(v, depth + 1)}" for k, v in named)
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(encode_json(each, depth + 1) for each in value) + "]"
    return _text(value if isinstance(value, str) else str(value))


def _key(key: Any) -> str:
    return key if isinstance(key, str) else encode_json(key)


def _text(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return '"' + text + '"'
    return '"' + "".join(map(_character, text)) + '"'


def _character(char: str) -> str:
    if " " <= char <= "~" and char not in '"\\':
        return char
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
