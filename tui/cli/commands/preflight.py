"""``vramtop preflight JOB``: check everything that a job needs."""

import argparse
import os
from collections.abc import Sequence
from typing import Any, Literal

from vramtop.estimator.common.errors import ExitCode
from vramtop.estimator.common.paths import working_folder
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.capacity import count_devices, described_devices
from vramtop.monitor.preflight.check import CheckContext, CheckResult
from vramtop.monitor.preflight.checks import CHECKS
from vramtop.monitor.preflight.job_launch import find_job_interpreter, job_environment
from vramtop.monitor.preflight.machine import DRIVER_TIMEOUT_SECONDS, Machine, this_machine
from vramtop.monitor.preflight.prepare import ESTIMATE_TIMEOUT_SECONDS, prepare, validate_job
from vramtop.monitor.preflight.run_checks import exit_code, run_checks
from vramtop.monitor.snapshot.snapshot import Snapshot

from ...draw.text_output import detect_output
from ...job.loaded_job import LoadedJob
from ...reports.preflight_text import preflight_lines
from ..fitting.machine_gpus import committed_bytes, load_for_gpus
from ..json_text import json_text
from ..measured_runs import correction
from ..option_values import described_gpu, described_host, gpu_indices
from ..progress import Progress
from ..rehearsing import may_run, offer_of, rehearsal_is_kept, rehearsing_line, what_is_known

_BUDGET_SHARE = 0.75
"""Share of ``--timeout`` for the estimate, so that it ends before the check that needs it times out."""


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the outcome of each check; exit code 0: nothing fails, 1: a check fails, 3: cannot tell."""
    loaded = load_for_gpus(options, launch)
    job, notes = loaded.job, loaded.notes
    context = _context(options, loaded, launch)
    for why in loaded.why_unread:
        line = "" if options.rehearse else f" {rehearsing_line(options, job)} rehearses it."
        notes = (*notes, f"{why}{line}")
    if context.job.program is None and (offer := offer_of(options, loaded, None)) is not None:
        notes = (*notes, offer)
    outcomes = _run_checks(context, options)
    if options.json:
        print(json_text(_to_json(context, outcomes, notes)))
    else:
        output = detect_output(ascii_only=options.ascii)
        print("\n".join(preflight_lines(context.job.label, outcomes, output)))
        for note in notes:
            print(output.text(f"note: {note}"))
    return exit_code(outcomes)


def _context(options: argparse.Namespace, loaded: LoadedJob, launch: Sequence[str] | None) -> CheckContext:
    job = loaded.job
    machine = _machine(options, job)
    loaded = loaded.finding_gpus(count_devices(machine.devices))
    job = loaded.job
    is_read = job.program is None
    program = (loaded.program if loaded.is_partly_read else None) if is_read else job
    if program is not None and options.rehearse is None:
        is_kept = rehearsal_is_kept(program, machine.gpu_type, machine.memory_bytes)
        known = what_is_known(loaded) if is_read else loaded.why_unread
        options.rehearse = is_kept or may_run(options, program, known)
        job = program if options.rehearse else job
    context = prepare(
        job,
        machine,
        find_job_interpreter(
            options.python if options.names_python else None, launch, job_environment(os.environ, launch)
        ),
        environ=os.environ,
        folder=working_folder(),
        launch=launch,
        choice=loaded.devices,
        method=options.method,
        worker_python=options.python,
        seconds=min(ESTIMATE_TIMEOUT_SECONDS, (options.timeout or ESTIMATE_TIMEOUT_SECONDS) * _BUDGET_SHARE),
        correct=correction(options, job, machine.gpu_type, here=not described_gpu(options, job)[1]),
        rehearses=options.rehearse,
    )
    validate_job(context)
    return context


def _machine(options: argparse.Namespace, job: Job) -> Machine:
    gpu, memory_bytes = described_gpu(options, job)
    host = described_host(options)
    if memory_bytes:
        devices = described_devices(gpu, memory_bytes, options.gpus or job.parallel.world_size)
        return Machine(devices=devices, gpu_type=gpu, host=host)
    seconds = min(DRIVER_TIMEOUT_SECONDS, options.timeout or DRIVER_TIMEOUT_SECONDS)

    def select(snapshot: Snapshot) -> Sequence[int] | None:
        return gpu_indices(options.gpu, snapshot) if options.gpu else None

    machine = this_machine(
        select,
        committed=lambda snapshot: committed_bytes(snapshot, select(snapshot))[0],  # as for a fit check
        timeout_seconds=seconds,
    )
    return replace(machine, host=host or machine.host)


def _run_checks(context: CheckContext, options: argparse.Namespace) -> tuple[CheckResult, ...]:
    """Run all checks; a terminal shows which are still running."""
    running = [check.name for check in CHECKS]
    with Progress(quiet=options.json) as progress:

        def on_outcome(outcome: CheckResult) -> None:
            running.remove(outcome.name)
            progress(f"checking: {', '.join(running)}")

        return run_checks(context, timeout_seconds=options.timeout, on_result=on_outcome)


_RESULTS: dict[int, Literal["pass", "failure", "unknown"]] = {
    ExitCode.DONE: "pass",
    ExitCode.NO: "failure",
    ExitCode.CANNOT_TELL: "unknown",
}


def _to_json(context: CheckContext, outcomes: Sequence[CheckResult], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": 1,
        "job": context.job.label,
        "result": _RESULTS[exit_code(outcomes)],
        "python": {"path": str(context.interpreter.path), "origin": context.interpreter.origin},
        "checks": [outcome.to_json() for outcome in outcomes],
        "notes": list(notes),
    }
