"""A recording in which everything happens that a report shows: ``write_recording(path)``."""

from pathlib import Path

from builders import make_gpu, make_process, make_snapshot

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.monitor.snapshot.figures import Fault
from vramtop.monitor.snapshot.snapshot import ProcessCounters, Snapshot, Source, WatchedJob
from vramtop.monitor.sources.recording import RecordingWriter

BEGIN = 1_790_000_000.0
STARTED, LOST, FOUND, GAP, GAP_END, DIED, END = 5, 20, 25, 30, 50, 70, 80
"""Seconds after the begin: two ranks start, GPU 1 is lost and found, nothing is read in between, the ranks die."""
RANKS = ((101, BEGIN + STARTED), (102, BEGIN + STARTED))


UNKNOWN = dict.fromkeys(("utilisation_percent", "temperature_c", "power_w", "power_limit_w"))


def training_job(name: str = "tune-1b") -> Job:
    """Make a job of two ranks that a closed form predicts in a few milliseconds."""
    settings = {"micro_batch": 2, "sequence_length": 2048, "precision": "bf16"}
    table = {
        "model": {"id": "llama-3.2-1b"},
        "training": settings,
        "parallel": {"strategy": "ddp", "data_replicate": 2},
    }
    return job_from_mapping({"name": name, **table}, where="test")


def write_recording(path: Path, *, job: Job | None = None, held_gib: float = 70.0, **process: object) -> Path:
    """Write the recording: two ranks that hold more than their budget and run out of memory, and a program.

    Args:
        path: the file.
        job: of the ranks; None: ``training_job()``.
        held_gib: what each rank holds from its tenth second on.
        **process: changes of all processes, such as their command.
    """
    job = job or training_job()
    with RecordingWriter(path) as writer:
        for second in (*range(GAP + 1), *range(GAP_END, END)):
            writer.write(_snapshot(second, job, held_gib, process))
    return path


def _snapshot(second: int, job: Job, held_gib: float, process: dict[str, object]) -> Snapshot:
    time, running = BEGIN + second, STARTED <= second < DIED
    gpus = []
    for index in (0, 1):
        size = held_gib if second >= STARTED + 10 else 2.0
        own = {"start_time": BEGIN - 500, "command": "python notebook.py", **process}
        processes = [make_process(300, 3, **own)] if index == 0 else []
        if running:
            counters = _counters(time, round(size * GIB), dying=second == DIED - 1)
            pid, start = RANKS[index]
            own = {"start_time": start, "command": "python train.py", "counters": counters, **process}
            processes.append(make_process(pid, size, **own))
        gpus.append(make_gpu(index, processes, uuid=f"GPU-{index}", read_at=time, **UNKNOWN))
    if LOST <= second < FOUND:
        fault = Fault(field=None, code="GPU_IS_LOST", message="the GPU has fallen off the bus")
        gpus[1] = replace(gpus[1], used_bytes=None, free_bytes=None, processes=None, faults=(fault,))
    source = Source(kind="nvml", host="node-7", driver_version="580.95", cuda_version="13.0")
    watched = (WatchedJob(job=job, pids=RANKS),) if second >= STARTED else ()
    return make_snapshot(gpus, time=time, source=source, watched=watched)


def _counters(time: float, size: int, *, dying: bool) -> ProcessCounters:
    held = size - GIB
    return ProcessCounters(
        time=time,
        allocated_bytes=held - GIB,
        reserved_bytes=held,
        allocated_peak_bytes=held - GIB,
        reserved_peak_bytes=held,
        error="OutOfMemoryError" if dying else None,
    )
