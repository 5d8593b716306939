"""What a recording may ask of the dashboard that plays it: it comes from anybody."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file import names_user_code

from ..snapshot.snapshot import Snapshot

_MOST_PROCESSES = 20_000


def sanitize_snapshot(snapshot: Snapshot) -> Snapshot:
    """The snapshot without jobs that have code run: an estimate of them would import what the recording names.

    Raises:
        msgspec.ValidationError: it has more processes than machines run, or figures that no driver can say.
    """
    if any(figure >= 2**64 for figure in _figures(snapshot)):
        raise msgspec.ValidationError("more than 64 bits")
    if any(0 in (gpu.total_bytes, *(device.total_bytes for device in gpu.mig or ())) for gpu in snapshot.gpus):
        raise msgspec.ValidationError("a GPU without memory")
    if sum(len(gpu.processes or ()) for gpu in snapshot.gpus) > _MOST_PROCESSES:
        raise msgspec.ValidationError(f"more than {_MOST_PROCESSES:,} processes")
    if not snapshot.watched and not snapshot.pending:
        return snapshot
    watched = tuple(replace(each, job=job) for each in snapshot.watched for job in _harmless((each.job,)))
    return replace(snapshot, watched=watched, pending=tuple(_harmless(snapshot.pending)))


def _figures(snapshot: Snapshot) -> Iterator[int]:
    for gpu in snapshot.gpus:
        sizes = [gpu.total_bytes, gpu.used_bytes, gpu.free_bytes, gpu.reserved_bytes, gpu.utilisation_percent]
        for device in gpu.mig or ():
            sizes += [device.total_bytes, device.used_bytes, device.free_bytes, device.reserved_bytes]
        for process in gpu.processes or ():
            sizes += [process.used_bytes, process.peak_bytes]
        yield from (size for size in sizes if size is not None)


def _harmless(jobs: Iterable[Job]) -> Iterable[Job]:
    for job in jobs:
        if names_user_code(job.model.id) and job.model.config is None:
            continue
        model = msgspec.structs.replace(job.model, trust_remote_code=False, code_folder=None)
        yield msgspec.structs.replace(
            job, model=model, parallel=msgspec.structs.replace(job.parallel, tensor_plan=None)
        )
