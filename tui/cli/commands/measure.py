"""``vramtop measure JOB``: run the job's real steps, and show their memory beside the prediction."""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vramtop.estimator.common import CannotTellError, InputError, parse_size
from vramtop.estimator.job import Job
from vramtop.estimator.trace.measure import BatchSearch

from ...draw import detect_output, printable
from ..json_text import json_line, json_text
from ..measuring import (
    MeasuredJob,
    Measuring,
    OpenGpus,
    is_list,
    loaded_jobs,
    measure_job,
    measured_json,
    measured_lines,
    predicted,
    search_micro_batch,
)
from ..option_values import estimate_method
from ..progress import Progress

_Result = tuple[MeasuredJob, BatchSearch | None]


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print each job's figures; exit code 0: it ran, 1: it ran out of memory, 3: it could not be run."""
    if options.predict and (options.cpu or options.search):
        raise InputError(f"--predict runs nothing; leave out {'--cpu' if options.cpu else '--search'}")
    if options.cpu and options.gpu is not None:
        raise InputError("--cpu uses no GPU; leave out --gpu")
    jobs = list(loaded_jobs(options, launch))
    worst = 0
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(quiet=options.json))
        how = Measuring(
            gpus=None if options.cpu or options.predict else stack.enter_context(OpenGpus.open(options.gpu)),
            steps=options.steps,
            timeout=options.timeout,
            limit_bytes=parse_size(options.memory) if options.memory else None,
            method=estimate_method(options),
            python=options.python,
            keep=options.history,
            progress=progress,
        )
        for number, (job, _) in enumerate(jobs):
            found, search = _result(job, how, options)
            if len(jobs) == 1 and found.error is not None and not options.json and not options.out:
                raise CannotTellError(found.error)
            _print(found, search, options, apart=number > 0)
            worst = max(worst, found.exit_code)
    return worst


def _result(job: Job, how: Measuring, options: argparse.Namespace) -> _Result:
    try:
        return _measured(job, how, options)
    except InputError as error:
        if not is_list(options):
            raise
        return MeasuredJob(job=job, budget=None, error=error.message), None


def _measured(job: Job, how: Measuring, options: argparse.Namespace) -> _Result:
    if options.predict:
        return predicted(job, how, None, MeasuredJob(job=job, budget=None)), None
    job = how.job(job)
    if options.search is None:
        return measure_job(job, how), None
    try:
        return search_micro_batch(job, how)
    except CannotTellError as error:
        return MeasuredJob(job=job, budget=None, error=error.message), None


def _print(found: MeasuredJob, search: BatchSearch | None, options: argparse.Namespace, *, apart: bool) -> None:
    if found.error is not None and (options.json or options.out):
        print(f"vramtop: {printable(f'{found.job.label}: {found.error}')}", file=sys.stderr)
    if options.out:
        try:
            with Path(options.out).open("a", encoding="utf-8") as file:
                file.write(json_line(measured_json(found, search)) + "\n")
        except OSError as error:
            raise InputError(f"--out {options.out}: cannot be written: {error.strerror or error}") from None
    if options.json:
        as_text = json_line if is_list(options) else json_text
        print(as_text(measured_json(found, search)), flush=True)
        return
    print("\n".join(_text(found, search, options, apart=apart)), flush=True)


def _text(found: MeasuredJob, search: BatchSearch | None, options: argparse.Namespace, *, apart: bool) -> Iterator[str]:
    output = detect_output(ascii_only=options.ascii)
    if apart:
        yield ""
    if found.error is not None:
        yield from output.wrapped(f"{found.job.label}: {found.error}", further="  ")
    else:
        yield from measured_lines(found, output, search)
