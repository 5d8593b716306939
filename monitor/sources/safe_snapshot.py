"""Snapshots of a recording without secrets, and without unsafe jobs, as it may come from an untrusted source."""

import operator
from collections.abc import Iterable, Iterator

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import mask_line, mask_strings
from vramtop.estimator.common.untrusted_files import check_nesting
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import names_user_code

from ..snapshot.snapshot import GpuProcess, GpuReading, Snapshot

_MAX_PROCESSES = 20_000


def sanitize_snapshot(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without secrets and without jobs that run code, as estimating them would import it.

    Raises:
        ValueError: a job is nested too deeply.
        msgspec.ValidationError: it has more processes than a machine runs, or figures that no driver reports.
    """
    if any(figure >= 2**64 for figure in _figures(snapshot)):
        raise msgspec.ValidationError("more than 64 bits")
    if any(0 in (gpu.total_bytes, *(device.total_bytes for device in gpu.mig or ())) for gpu in snapshot.gpus):
        raise msgspec.ValidationError("a GPU without memory")
    if sum(len(gpu.processes or ()) for gpu in snapshot.gpus) > _MAX_PROCESSES:
        raise msgspec.ValidationError(f"more than {_MAX_PROCESSES:,} processes")
    for job in (*snapshot.pending, *(each.job for each in snapshot.watched)):
        check_nesting(job.model.config)
    snapshot = mask_snapshot(snapshot)
    if not snapshot.watched and not snapshot.pending:
        return snapshot
    watched = tuple(replace(each, job=job) for each in snapshot.watched for job in _without_code((each.job,)))
    return replace(snapshot, watched=watched, pending=tuple(_without_code(snapshot.pending)))


def mask_snapshot(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without secrets in command lines and jobs, whatever the dashboard shows."""
    return replace(
        snapshot,
        gpus=tuple(_mask_gpu(gpu) for gpu in snapshot.gpus),
        watched=tuple(replace(each, job=_mask_job(each.job)) for each in snapshot.watched),
        pending=tuple(map(_mask_job, snapshot.pending)),
    )


def _mask_gpu(gpu: GpuReading) -> GpuReading:
    processes = tuple(map(_mask_process, gpu.processes or ()))
    unchanged = all(map(operator.is_, processes, gpu.processes or ()))
    return gpu if unchanged else replace(gpu, processes=processes)


def _mask_process(process: GpuProcess) -> GpuProcess:
    texts = (process.command or "", process.name or "", process.runs_in or "")
    command, name, runs_in = masked = tuple(map(mask_line, texts))
    if masked == texts:
        return process
    return replace(process, command=command or None, name=name or None, runs_in=runs_in or None)


def _mask_job(job: Job) -> Job:
    tables = msgspec.to_builtins(job)
    masked = mask_strings(tables)
    return job if masked == tables else msgspec.convert(masked, Job)


def _figures(snapshot: Snapshot) -> Iterator[int]:
    for gpu in snapshot.gpus:
        sizes = [gpu.total_bytes, gpu.used_bytes, gpu.free_bytes, gpu.reserved_bytes]
        sizes += [gpu.utilisation_percent, gpu.memory_utilisation_percent]
        if gpu.details:
            sizes += [gpu.details.clock_reasons, gpu.details.bar1_total_bytes, gpu.details.bar1_used_bytes]
        for device in gpu.mig or ():
            sizes += [device.total_bytes, device.used_bytes, device.free_bytes, device.reserved_bytes]
        for process in gpu.processes or ():
            sizes += [process.used_bytes, process.peak_bytes]
        yield from (size for size in sizes if size is not None)


def _without_code(jobs: Iterable[Job]) -> Iterable[Job]:
    for job in jobs:
        if job.program is not None or (names_user_code(job.model.id) and job.model.config is None):
            continue
        model = msgspec.structs.replace(job.model, trust_remote_code=False, code_folder=None)
        yield msgspec.structs.replace(
            job, model=model, parallel=msgspec.structs.replace(job.parallel, tensor_plan=None)
        )
