"""``vramtop fit JOB``: check whether a job fits on this machine now, or on a described one."""

import argparse
import time
from collections.abc import Sequence

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.trace.worker_pool import keep_idle_workers
from vramtop.monitor.board.capacity import described_devices, device_capacities
from vramtop.monitor.board.fit_result import FitResult

from ..fitting.fit_check import check_here, check_on, judge_on, report_fit
from ..fitting.machine_gpus import (
    NoGpusError,
    committed_bytes,
    load_for_gpus,
    open_source,
    read_gpus,
    select_devices,
)
from ..fitting.no_gpus import report_without_gpus
from ..fitting.waiting import Stillness, exec_program, program_to_start, wait_until_it_fits
from ..measured_runs import estimate_job
from ..option_values import described_gpu

_WAIT_ADVICE = "vramtop fit with --gpu-type or --gpu-memory checks another machine"


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the verdict; exit code 0: fits, 1: does not fit, 3: cannot tell, 4: tight."""
    program = program_to_start(options, launch)
    elsewhere = next((flag for flag in ("slurm", "kubernetes") if getattr(options, flag)), None)
    if options.wait:
        if elsewhere:
            raise InputError(f"--wait waits for GPUs of this machine; leave out --{elsewhere}")
        return _wait(options, launch, program)
    unused = [flag for flag in ("timeout", "exec") if getattr(options, flag) is not None]
    if unused:
        raise InputError(f"--{unused[0]} needs --wait")
    loaded = load_for_gpus(options, launch)
    if elsewhere:
        from ..fitting.scheduler_request import report_request

        return report_request(options, loaded)
    job = loaded.job
    if options.method != "formula":
        keep_idle_workers()  # suggestions are traced after the job
    gpu, memory_bytes = described_gpu(options, job)
    if not memory_bytes:
        try:
            return report_fit(options, check_here(options, loaded))
        except NoGpusError as error:
            if options.gpu is not None:
                raise
            return report_without_gpus(options, loaded, estimate_job(options, loaded, None, None), error.message)
    budget = estimate_job(options, loaded, gpu, memory_bytes, here=False)
    devices = described_devices(gpu, memory_bytes, options.gpus or len(budget.ranks))
    return report_fit(options, check_on(options, loaded, devices, described=(gpu, memory_bytes), budget=budget))


def _wait(options: argparse.Namespace, launch: Sequence[str] | None, program: Sequence[str]) -> int:
    """Wait until the job fits, then start the program or print the verdict."""
    loaded = load_for_gpus(options, launch)
    job = loaded.job
    if described_gpu(options, job)[1]:
        cards = "--gpu-type, --gpu with a card, --gpu-memory and target.gpu"
        raise InputError(f"--wait waits for GPUs of this machine; leave out {cards}")
    with open_source(_WAIT_ADVICE) as source:
        snapshot = read_gpus(source, _WAIT_ADVICE)
        selection, notes = select_devices(options.gpu, snapshot, loaded.devices)
        loaded = replace(loaded, notes=(*loaded.notes, *notes))
        check = check_on(options, loaded, device_capacities(snapshot, {}, selection))
        stillness = Stillness()

        def judge() -> FitResult:
            now = read_gpus(source, _WAIT_ADVICE)
            devices = device_capacities(now, committed_bytes(now, selection)[0], selection)
            return judge_on(stillness.mark(devices, time.monotonic()), options, here=True)(check.budget)

        verdict = wait_until_it_fits(
            judge,
            check.budget.job.label,
            interval=options.interval,
            timeout=options.timeout,
            starts=bool(program),
        )
    if program and verdict.verdict == "fits":
        exec_program(program, verdict, loaded.devices)
    devices = tuple(each.device for each in verdict.gpus)
    return report_fit(options, replace(check, judge=judge_on(devices, options, here=True), devices=devices))
