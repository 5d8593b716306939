"""The rehearsal of a command, of which nothing is kept."""

import shlex
import sys
import textwrap
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


def torchrun(line: str) -> Rehearsed:
    """Rehearse what torchrun starts with these words, in this Python."""
    return rehearse(["torchrun", *line.split()], python=sys.executable)


def rehearse_beside_cpu(program: str, *words: str, rel: float = 0.01) -> Rehearsed:
    """Rehearse ``program cuda WORD ...``, and hold what it allocates to what ``program cpu WORD ...`` really takes."""
    found = rehearse([sys.executable, program, "cuda", *words])
    assert found.allocated_bytes - found.workspace_bytes == pytest.approx(real_peak(program, *words), rel=rel)
    return found


def rehearse_script_beside_cpu(script: str, *, host_bytes: int, ranks: int | None = None, rel: float = 0.002) -> None:
    """Likewise of a script that finds its device itself, and holds so many bytes on the host where there is a GPU."""
    Path("train.py").write_text(script, encoding="utf-8")
    found = rehearse([sys.executable, "train.py"])
    on_gpu = real_peak("train.py", ranks=ranks) - host_bytes
    assert found.allocated_bytes - found.workspace_bytes == pytest.approx(on_gpu, rel=rel)


def trains(
    lines: str, net: str = "nn.Linear(64, 64)", before: str = "", optimizer: str = "SGD(net.parameters(), 0.1)"
) -> str:
    """Return a program that trains a net in three steps of these lines, on the device that it is given, or on the GPU.

    Args:
        lines: a step's; the first is the program's seventh line, or later by what ``before`` has beyond one line.
        net: the expression that makes it.
        before: what comes before the net is made.
        optimizer: a call of one of ``torch.optim``.
    """
    return f"""import sys, torch, torch.nn as nn
dev = "cpu" if "cpu" in sys.argv else "cuda"
{before.strip()}
net = {net}.to(dev)
optimizer = torch.optim.{optimizer}
for step in range(3):
{textwrap.indent(lines.strip(), "    ")}
    optimizer.step()
    optimizer.zero_grad()
"""
