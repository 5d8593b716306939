"""``vramtop estimate JOB``: predict the memory of a job."""

import argparse
from collections.abc import Sequence

from vramtop.estimator.budget import Budget
from vramtop.estimator.job.gpu_catalogue import Gpu

from ...draw.text_output import detect_output
from ...job.load_job import load_from_options
from ...job.loaded_job import LoadedJob
from ...reports.budget_text import budget_lines, closing_lines
from ..assumptions import assumed_lines
from ..json_text import json_text
from ..measured_runs import estimate_job
from ..option_values import described_gpu
from ..rehearsing import offer_of


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the budget; exit code 0."""
    loaded = load_from_options(options, launch)
    gpu, memory_bytes = described_gpu(options, loaded.job)
    budget = estimate_job(options, loaded, gpu, memory_bytes, here=not memory_bytes)
    print_budget(options, loaded, budget, gpu, memory_bytes)
    return 0


def print_budget(
    options: argparse.Namespace, loaded: LoadedJob, budget: Budget, gpu: Gpu | None, memory_bytes: int | None
) -> None:
    """Print a budget as text, or with ``--json`` as that.

    Args:
        options: of the command line.
        loaded: the job.
        budget: of it.
        gpu: the GPU that was named.
        memory_bytes: its memory.
    """
    notes = loaded.notes
    if (offer := offer_of(options, loaded, budget)) is not None:
        notes = (*notes, offer)
    if options.json:
        print(json_text({**budget.to_json(), "notes": list(notes)}), flush=True)
        return
    output = detect_output(ascii_only=options.ascii)
    scale = memory_bytes if memory_bytes and memory_bytes > budget.peak.device_bytes else None
    assumed = assumed_lines(budget, loaded, output)
    print("\n".join(budget_lines(budget, output, scale_bytes=scale, assumed=assumed)))
    if gpu is not None:
        rehearsing = " --rehearse" if budget.rehearsal is not None and loaded.script is None else ""
        notes = (*notes, f"Counted for {gpu.label}; vramtop fit{rehearsing} shows whether it fits.")
    print("\n".join(closing_lines(budget, notes, output, verbose=options.verbose)), flush=True)
