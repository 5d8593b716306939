"""``vramtop measure JOB``: run the job's real steps, and show their memory beside the prediction."""

import argparse
import contextlib
import sys
from collections.abc import Sequence

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.sizes import parse_size
from vramtop.estimator.trace.measure.batch_search import BatchSearch

from ...draw.text_output import detect_output, printable
from ...job.load_job import load_from_options
from ..json_text import json_text
from ..measuring.free_gpus import OpenGpus
from ..measuring.measure_job import MeasuredJob, Measuring, measure_job, predicted, search_micro_batch
from ..measuring.measured_report import measured_json, measured_lines
from ..progress import Progress


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the figures; exit code 0: it ran, 1: it ran out of memory, 3: it could not be run, or time was short."""
    _check(options)
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
        found, search = _measured(options, launch, how)
        if found.error is not None and not options.json:
            raise CannotTellError(found.error)
        _print(found, search, options)
        return found.exit_code


def _check(options: argparse.Namespace) -> None:
    """Raise for options that exclude each other.

    Raises:
        InputError: there are some.
    """
    if options.predict and (options.cpu or options.search):
        raise InputError(f"--predict runs nothing; leave out {'--cpu' if options.cpu else '--search'}")
    if options.gpu is not None and (options.cpu or options.predict):
        raise InputError(f"{'--cpu' if options.cpu else '--predict'} uses no GPU; leave out --gpu")


_Result = tuple[MeasuredJob, BatchSearch | None]


def _measured(options: argparse.Namespace, launch: Sequence[str] | None, how: Measuring) -> _Result:
    job = load_from_options(options, launch).job
    if options.predict:
        return predicted(job, how, None, MeasuredJob(job=job, budget=None)), None
    job = how.job(job)
    if options.search is None:
        return measure_job(job, how), None
    try:
        return search_micro_batch(job, how)
    except CannotTellError as error:
        return MeasuredJob(job=job, budget=None, error=error.message), None


def _print(found: MeasuredJob, search: BatchSearch | None, options: argparse.Namespace) -> None:
    if options.json:
        if found.error is not None:
            print(f"vramtop: {printable(f'{found.job.label}: {found.error}')}", file=sys.stderr)
        print(json_text(measured_json(found, search)), flush=True)
        return
    print("\n".join(measured_lines(found, detect_output(ascii_only=options.ascii), search)), flush=True)
