"""``vramtop program JOB``: print the training script that a described job stands for."""

import argparse
import os
from collections.abc import Sequence

from vramtop.estimator.common.errors import ExitCode, InputError
from vramtop.estimator.model.checkpoint import job_of_model
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.program.text_script import training_script
from vramtop.estimator.program.training_script import How, start_command
from vramtop.estimator.trace.interpreters import choose_interpreter

from ...draw.text_output import detect_output
from ...job.load_job import load_from_options
from ..json_text import json_text
from ..out_file import write_out

_NAME = "train.py"


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the script; exit code 0.

    Raises:
        InputError: the job is a program already, or the file cannot be written.
        CannotTellError: no script stands for the job.
    """
    loaded = load_from_options(options, launch)
    if loaded.job.program is not None and loaded.script is None:
        raise InputError(f"{loaded.job.label} is a program already; vramtop program writes one for a described job")
    if loaded.script is not None and loaded.job.program is not None:
        script, command = loaded.script, loaded.job.program.command
    else:
        model = resolve_model(loaded.job.model)
        job = job_of_model(loaded.job, model)
        version = choose_interpreter(options.python, os.environ).transformers if options.python else None
        how = How(loaded.stated, options.out or _NAME, transformers=version)
        script, command = training_script(job, model, how=how), start_command(job, how.file)
    if options.out:
        write_out(options.out, script, overwrite=options.overwrite)
    if options.json:
        print(json_text({"schema": 1, "command": command, "script": script}), flush=True)
    elif options.out:
        output = detect_output(ascii_only=options.ascii)
        print(output.text(f"{options.out} is written; start it with: {command}"), flush=True)
    else:
        print(script, end="", flush=True)
    return ExitCode.DONE
