"""``vramtop measure JOB``: run the job's real steps, and show their memory beside the prediction; ``--suite``: many."""

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec

from vramtop.estimator.common.errors import CannotTellError, ExitCode, InputError
from vramtop.estimator.common.sizes import parse_size
from vramtop.estimator.trace.measure import BatchSearch

from ...draw.text_output import detect_output, printable
from ...job.load_job import load_from_options
from ..json_text import json_text
from ..measuring.free_gpus import (
    FixedGpus,
    MeasuredJob,
    Measuring,
    OpenGpus,
    measure_job,
    measured_json,
    measured_lines,
    predicted,
    search_micro_batch,
)
from ..progress import Progress

_Result = tuple[MeasuredJob, BatchSearch | None]


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the figures; exit code 0: it ran, 1: it ran out of memory, 3: it could not be run, or time was short."""
    _check(options, launch)
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(quiet=options.json or bool(options.suite)))
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
        if options.suite:
            for number in (signal.SIGTERM, signal.SIGHUP):  # what it has started ends with it
                stack.callback(signal.signal, number, signal.signal(number, _end))
            return _run_suite(options, how)
        found, search = _measured(options, launch, how)
        if found.error is not None and not options.json:
            raise CannotTellError(found.error)
        _print(found, search, options)
        return found.exit_code


def _check(options: argparse.Namespace, launch: Sequence[str] | None) -> None:
    """Raise for options that exclude each other.

    Raises:
        InputError: there are some.
    """
    if options.predict and (options.cpu or options.search):
        raise InputError(f"--predict runs nothing; leave out {'--cpu' if options.cpu else '--search'}")
    if options.gpu is not None and (options.cpu or options.predict):
        raise InputError(f"{'--cpu' if options.cpu else '--predict'} uses no GPU; leave out --gpu")
    if options.suite and (options.job or options.flags or options.set or launch is not None or options.search):
        raise InputError(f"{options.suite} lists its own jobs; leave out other jobs, their settings and --search")
    if not options.suite and (options.out or options.part or options.again):
        raise InputError("--out, --part and --again need --suite; for one job, redirect the output of --json to a file")


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


def _run_suite(options: argparse.Namespace, how: Measuring) -> int:
    from ..measuring.suite import chosen_parts, open_suite, read_suite

    path = Path(options.suite)
    parts = chosen_parts(read_suite(path), options.part)
    output = detect_output(ascii_only=options.ascii)

    def say(text: str) -> None:
        print(output.text(text), file=sys.stderr if options.json else sys.stdout, flush=True)

    gpus = FixedGpus(how.gpus.free(1)) if isinstance(how.gpus, OpenGpus) else None
    # without the history: rows that were measured before would correct the predictions of later ones
    how = replace(how, gpus=gpus, keep=False)
    out = Path(options.out) if options.out else None
    suite = open_suite(parts, path.parent, out, how, say, again=options.again)
    left = suite.predict() if options.predict else suite.run()
    if options.json:
        print(json_text(msgspec.to_builtins(suite.file.results)))
    return ExitCode.CANNOT_TELL if left else ExitCode.DONE


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _print(found: MeasuredJob, search: BatchSearch | None, options: argparse.Namespace) -> None:
    if options.json:
        if found.error is not None:
            print(f"vramtop: {printable(f'{found.job.label}: {found.error}')}", file=sys.stderr)
        print(json_text(measured_json(found, search)), flush=True)
        return
    print("\n".join(measured_lines(found, detect_output(ascii_only=options.ascii), search)), flush=True)
