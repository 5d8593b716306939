"""``vramtop estimate JOB``: predict the memory of a job."""

import argparse
from collections.abc import Sequence

from ...draw.text_output import detect_output
from ...job.load_job import load_from_options
from ...reports.budget_text import assumed_lines, budget_lines, closing_lines
from ..json_text import json_text
from ..measured_runs import estimate_job
from ..option_values import described_gpu


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the budget; exit code 0."""
    loaded = load_from_options(options, launch)
    job, notes = loaded.job, loaded.notes
    gpu, memory_bytes = described_gpu(options, job)
    budget = estimate_job(options, job, gpu, memory_bytes, here=not memory_bytes)
    if options.json:
        print(json_text({**budget.to_json(), "notes": list(notes)}))
        return 0
    output = detect_output(ascii_only=options.ascii)
    scale = memory_bytes if memory_bytes and memory_bytes > budget.peak.device_bytes else None
    assumed = assumed_lines(
        budget, output, stated=loaded.stated, versions=loaded.assumed_versions, flags=loaded.file is None
    )
    print("\n".join(budget_lines(budget, output, scale_bytes=scale, assumed=assumed)))
    if gpu is not None:
        notes = (*notes, f"Counted for {gpu.label}; vramtop fit tells whether it fits.")
    print("\n".join(closing_lines(budget, notes, output, verbose=options.verbose)))
    return 0
