"""The rehearsal of a command, of which nothing is kept."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from real_run import real_peak

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


def rehearse_beside_cpu(program: str, *, rel: float = 0.01) -> Rehearsed:
    """Rehearse ``program cuda``, and hold what it allocates to what ``program cpu`` takes in a real run."""
    found = rehearse([sys.executable, program, "cuda"])
    assert found.allocated_bytes - found.workspace_bytes == pytest.approx(real_peak(program), rel=rel)
    return found
