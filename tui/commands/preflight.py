"""``vramtop preflight JOB``: whether all that a job needs is there."""

import argparse
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vramtop.estimator.budget import Budget
from vramtop.estimator.cancel import Cancel
from vramtop.estimator.errors import CannotTellError, InputError
from vramtop.estimator.installed import packages, torch_build
from vramtop.estimator.job import Job
from vramtop.estimator.methods import estimate
from vramtop.estimator.models import resolve_model
from vramtop.monitor.preflight.access import Access, ask_hub
from vramtop.monitor.preflight.check import Outcome
from vramtop.monitor.preflight.context import Context, Once
from vramtop.monitor.preflight.interpreter import job_python
from vramtop.monitor.preflight.launch import job_environ, local_ranks
from vramtop.monitor.preflight.libraries import DISTRIBUTIONS
from vramtop.monitor.preflight.logs import REPORTING_MODULES
from vramtop.monitor.preflight.machine import Machine, described_machine, this_machine
from vramtop.monitor.preflight.model import model_place
from vramtop.monitor.preflight.run import CHECKS, exit_code
from vramtop.monitor.preflight.run import run as run_checks

from ..job_argument import read_job
from ..json_text import json_text
from ..preflight_text import preflight_lines
from ..progress import Progress
from ..terminal import look
from .estimate import elsewhere
from .fit import chosen_gpus, rooms_elsewhere

_BUDGET_SECONDS = 90.0


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print what each check says; 0: nothing fails, 1: something does, 3: whether the job may start cannot be told."""
    job, notes = read_job(options, launch)
    context = _context(options, job, launch)
    names = [check.name for check in CHECKS]
    with Progress(quiet=options.json) as progress:

        def told(outcome: Outcome) -> None:
            names.remove(outcome.name)
            progress(f"checking: {', '.join(names)}")

        progress(f"checking: {', '.join(names)}")
        outcomes = run_checks(context, seconds=options.timeout, told=told)
    if options.json:
        print(json_text(_to_json(job, context, outcomes, notes)))
    else:
        terminal = look(ascii_only=options.ascii)
        print("\n".join(preflight_lines(job.label, outcomes, terminal)))
        for note in notes:
            print(terminal.text(f"note: {note}"))
    return exit_code(outcomes)


def _context(options: argparse.Namespace, job: Job, launch: Sequence[str] | None) -> Context:
    environ, folder = job_environ(os.environ, launch), Path.cwd()
    machine = _machine(options, job)
    python = job_python(options.python, launch, environ)
    quick = Once(lambda: estimate(job, gpu=machine.card, memory_bytes=machine.memory_bytes, environ=environ))
    _refuse_nonsense(job, environ, quick)
    limit = min(_BUDGET_SECONDS, (options.timeout or _BUDGET_SECONDS) * 0.75)
    return Context(
        job=job,
        machine=machine,
        environ=environ,
        folder=folder,
        quick=quick,
        budget=Once(lambda: _deepest(options, job, machine, environ, limit)),
        python=python,
        packages=Once(
            lambda: packages(
                python.path,
                distributions=DISTRIBUTIONS,
                modules=sorted({name for groups in REPORTING_MODULES.values() for group in groups for name in group}),
                wishes_of=["transformers"],
                environ=environ,
            )
        ),
        torch=Once(lambda: torch_build(python.path, environ=environ)),
        access=Once(lambda: _access(job, environ)),
        local_ranks=local_ranks(job, launch, environ, folder),
    )


def _machine(options: argparse.Namespace, job: Job) -> Machine:
    gpu, memory = elsewhere(options, job)
    if memory:
        return described_machine(rooms_elsewhere(gpu, memory, options.gpus or job.parallel.world_size), gpu)
    return this_machine(lambda snapshot: chosen_gpus(options.gpu, snapshot))


def _refuse_nonsense(job: Job, environ: Mapping[str, str], quick: Callable[[], Budget]) -> None:
    """Raise what is wrong with the job itself; that its model is not here is for the checks to say."""
    try:
        resolve_model(job.model, environ=environ)
    except InputError:
        return
    with suppress(CannotTellError):
        quick()


def _deepest(
    options: argparse.Namespace, job: Job, machine: Machine, environ: Mapping[str, str], seconds: float
) -> Budget:
    """The budget by the method asked for, given up after so many seconds."""
    cancel = Cancel()
    timer = threading.Timer(seconds, cancel.cancel)
    timer.daemon = True
    timer.start()
    try:
        with cancel.scope():
            return estimate(
                job,
                method=options.method,
                gpu=machine.card,
                memory_bytes=machine.memory_bytes,
                python=options.python,
                environ=environ,
            )
    finally:
        timer.cancel()


def _access(job: Job, environ: Mapping[str, str]) -> Access:
    place = model_place(job, environ)
    if place is None or place.hub_id is None:
        return Access(answer="open", words="nothing is to be fetched", token_from=None)
    return ask_hub(place.hub_id, environ)


def _to_json(job: Job, context: Context, outcomes: Sequence[Outcome], notes: Sequence[str]) -> dict[str, object]:
    return {
        "schema": 1,
        "job": job.label,
        "result": {0: "pass", 1: "failure", 3: "unknown"}[exit_code(outcomes)],
        "python": {"path": str(context.python.path), "origin": context.python.origin},
        "checks": [outcome.to_json() for outcome in outcomes],
        "notes": list(notes),
    }
