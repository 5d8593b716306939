"""``vramtop wait JOB``: wait until a job fits on GPUs of this machine, and start it or report."""

import argparse
import time
from collections.abc import Sequence

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.records import replace
from vramtop.monitor.board.capacity import device_capacities
from vramtop.monitor.board.fit_result import FitResult

from ..fitting.fit_check import check_on, judge_on, report_fit
from ..fitting.machine_gpus import committed_bytes, load_for_gpus, open_source, read_gpus, select_devices
from ..fitting.waiting import Stillness, exec_program, program_to_start, wait_until_it_fits
from ..option_values import described_gpu

_ADVICE = "vramtop fit with --gpu-type or --gpu-memory checks another machine"


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Wait until the job fits, then start the program, or print the verdict with the exit codes of ``vramtop fit``."""
    program = program_to_start(options, launch)
    loaded = load_for_gpus(options, launch)
    job = loaded.job
    if described_gpu(options, job)[1]:
        cards = "--gpu-type, --gpu with a card, --gpu-memory and target.gpu"
        raise InputError(f"vramtop wait waits for GPUs of this machine; leave out {cards}")
    with open_source(_ADVICE) as source:
        snapshot = read_gpus(source, _ADVICE)
        selection, notes = select_devices(options.gpu, snapshot, loaded.devices)
        loaded = replace(loaded, notes=(*loaded.notes, *notes))
        check = check_on(options, loaded, device_capacities(snapshot, {}, selection))
        stillness = Stillness()

        def judge() -> FitResult:
            now = read_gpus(source, _ADVICE)
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
