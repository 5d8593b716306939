"""``vramtop measure JOB``: run the job's real steps, and show their memory beside the prediction."""

import argparse
import contextlib
import sys
from collections.abc import Sequence

from vramtop.estimator.common.errors import CannotTellError, InputError

from ...draw.text_output import detect_output, printable
from ...job.load_job import load_from_options
from ..fitting.machine_gpus import open_source
from ..json_text import json_text
from ..measuring.free_gpus import ADVICE
from ..measuring.measure_job import measure_job
from ..measuring.measured_report import measured_json, measured_lines
from ..progress import Progress


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the figures; exit code 0: it ran, 1: it ran out of memory, 3: it could not be run, or time was short.

    Raises:
        InputError: options exclude each other.
    """
    if options.gpu is not None and options.cpu:
        raise InputError("--cpu uses no GPU; leave out --gpu")
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(quiet=options.json))
        gpus = None if options.cpu else stack.enter_context(open_source(ADVICE))
        found = measure_job(load_from_options(options, launch).job, options, gpus, progress)
    if options.json:
        print(json_text(measured_json(found)), flush=True)
        if found.error is not None:
            print(f"vramtop: {printable(f'{found.job.label}: {found.error}')}", file=sys.stderr)
    elif found.step is None:
        raise CannotTellError(found.error or "nothing was measured")
    else:
        print("\n".join(measured_lines(found, found.step, detect_output(ascii_only=options.ascii))), flush=True)
    return found.exit_code
