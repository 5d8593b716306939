"""``vramtop estimate JOB``: predict the memory of a job."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramtop.estimator.estimation import estimate

from ...draw import detect_output
from ...job import job_from_options
from ...reports import budget_lines, closing_lines
from ..json_text import json_text
from ..measured_runs import correction
from ..option_values import described_gpu, estimate_method
from ..progress import Progress

if TYPE_CHECKING:
    from ..json_types import EstimateJson


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the budget; exit code 0."""
    job, notes = job_from_options(options, launch)
    gpu, memory_bytes = described_gpu(options, job)
    with Progress(quiet=options.json) as progress:
        budget = estimate(
            job,
            method=estimate_method(options),
            gpu=gpu,
            memory_bytes=memory_bytes,
            python=options.python,
            progress=progress,
        )
    budget = correction(options, job, gpu, here=not memory_bytes)(budget)
    if options.json:
        found: EstimateJson = {**budget.to_json(), "notes": list(notes)}
        print(json_text(found))
        return 0
    output = detect_output(ascii_only=options.ascii)
    scale = memory_bytes if memory_bytes and memory_bytes > budget.peak.device_bytes else None
    print("\n".join(budget_lines(budget, output, scale_bytes=scale)))
    print("\n".join(closing_lines(budget, notes, output, verbose=options.verbose)))
    return 0
