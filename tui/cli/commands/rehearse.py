"""``vramtop rehearse -- COMMAND``: run the user's program without a GPU, and print the memory that it would take."""

import argparse
from collections.abc import Sequence
from typing import Any

from vramtop.estimator.common.errors import ExitCode, InputError
from vramtop.estimator.job.gpu_catalogue import Gpu
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.trace.rehearsal import rehearse_job

from ...draw.text_output import detect_output
from ...job.load_job import load_from_options
from ...job.loaded_job import LoadedJob
from ...reports.rehearsal_difference import comparison_json, comparison_lines
from ..json_text import json_text
from ..measured_runs import estimate_job
from ..option_values import described_gpu
from ..out_file import write_out
from ..progress import Progress
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
    pythons = getattr(options, "pythons", ())
    if options.compare is not None or len(pythons) > 1:
        return _compare(options, loaded, gpu, pythons)
    budget = estimate_job(options, loaded, gpu, memory_bytes, here=False, kept=False)
    if options.out:
        write_out(options.out, f"{json_text(budget.to_json())}\n")
    print_budget(options, loaded, budget, gpu, memory_bytes)
    return ExitCode.DONE


def _compare(options: argparse.Namespace, loaded: LoadedJob, gpu: Gpu | None, pythons: Sequence[str]) -> int:
    """Print what differs between two rehearsals: by two interpreters, or with more arguments."""
    if len(pythons) > 2 or (options.compare is not None and len(pythons) > 1):
        raise InputError("give either --python OLD --python NEW or --compare ARGUMENTS, not both")
    command = loaded.job.program.command if loaded.job.program else ""
    changes: list[dict[str, Any]] = [{"program.python": python} for python in pythons]
    names = tuple(pythons)
    if options.compare is not None:
        names = (command, f"{command} {options.compare}")
        changes = [{"program.command": name} for name in names]
    with Progress(quiet=options.json) as progress:
        first, second = (
            rehearse_job(with_changes(loaded.job, each), gpu=gpu, progress=progress, may_run=True, kept=False)
            for each in changes
        )
    found = comparison_json(first, second)
    if options.out:
        write_out(options.out, f"{json_text(found)}\n")
    if options.json:
        print(json_text(found), flush=True)
    else:
        lines = comparison_lines(found, (names[0], names[1]), detect_output(ascii_only=options.ascii))
        print("\n".join(lines), flush=True)
    return ExitCode.DONE
