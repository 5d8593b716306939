"""``vramtop measure JOB``: run the job's real steps, and show their memory beside the prediction."""

import argparse
import contextlib
import sys
from collections.abc import Sequence

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.sizes import parse_size

from ...draw.text_output import detect_output, printable
from ...job.load_job import load_from_options
from ..json_text import json_text
from ..measuring.free_gpus import OpenGpus
from ..measuring.measure_job import MeasuredJob, Measuring, measure_job, predicted
from ..measuring.measured_report import measured_json, measured_lines
from ..progress import Progress


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the figures; exit code 0: it ran, 1: it ran out of memory, 3: it could not be run, or time was short.

    Raises:
        InputError: options exclude each other.
    """
    if options.predict and options.cpu:
        raise InputError("--predict runs nothing; leave out --cpu")
    if options.gpu is not None and (options.cpu or options.predict):
        raise InputError(f"{'--cpu' if options.cpu else '--predict'} uses no GPU; leave out --gpu")
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(quiet=options.json))
        how = Measuring(
            gpus=None if options.cpu or options.predict else stack.enter_context(OpenGpus.open(options.gpu)),
            steps=options.steps,
            timeout=options.timeout,
            limit_bytes=parse_size(options.memory) if options.memory else None,
            method=options.method,
            python=options.python,
            keep=options.history,
            progress=progress,
        )
        job = load_from_options(options, launch).job
        if options.predict:
            found = predicted(job, how, None, MeasuredJob(job=job, budget=None))
        else:
            found = measure_job(how.job(job), how)
        if not options.json:
            if found.error is not None:
                raise CannotTellError(found.error)
            print("\n".join(measured_lines(found, detect_output(ascii_only=options.ascii))), flush=True)
            return found.exit_code
        if found.error is not None:
            print(f"vramtop: {printable(f'{found.job.label}: {found.error}')}", file=sys.stderr)
        print(json_text(measured_json(found)), flush=True)
        return found.exit_code
