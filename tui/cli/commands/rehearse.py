"""``vramtop rehearse -- COMMAND``: run the user's program without a GPU, and print the memory that it would take."""

import argparse
from collections.abc import Sequence

from vramtop.estimator.common.errors import ExitCode

from ...job.load_job import load_from_options
from ..json_text import json_text
from ..measured_runs import estimate_job
from ..option_values import described_gpu
from ..out_file import write_out
from .estimate import print_budget


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the budget of the program; exit code 0.

    Raises:
        InputError: no command is given, none of Python's, or others decide what it runs.
        CannotTellError: the program ended before an optimizer had stepped.
    """
    options.gpu = None  # of fit, where it may be GPUs of this machine
    loaded = load_from_options(options, launch)
    gpu, memory_bytes = described_gpu(options, loaded.job)
    budget = estimate_job(options, loaded, gpu, memory_bytes, here=False, kept=False)
    if options.out:
        write_out(options.out, f"{json_text(budget.to_json())}\n")
    print_budget(options, loaded, budget, gpu, memory_bytes)
    return ExitCode.DONE
