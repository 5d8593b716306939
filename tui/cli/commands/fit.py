"""``vramtop fit JOB``: check whether a job fits on this machine now, or on a described one."""

import argparse
from collections.abc import Sequence

from vramtop.estimator.trace.worker_pool import keep_idle_workers
from vramtop.monitor.board.capacity import described_devices

from ..fitting.cards import report_without_gpus
from ..fitting.fit_check import check_here, check_on, report_fit
from ..fitting.machine_gpus import NoGpusError, load_for_gpus
from ..measured_runs import estimate_job
from ..option_values import described_gpu


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the verdict; exit code 0: fits, 1: does not fit, 3: cannot tell, 4: tight."""
    loaded = load_for_gpus(options, launch)
    if options.slurm or options.kubernetes:
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
