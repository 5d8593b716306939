"""Memory snapshots of torch's CUDA allocator, when an allocation fails and on request. Runs in the user's process.

``torch.cuda.memory._snapshot`` copies what the allocator knows: no CUDA call, no touch of a tensor. The file is pickled
as ``_dump_snapshot`` does, so that torch's own viewer opens it too; bounded in size, readable by the user only,
complete as soon as it has its name.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

MAX_FILE_BYTES = 1 << 30
settings: dict[str, Any] = {"folder": None}
"""Where files go; None: the folder that is current then."""
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class CannotDumpError(Exception):
    """There is nothing to write, or it cannot be written; the sentence says why."""


class _BoundedFile:
    """Counts what is written to a file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        if self.size > MAX_FILE_BYTES:
            raise CannotDumpError(f"the snapshot would have more than {MAX_FILE_BYTES >> 30} GiB")
        return int(self._file.write(data))


def cuda_in_use() -> Any:
    """Return ``torch.cuda``.

    Raises:
        CannotDumpError: the process has not used a GPU through torch's own allocator.
    """
    torch = sys.modules.get("torch")
    cuda = vars(torch).get("cuda") if torch is not None else None
    if cuda is None or not cuda.is_initialized():
        raise CannotDumpError("it has not used a GPU through torch")
    if hasattr(cuda, "get_allocator_backend") and cuda.get_allocator_backend() != "native":
        raise CannotDumpError("it does not use torch's own allocator, and others have no snapshots")
    return cuda


def dump(kind: str, **facts: Any) -> tuple[str, int]:
    """Write a snapshot; return the file's path and size.

    It goes to the folder of ``settings``; what cannot be written there, to the folder for temporary files.

    Args:
        kind: ``oom`` or ``snapshot``, a part of the file's name.
        facts: further facts for the snapshot's key ``vramtop``.

    Raises:
        CannotDumpError: there is nothing to write, or it cannot be written.
    """
    cuda = cuda_in_use()
    snapshot = cuda.memory._snapshot()
    if isinstance(snapshot, dict):
        snapshot["vramtop"] = {**_facts(cuda, snapshot), **facts}
    rank = _rank()
    name = f"vramtop-{kind}-{'' if rank is None else f'rank{rank}-'}{os.getpid()}.pickle"
    failure: Exception | None = None
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        here = "/"
    for each in (settings["folder"] or here, os.environ.get("TMPDIR") or "/tmp"):  # noqa: S108 - another name is given
        try:
            return _write(os.path.join(each, name), snapshot)
        except OSError as error:
            failure = failure or error
    raise CannotDumpError(f"it cannot be written: {failure}")


def _write(path: str, snapshot: Any) -> tuple[str, int]:
    import pickle  # torch has imported it

    part = f"{path}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.fdopen(os.open(part, flags, 0o600), "wb")
    try:
        with file:
            bounded = _BoundedFile(file)
            pickle.Pickler(bounded, 4).dump(snapshot)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
    return path, bounded.size


def _facts(cuda: Any, snapshot: Any) -> dict[str, Any]:
    totals: dict[str, int] = {}
    for segment in snapshot.get("segments", ()):
        index = segment.get("device")
        if isinstance(index, int) and str(index) not in totals:
            totals[str(index)] = int(cuda.get_device_properties(index).total_memory)
    return {"pid": os.getpid(), "rank": _rank(), "time": time.time(), "total_bytes": totals}


def _rank() -> int | None:
    values = (os.environ.get(name, "") for name in _RANK_VARIABLES)
    return next((int(value) for value in values if value.isdigit()), None)


MAX_ENTRIES = 100_000
"""Entries of the history: several steps of a large model, and some 50 MB in the file."""
MAX_SNAPSHOTS = 3
"""A program that catches the failure and tries again may run out of memory for hours."""
MIN_SECONDS = 30.0
"""Between two snapshots; torch may call twice for one failure."""
every_tick: list[Callable[[], object]] = []
"""Functions that the publisher's thread calls once a second."""
_state: dict[str, Any] = {"queued": False, "count": 0, "last": 0.0}


def arm(folder: str | None = None) -> None:
    """Have a snapshot written when the program runs out of GPU memory; never raises and does not initialize CUDA.

    Once the program initializes CUDA by itself, ``torch.cuda.memory._record_memory_history`` begins with a bounded
    history (2 microseconds per allocation, by its documentation), and an observer is attached that torch calls before
    it raises OutOfMemoryError (``_cuda_attach_out_of_memory_observer`` of ``torch/csrc/cuda/Module.cpp``, torch 2.0 to
    2.13). Both would initialize CUDA, so they wait in torch's own queue of calls (``torch.cuda._lazy_call``). The
    program sees the same exception at the same place; nothing is kept of its tensors.

    Args:
        folder: where snapshots go; None: the folder that is current at the failure.
    """
    settings["folder"] = os.path.abspath(folder) if folder else settings["folder"]
    if not _queue() and _queue not in every_tick:
        every_tick.append(_queue)  # torch is imported later


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


REQUEST_MAGIC = b"VRTSNAP1"
answer: dict[str, Any] = {"request": 0, "file": None, "bytes": None, "error": None}
"""The answer to the last request; it is replaced at once, as another thread may publish it."""


def serve(request: bytes) -> None:
    """Write a snapshot if this request has not been answered; called once a second, on the probe's thread.

    Args:
        request: a number that ``vramtop snapshot`` writes at the end of the probe's memory file, which the kernel lets
            only the user (and root) open. The answer is published with the figures: the number, and the file or why
            there is none.
    """
    number = int.from_bytes(request[8:16], "little")
    if request[:8] != REQUEST_MAGIC or number == answer["request"]:
        return
    file = size = error = None
    try:
        file, size = dump("snapshot")
    except CannotDumpError as failure:
        error = str(failure)
    except Exception as failure:  # torch's own, whatever it is
        error = f"torch cannot make it: {type(failure).__name__}"
    answer.update(request=number, file=file, bytes=size, error=error)
