"""A running job as it was read from its processes: ranks, job settings with their evidence, interpreter and folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.readers.source.evidence import JobReading

from ..probe.probe_reader import ProbeSample
from ..snapshot.snapshot import GpuReading
from .gpu_assignment import GpuAssignment, GpuEnvironment, assign_gpu


class RankProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The process of one rank on this machine."""

    pid: int
    start_time: float
    """Unix seconds; with the pid it identifies the process."""
    rank: int | None
    """Rank over all machines; None for a single process."""
    local_rank: int | None
    gpu_hint: str | None
    """GPU that its environment names, an index or a UUID as in CUDA_VISIBLE_DEVICES. NVML is more reliable."""
    gpu_environment: GpuEnvironment
    """Variables of its environment that decide its GPU."""
    gpu_assignment: GpuAssignment
    """Its GPU, as far as it was known when the ranks were assigned."""

    def to_json(self) -> dict[str, Any]:
        """Return one entry of ``ranks`` in ``vramtop attach --json``."""
        return {
            "pid": self.pid,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "gpu": self.gpu_assignment.gpu,
            "gpu_from": self.gpu_assignment.origin,
            "gpu_sure": self.gpu_assignment.certainty,
            "gpu_hint": self.gpu_hint,
        }


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A running job."""

    pid: int
    """The requested process."""
    start_time: float
    ranks: tuple[RankProcess, ...]
    reading: JobReading
    launcher: str | None
    """``torchrun``, ``accelerate``, ``deepspeed``, ``trl``; None: started directly."""
    cwd: Path | None
    """Its working folder, as it is reached from here."""
    command: str
    """Command line of the training program, without secrets."""
    worker_python: str | None
    """The interpreter, if it is safe to run: the process belongs to this user and is not in a container."""
    versions: Mapping[str, str]
    """Versions of the installed frameworks, by name."""
    estimate_environ: Mapping[str, str]
    """Variables that an estimate depends on: the folders of its Hugging Face cache and its HOME, as they are reached
    from here, and the settings of the allocator."""
    inside: tuple[str, ...]
    """The batch job and container that it runs in: ``Slurm job 4711 (sft)``, ``Docker container 0123456789ab``."""
    probe: ProbeSample | None
    """What the program reports, if it runs with the probe."""
    warnings: tuple[str, ...]
    """What could not be read, and what was read and not understood; one sentence each."""

    def with_gpu_assignments(self, gpus: Sequence[GpuReading] | None) -> "Attachment":
        """Return a copy in which every rank has its GPU: from NVML, else from its environment.

        Args:
            gpus: this machine's GPUs now; None: they cannot be read.
        """
        ranks = (
            replace(
                rank,
                gpu_assignment=assign_gpu(rank.gpu_environment, gpus, pid=rank.pid, start_time=rank.start_time),
            )
            for rank in self.ranks
        )
        return replace(self, ranks=tuple(ranks))

    def to_json(self) -> dict[str, Any]:
        """Return the fields of ``vramtop attach --json`` that need no estimate."""
        return {
            "pid": self.pid,
            "ranks": [rank.to_json() for rank in self.ranks],
            "launcher": self.launcher,
            "inside": list(self.inside),
            "probe": self.probe is not None,
            "command": self.command,
            "versions": dict(self.versions),
            "evidence": self.reading.evidence(),
            "missing": list(self.reading.missing),
            "refused": dict(self.reading.refused),
            "warnings": list(self.warnings),
        }
