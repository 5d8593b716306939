"""``vramtop preflight JOB``: whether all that a job needs is there."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vramtop.estimator.common.sizes import parse_size
from vramtop.estimator.job.job import Job
from vramtop.monitor.host.host_memory import HostRam
from vramtop.monitor.preflight.context.check import Outcome
from vramtop.monitor.preflight.context.context import Context
from vramtop.monitor.preflight.facts.interpreter import job_python
from vramtop.monitor.preflight.facts.launch import job_environ
from vramtop.monitor.preflight.facts.machine import DRIVER_SECONDS, Machine, described_machine, this_machine
from vramtop.monitor.preflight.prepare import BUDGET_SECONDS, prepare, refuse_nonsense
from vramtop.monitor.preflight.run import CHECKS, exit_code
from vramtop.monitor.preflight.run import run as run_checks

from ...draw.text_output import detect_output
from ...job.load_job import job_from_options
from ...reports.preflight_text import preflight_lines
from ..json_text import json_text
from ..progress import Progress
from .estimate import elsewhere
from .fit import named_gpus, rooms_elsewhere

_RESULTS = {0: "pass", 1: "failure", 3: "unknown"}


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print what each check says; 0: nothing fails, 1: something does, 3: whether the job may start cannot be told."""
    job, notes = job_from_options(options, launch)
    context = _context(options, job, launch)
    outcomes = _outcomes(context, options)
    if options.json:
        print(json_text(_to_json(context, outcomes, notes)))
    else:
        terminal = detect_output(ascii_only=options.ascii)
        print("\n".join(preflight_lines(job.label, outcomes, terminal)))
        for note in notes:
            print(terminal.text(f"note: {note}"))
    return exit_code(outcomes)


def _context(options: argparse.Namespace, job: Job, launch: Sequence[str] | None) -> Context:
    context = prepare(
        job,
        _machine(options, job),
        job_python(options.python, launch, job_environ(os.environ, launch)),
        environ=os.environ,
        folder=Path.cwd(),
        launch=launch,
        method=options.method,
        worker_python=options.python,
        seconds=min(BUDGET_SECONDS, (options.timeout or BUDGET_SECONDS) * 0.75),  # else the check itself is given up
    )
    refuse_nonsense(context)
    return context


def _machine(options: argparse.Namespace, job: Job) -> Machine:
    gpu, memory = elsewhere(options, job)
    if memory:
        rooms = rooms_elsewhere(gpu, memory, options.gpus or job.parallel.world_size)
        return described_machine(rooms, gpu, _host(options))
    seconds = min(DRIVER_SECONDS, options.timeout or DRIVER_SECONDS)
    machine = this_machine(lambda found: named_gpus(options.gpu, found) if options.gpu else None, seconds=seconds)
    return replace(machine, host=_host(options) or machine.host)


def _host(options: argparse.Namespace) -> HostRam | None:
    return HostRam(available_bytes=parse_size(options.host_memory)) if options.host_memory else None


def _outcomes(context: Context, options: argparse.Namespace) -> tuple[Outcome, ...]:
    """What the checks say; while they run, a terminal shows which are still at it."""
    names = [check.name for check in CHECKS]
    with Progress(quiet=options.json) as progress:

        def told(outcome: Outcome) -> None:
            names.remove(outcome.name)
            progress(f"checking: {', '.join(names)}")

        return run_checks(context, seconds=options.timeout, told=told)


def _to_json(context: Context, outcomes: Sequence[Outcome], notes: Sequence[str]) -> dict[str, object]:
    return {
        "schema": 1,
        "job": context.job.label,
        "result": _RESULTS[exit_code(outcomes)],
        "python": {"path": str(context.python.path), "origin": context.python.origin},
        "checks": [outcome.to_json() for outcome in outcomes],
        "notes": list(notes),
    }
