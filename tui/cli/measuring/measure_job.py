"""One job measured: predicted, run, read from outside, and kept in the history."""

import argparse
import os
import time
from collections.abc import Callable

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.allocator_variables import allocator_settings
from vramtop.estimator.common.errors import CannotTellError, ExitCode
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import parse_size
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.learning.measurement import Observed
from vramtop.estimator.model.checkpoint import job_of_model
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.measure.measured_step import MeasuredStep
from vramtop.estimator.trace.measure.real_step import Place, rank_count, run_real_step
from vramtop.estimator.trace.measure.tiny_job import tiny_job
from vramtop.monitor.history.history import History
from vramtop.monitor.history.new_measurement import new_measurement
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

from .free_gpus import FreeGpus, OutsideFigures, free_gpus

_NO_WORKSPACE = ":0:0"
"""In the words of ``CUBLAS_WORKSPACE_CONFIG``."""


class MeasuredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job beside its measurement, or the reason why there is none."""

    job: Job
    budget: Budget | None
    """The estimate; None: none can be made."""
    unpredicted: str | None = None
    """Why no estimate can be made."""
    step: MeasuredStep | None = None
    outside: OutsideFigures = msgspec.field(default_factory=OutsideFigures)
    """What NVML showed of the rank with the highest peak."""
    card: str | None = None
    driver: str | None = None
    error: str | None = None
    """Why nothing was measured."""
    notes: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def exit_code(self) -> int:
        """0: measured, 1: it ran out of memory, 3: it could not be run."""
        if self.error is not None:
            return ExitCode.CANNOT_TELL
        return ExitCode.NO if self.step is not None and self.step.out_of_memory else ExitCode.DONE


def measure_job(
    job: Job, options: argparse.Namespace, gpus: NvmlSource | None, progress: Callable[[str], None]
) -> MeasuredJob:
    """Measure a job, predict it, and keep both.

    Args:
        job: on the CPU a tiny one is run in its place.
        options: of ``vramtop measure``.
        gpus: of this machine, open; None: it is measured on the CPU.
        progress: called with what is being done.

    Raises:
        InputError: the job is invalid, ``--python`` or ``--gpu`` names nothing.
    """
    started, limit_bytes = time.monotonic(), parse_size(options.memory) if options.memory else None
    free: FreeGpus | None = None
    if gpus is None:
        job = tiny_job(job, resolve_model(job.model))
    model = resolve_model(job.model)
    job = planned = job_of_model(job, model)
    if gpus is None:  # without the workspaces that cuBLAS has on a GPU
        planned = replace(job, software=replace(job.software, cublas_workspace=_NO_WORKSPACE))
    found = MeasuredJob(job=job, budget=None)
    try:
        if gpus is None:
            places = [Place(limit_bytes=limit_bytes)] * rank_count(job)
        else:
            free = free_gpus(gpus, options.gpu, rank_count(job))
            places = free.places(limit_bytes)
            found = replace(found, card=free.devices[0].name, driver=free.snapshot.source.driver_version)
        progress(f"estimating {job.label}")
        try:
            gpu = free.devices[0].gpu_type if free else None
            budget = estimate(planned, method=options.method, gpu=gpu, python=options.python)
            found = replace(found, budget=budget)
        except CannotTellError as error:
            found = replace(found, unpredicted=error.message)
        progress(f"running {options.steps} steps of {model.label}")
        step = run_real_step(
            job,
            model,
            places,
            device="cuda" if free else "cpu",
            steps=options.steps,
            timeout=options.timeout,
            python=options.python,
            on_stage=free.read if free else lambda _stage, _pids: None,
        )
    except CannotTellError as error:
        return replace(found, error=error.message)
    figures = free.figures[step.ranks.index(step.highest)] if free and free.figures else OutsideFigures()
    found = replace(found, step=step, outside=figures, seconds=round(time.monotonic() - started, 1))
    limited = step.out_of_memory is not None and limit_bytes is not None  # it failed by the user's wish
    return _kept(found) if free and options.history and not limited else found


def _kept(found: MeasuredJob) -> MeasuredJob:
    """Keep the measurement in the user's history; what hinders that becomes a note."""
    assert found.step is not None  # noqa: S101 - the caller has measured
    rank, failed = found.step.highest, found.step.out_of_memory
    device = found.outside.process_bytes if found.outside.process_bytes is not None else found.outside.device_bytes
    variable = allocator_settings(os.environ)
    observed = Observed(
        allocated_bytes=rank.allocated_bytes,
        reserved_bytes=rank.reserved_bytes,
        device_bytes=device,
        allocator_source="measure",
        device_source=None if device is None else "measure",
    )
    now = time.time()
    try:
        measurement = new_measurement(
            found.job,
            [found.budget] if found.budget else [],
            observed,
            run=f"measure {rank.pid} {now}",
            state="out_of_memory" if failed else "ended",
            time=now,
            card=found.card,
            driver=found.driver,
            versions={name: text for name, text in found.step.versions.items() if name != "python"},
            allocator=variable[1] if variable else None,
        )
        repaired = History().add(measurement)
    except CannotTellError as error:
        return replace(found, notes=(*found.notes, f"Not kept in the history: {error.message}."))
    return replace(found, notes=(*found.notes, *([repaired] if repaired else [])))
