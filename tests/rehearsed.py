"""The rehearsal of a command, of which nothing is kept."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from vramtop.estimator.job.gpu_catalogue import Gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Program
from vramtop.estimator.trace.rehearsal import Rehearsed, rehearse_job


def rehearse(
    command: Sequence[str],
    *,
    gpu: Gpu | None = None,
    steps: int = 3,
    timeout: float = 600,
    python: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Rehearsed:
    """Run a program without a GPU in this folder; the arguments are those of a job's program and ``rehearse_job``."""
    program = Program(command=shlex.join(command), folder=str(Path.cwd()), python=python, steps=steps, timeout=timeout)
    return rehearse_job(Job(program=program), gpu=gpu, environ=environ, may_run=True, kept=False)
