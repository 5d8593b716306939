"""The failure of a process, from its last reading: figures as torch's message has them, as far as known."""

from vramtop.estimator.crash.records import Failure, OtherProcess, OutOfMemory
from vramtop.monitor.board.board import ProcessRow

_MAX_OTHERS = 64


def failure_of_row(row: ProcessRow) -> Failure | None:
    """Return the failure of a process that ended out of memory; None: it has not."""
    comparison = row.comparison
    if row.ended_at is None or comparison is None or comparison.status != "out_of_memory":
        return None
    if "host memory" in comparison.sentence:
        return Failure(kind="killed", sure=False, line=0, text=comparison.sentence)
    process, counters, gpu = row.process, row.process.counters, row.gpu
    # the exception frees tensors on its way, so that the peaks are closer to the moment of the failure
    allocated = (counters.allocated_peak_bytes or counters.allocated_bytes) if counters else None
    reserved = (counters.reserved_peak_bytes or counters.reserved_bytes) if counters else None
    held = max((size for size in (process.used_bytes, reserved) if size is not None), default=None)
    others = [
        OtherProcess(pid=other.pid, used_bytes=other.used_bytes)
        for other in gpu.processes or ()
        if other.key != process.key and other.used_bytes
    ]
    memory = OutOfMemory(
        backend="CUDA",
        gpu=gpu.index,
        tried_bytes=None,
        total_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes,
        allocated_bytes=allocated,
        unallocated_bytes=reserved - allocated if reserved is not None and allocated is not None else None,
        process_bytes=held,
        others=tuple(others[:_MAX_OTHERS]),
    )
    steps = counters.steps if counters else None
    return Failure(kind="gpu", line=0, text=comparison.sentence, memory=memory, steps=steps)
