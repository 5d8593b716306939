"""``vramtop estimate JOB``: what a job will take."""

import argparse
from collections.abc import Sequence

from vramtop.estimator.common.sizes import parse_size
from vramtop.estimator.estimation import MethodChoice, estimate
from vramtop.estimator.job.gpu_catalogue import Gpu, find_gpu
from vramtop.estimator.job.job import Job

from ...draw.text_output import detect_output
from ...job.load_job import job_from_options
from ...reports.budget_text import budget_lines
from ..json_text import json_text
from ..progress import Progress


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the budget; exit code 0."""
    job, notes = job_from_options(options, launch)
    gpu, memory = elsewhere(options, job)
    with Progress(quiet=options.json) as progress:
        budget = estimate(
            job, method=method(options), gpu=gpu, memory_bytes=memory, python=options.python, progress=progress
        )
    if options.json:
        print(json_text(budget.to_json() | ({"notes": list(notes)} if notes else {})))
        return 0
    terminal = detect_output(ascii_only=options.ascii)
    scale = memory if memory and memory > budget.peak.device_bytes else None
    print("\n".join(budget_lines(budget, terminal, scale_bytes=scale)))
    for note in notes:
        print(terminal.text(f"note: {note}"))
    return 0


def elsewhere(options: argparse.Namespace, job: Job) -> tuple[Gpu | None, int | None]:
    """The card of another machine that the user named, and its total; Nones for this machine."""
    name = options.gpu_type or (job.target.gpu if not options.gpu_memory and not options.gpu else None)
    gpu = find_gpu(name) if name else None
    return gpu, parse_size(options.gpu_memory) if options.gpu_memory else gpu.total_bytes if gpu else None


def method(options: argparse.Namespace) -> MethodChoice:
    """The method asked for; who names an interpreter wants what only an interpreter can give."""
    return "exact" if options.python and options.method == "auto" else options.method
