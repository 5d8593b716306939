"""Publishes what torch's allocator and transformers' trainer know, from inside a training process, once a second.

Runs in the user's process, under its Python (3.8 or newer) and its torch: standard library only, no import of torch,
no call that would make a CUDA context, one daemon thread, nothing left behind. What is published is JSON in a memfd
named ``vramtop-probe``, which a reader finds among the process's open files:

    8 bytes magic, u64 sequence (odd while it is written), u64 length, then the JSON
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"VRAMTOP1"
HEADER = struct.Struct("<8sQQ")
LIMIT = 1 << 20
INTERVAL_SECONDS = 1.0

_lock = threading.Lock()
_state: dict[str, Any] = {"file": -1, "sequence": 0, "pid": 0, "thread": None}
_facts: dict[str, Any] = {}
_steps: dict[str, Any] = {"count": 0, "began": None, "ended": None}


def start(interval: float = INTERVAL_SECONDS) -> None:
    """Start the thread, once per process. Where memory files are unknown (before Linux 3.17), nothing happens."""
    with _lock:
        if _state["pid"] == os.getpid() or not hasattr(os, "memfd_create"):
            return
        _state.update(file=os.memfd_create("vramtop-probe"), sequence=0, pid=os.getpid())
        os.ftruncate(_state["file"], LIMIT)
        thread = threading.Thread(target=_run, args=(interval,), name="vramtop-probe", daemon=True)
        _state["thread"] = thread
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)
    thread.start()


def add_callback(trainer_module: Any) -> None:
    """Give every Trainer of ``transformers.trainer`` the callback that tells its settings, its model and its steps."""
    callbacks = getattr(trainer_module, "DEFAULT_CALLBACKS", None)
    base = getattr(sys.modules.get("transformers.trainer_callback"), "TrainerCallback", None)
    if callbacks is not None and base is not None:
        callbacks.append(callback_class(base))


def callback_class(base: Any) -> Any:
    """The callback, as a subclass of transformers' TrainerCallback."""

    class VramtopCallback(base):  # type: ignore[misc]
        """Tells vramtop what is trained; changes nothing."""

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            _quietly(_tell, args, state, model)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            _steps["began"] = time.time()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            _steps.update(count=state.global_step, ended=time.time())

    return VramtopCallback


def mark_step() -> None:
    """Say that a training step ended, from a loop of one's own."""
    _steps.update(count=_steps["count"] + 1, ended=time.time())


def tell(**facts: Any) -> None:
    """Publish more facts beside the allocator's; values that are no JSON become text."""
    _facts.update(facts)


def _run(interval: float) -> None:
    while _state["pid"] == os.getpid():
        _quietly(_publish)
        time.sleep(interval)


def _quietly(function: Callable[..., None], *args: Any) -> None:
    try:
        function(*args)
    except Exception:  # nothing of ours may reach the user's program
        pass


def _publish() -> None:
    payload = json.dumps(_sample(), default=str).encode("utf-8")
    if HEADER.size + len(payload) > LIMIT:
        payload = json.dumps({"schema": 1, "pid": os.getpid(), "time": time.time()}).encode("utf-8")
    file, sequence = _state["file"], _state["sequence"] + 2
    os.pwrite(file, HEADER.pack(MAGIC, sequence - 1, len(payload)), 0)
    os.pwrite(file, payload, HEADER.size)
    os.pwrite(file, HEADER.pack(MAGIC, sequence, len(payload)), 0)
    _state["sequence"] = sequence


def _sample() -> dict[str, Any]:
    sample: dict[str, Any] = {"schema": 1, "pid": os.getpid(), "time": time.time(), "devices": [], **_facts}
    sample["steps"] = dict(_steps)
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    sample["torch"] = str(getattr(torch, "__version__", ""))
    if cuda is None or not hasattr(cuda, "is_initialized") or not cuda.is_initialized():
        return sample
    sample["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    for index in range(cuda.device_count()):
        stats = cuda.memory_stats(index)
        if stats.get("reserved_bytes.all.peak"):
            sample["devices"].append(_counters(index, stats))
    return sample


def _counters(index: int, stats: Any) -> dict[str, Any]:
    return {
        "index": index,
        "allocated_bytes": stats.get("allocated_bytes.all.current"),
        "reserved_bytes": stats.get("reserved_bytes.all.current"),
        "active_bytes": stats.get("active_bytes.all.current"),
        "allocated_peak_bytes": stats.get("allocated_bytes.all.peak"),
        "reserved_peak_bytes": stats.get("reserved_bytes.all.peak"),
        "retries": stats.get("num_alloc_retries"),
        "out_of_memory": stats.get("num_ooms"),
    }


def _tell(args: Any, state: Any, model: Any) -> None:
    """The trainer's arguments and the model's facts; made once, when training begins."""
    facts = {"trainer": _plain(args.to_dict()), "class": type(args).__name__, "max_steps": state.max_steps}
    if model is not None:
        facts["model"] = _model_facts(model)
    _facts.update(facts)


def _model_facts(model: Any) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        kind = str(parameter.dtype).replace("torch.", "")
        key = f"{kind} trained" if parameter.requires_grad else f"{kind} frozen"
        counts[key] = counts.get(key, 0) + parameter.numel()
    config: Any = getattr(model, "config", None)
    found = {
        "class": type(model).__name__,
        "parameters": counts,
        "config": _plain(config.to_dict()) if hasattr(config, "to_dict") else None,
        "attention": getattr(config, "_attn_implementation", None),
        "gradient_checkpointing": bool(getattr(model, "is_gradient_checkpointing", False)),
    }
    adapters = getattr(model, "peft_config", None)
    if adapters:
        first = next(iter(adapters.values()))
        targets = getattr(first, "target_modules", None)
        found["lora"] = {"r": getattr(first, "r", None), "target_modules": _plain(targets)}
    return found


def _plain(value: Any) -> Any:
    """As JSON has it, without what could be secret: tokens and keys are left out."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items() if not _secret(str(k))}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _secret(name: str) -> bool:
    name = name.lower()
    return name.endswith(("_token", "_key", "_password", "_secret")) or name == "token"


def _forget() -> None:
    """In a child made by ``fork``: it is another process, and the parent's figures are not its own."""
    file, _state["file"], _state["pid"] = _state["file"], -1, 0
    if file >= 0:
        try:
            os.close(file)
        except OSError:
            pass
