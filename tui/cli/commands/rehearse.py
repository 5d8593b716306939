"""``vramtop rehearse -- COMMAND``: run the user's program without a GPU, and print the memory that it would take."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vramtop.estimator.common.errors import ExitCode, InputError
from vramtop.estimator.common.private_files import write_private
from vramtop.estimator.trace.rehearsal import rehearse_job

from ...draw.labels import format_duration
from ...job.load_job import load_from_options
from ..json_text import json_text
from ..measured_runs import estimate_job
from ..option_values import described_gpu
from ..progress import Progress
from .estimate import print_budget


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the budget of the program; exit code 0.

    Raises:
        InputError: no command is given, or none of Python's.
        CannotTellError: the program ended before an optimizer had stepped.
    """
    loaded = load_from_options(options, launch)
    gpu, memory_bytes = described_gpu(options, loaded.job)
    started = time.time()
    if options.again:
        with Progress(quiet=options.json) as progress:
            rehearse_job(loaded.job, gpu=gpu, memory_bytes=memory_bytes, progress=progress, kept=False)
    budget = estimate_job(options, loaded.job, gpu, memory_bytes, here=False)
    if budget.rehearsal is not None and budget.rehearsal.time < started:
        ago = format_duration(started - budget.rehearsal.time)
        loaded = replace(loaded, notes=(*loaded.notes, f"Rehearsed {ago} ago; --again rehearses it now."))
    if options.out:
        try:
            write_private(Path(options.out), f"{json_text(budget.to_json())}\n".encode())
        except OSError as error:
            raise InputError(f"--out {options.out}: {error.strerror}") from None
    print_budget(options, loaded, budget, gpu, memory_bytes)
    return ExitCode.DONE
